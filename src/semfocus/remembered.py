"""A problem kept for the backward pass, its tensors where autograd looks after them.

A tensor that hung on the context otherwise would escape the check for changes in place, and checkpointing, which frees
what is saved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from .randomness import Noise
from .reference import Problem


def remember(ctx: Any, p: Problem, *more: Tensor) -> None:
    """For ``recall`` in the backward pass. The noise is not kept: what it decided is among ``more``."""
    scale = p.scale if isinstance(p.scale, Tensor) else None
    ctx.save_for_backward(p.q, p.k, p.v, p.mask, scale, *more)
    nothing = p.q.new_empty(0)
    ctx.problem = replace(
        p,
        q=nothing,
        k=nothing,
        v=nothing,
        mask=None,
        scale=1.0 if isinstance(p.scale, Tensor) else p.scale,
        noise=Noise(nothing, nothing),
        packed=None,
    )


def recall(ctx: Any) -> tuple[Problem, tuple[Tensor, ...]]:
    """The problem, and what else was remembered."""
    q, k, v, mask, scale, *more = ctx.saved_tensors
    p: Problem = ctx.problem
    return replace(p, q=q, k=k, v=v, mask=mask, scale=p.scale if scale is None else scale), tuple(more)
