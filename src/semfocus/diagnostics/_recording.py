"""The attention problems that one forward pass of our model poses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..reference import Problem

if TYPE_CHECKING:
    from ..model import Transformer


#: A problem with the members it serves: the first, and one past the last.
Served = tuple[Problem, int, int]


@torch.no_grad()
def recorded(model: Transformer, tokens: Tensor, noise: float = 0.0, seed: int = 0) -> list[list[Served]]:
    """The problems of every layer in one forward pass, in evaluation mode. The model is left as it was."""
    layers: list[list[Served]] = []
    run_block, run_embedding, training = model.run_block, model.run_embedding, model.training

    def recording(block: Any, h: Tensor, *rest: Any) -> Tensor:
        layers.append(block.problems(h, *rest))
        return run_block(block, h, *rest)

    def noisy(*arguments: Any) -> Tensor:
        h = run_embedding(*arguments)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(h.shape[1:], generator=generator, dtype=h.dtype).to(h.device)  # the same for all members
        size = h.square().mean((1, 2, 3), keepdim=True).sqrt()  # (m, 1, 1, 1): each member by its own measure
        return h + noise * size * drawn

    try:
        model.eval()
        model.run_block = recording
        if noise:
            model.run_embedding = noisy
        model(tokens)
    finally:
        model.run_block, model.run_embedding = run_block, run_embedding
        model.train(training)
    return layers


def of_member(problems: list[Served], member: int) -> Problem:
    """The problem of one member; its model axis has size 1."""
    for problem, first, last in problems:
        if first <= member < last:
            one = slice(member - first, member - first + 1)
            return replace(
                problem,
                q=problem.q[one],
                k=problem.k[one],
                v=problem.v[one],
                mask=None if problem.mask is None else problem.mask[one],
                scale=problem.scale[one] if isinstance(problem.scale, Tensor) else problem.scale,
                noise=replace(problem.noise, fresh=problem.noise.fresh[one], fixed=problem.noise.fixed[one]),
                packed=None,
            )
    raise ValueError(f"member is {member}; the population has {problems[-1][2]} members")
