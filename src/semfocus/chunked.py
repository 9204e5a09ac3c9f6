"""Attention for long inputs in plain PyTorch: the reference, a few query rows at a time.

Memory is O(chunk x s) instead of O(t x s), in the backward pass too: each chunk is computed again there.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from . import reference
from ._tracing import transformed
from .reference import Problem

#: Elements of the score tensor that one chunk may hold.
CHUNK_ELEMENTS = 2**24


def attend(problem: Problem, with_weights: bool = False, chunk: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Output (..., t, e); weights (..., t, s) only on request, since they are the whole matrix.

    ``chunk``: query rows at a time; by default as many as memory allows.
    """
    chunk = chunk or rows_per_chunk(problem)
    parts = []
    # split() and not slices: its backward joins the pieces once, a slice's fills a whole tensor for each piece.
    for i, q in enumerate(torch.split(problem.q, chunk, dim=-2)):
        part = replace(problem.rows(i * chunk, i * chunk + q.shape[-2]), q=q)
        parts.append(_compute(part, with_weights))
    out = torch.cat([part[0] for part in parts], dim=-2)
    return out, torch.cat([part[1] for part in parts], dim=-2) if with_weights else None


def rows_per_chunk(problem: Problem) -> int:
    """As many query rows as keep the scores of one chunk within ``CHUNK_ELEMENTS``."""
    per_row = problem.q.shape[:-2].numel() * problem.k.shape[-2]
    return max(1, min(1024, CHUNK_ELEMENTS // max(per_row, 1)))


def _compute(part: Problem, with_weights: bool) -> tuple[Tensor, ...]:
    def compute(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        result = reference.attend(replace(part, q=q, k=k, v=v, mask=mask))
        return result if with_weights else result[:1]

    inputs = (part.q, part.k, part.v, part.mask)
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    if wanted and (torch.compiler.is_compiling() or not transformed()):  # torch.func cannot compute anything again
        # Nothing in there draws from a global generator, so there is no random state to restore.
        result: tuple[Tensor, ...] = checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False)
        return result
    return compute(*inputs)
