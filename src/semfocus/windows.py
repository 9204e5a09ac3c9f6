"""Attention through windows in O(t w): a query keeps an interval of keys, and global tokens.

``intervals`` says which keys, for any pattern over windows of ranks. ``attend`` is plain PyTorch, a block of queries at
a time against the keys of their windows, with its own backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ._checks import not_over_keys
from .once import once
from .patterns._windows import Window
from .reference import Problem, beyond_the_plain, without_autocast
from .remembered import recall, remember

#: Queries of a block.
BLOCK = 64


def cannot(problem: Problem, with_weights: bool) -> str | None:
    """Why windows cannot be computed by intervals, or None if they can."""
    p = problem
    if not isinstance(p.pattern, Window):
        return f"the pattern is {p.pattern.label}, and it knows windows such as banded and block_local only"
    return not_over_keys(p.mask) or beyond_the_plain(p, with_weights)


@dataclass(frozen=True)
class Intervals:
    """Query i keeps the visible keys of [begin_i, end_i), and all that are global. Shapes (..., t) broadcast."""

    begin: Tensor
    end: Tensor
    first_global: int  # keys from here on are global, and so are queries

    def reach(self, keys: int) -> tuple[Tensor, Tensor]:
        """(..., s) twice: the queries [first, last) before the global ones in which a key can lie."""
        local = slice(0, max(0, self.begin.shape[-1] - (keys - self.first_global)))
        places = torch.arange(keys, device=self.begin.device).expand(*self.begin.shape[:-1], keys).contiguous()
        first = torch.searchsorted(self.end[..., local].contiguous(), places, right=True)
        last = torch.searchsorted(self.begin[..., local].contiguous(), places, right=True)
        return first, last


@torch.no_grad()
def intervals(p: Problem) -> Intervals:
    """From windows of ranks among the visible keys to intervals of positions.

    >>> from semfocus import Banded
    >>> from semfocus.functional import problem_of
    >>> x = torch.zeros(1, 6, 4)
    >>> found = intervals(problem_of(x, x, x, Banded(3), None, 0.0, False, None, False, 0, None))
    >>> found.begin.tolist(), found.end.tolist()
    ([0, 0, 1, 2, 3, 3], [3, 3, 4, 5, 6, 6])
    """
    assert isinstance(p.pattern, Window)
    keys, device = p.k.shape[-2], p.q.device
    first_global = keys - p.pattern.global_tokens
    local = torch.arange(keys, device=device) < first_global
    if p.mask is not None:
        local = local & (p.mask if p.mask.ndim == 1 else p.mask[..., 0, :])  # (..., s)
    counted = local.cumsum(-1)  # keys up to each one
    before = torch.nn.functional.pad(counted, (1, 0))  # (..., s + 1): keys before each place
    own = before[..., (p.positions + 1).clamp(0, keys)]  # (..., t): keys up to the query
    count = own if p.is_causal else counted[..., -1:].expand(own.shape)
    low, high = p.pattern.bounds((own - 1).clamp(min=0), count)
    high = high.minimum(count)
    empty = low >= high
    begin = torch.searchsorted(counted, low + 1)  # the place of rank r is the first with r + 1 keys up to it
    end = torch.searchsorted(counted, high) + 1
    is_global = (p.positions >= first_global) & (first_global < keys)
    begin = begin.masked_fill(empty, 0).masked_fill(is_global, 0)
    return Intervals(begin, end.masked_fill(empty, 0).masked_fill(is_global, keys), first_global)


def attend(problem: Problem) -> Tensor:
    """Output (..., t, e) of a problem that ``cannot`` lets through."""
    with without_autocast(problem.q.device):
        result: Tensor = _Windows.apply(problem.q, problem.k, problem.v, problem)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True)
class _Block:
    """Some queries with the keys that any of them keeps: a slice of the local ones, and the global ones."""

    rows: slice
    local: slice
    tail: slice
    kept: Tensor  # bool (..., rows, keys of both)

    def take(self, x: Tensor, groups: int) -> Tensor:
        """Keys or values of the block, (..., heads, n, d), in the precision of the scores."""
        taken = torch.cat([x[..., self.local, :], x[..., self.tail, :]], -2)
        taken = taken.to(torch.promote_types(x.dtype, torch.float32))
        return taken if groups == 1 else taken.repeat_interleave(groups, -3)

    def give(self, total: Tensor, part: Tensor, groups: int) -> None:
        """Adds the block's gradient to the whole one."""
        part = part if groups == 1 else torch.unflatten(part, -3, (-1, groups)).sum(-3)
        split = self.local.stop - self.local.start
        total[..., self.local, :] += part[..., :split, :]
        total[..., self.tail, :] += part[..., split:, :]


def _blocks(p: Problem) -> Iterator[_Block]:
    found = intervals(p)
    queries, keys = p.q.shape[-2], p.k.shape[-2]
    width = p.pattern.budget or 0
    block = max(BLOCK, min(256, width // 2))
    edges = sorted({*range(0, queries, block), queries, min(queries, max(0, found.first_global))})
    columns = torch.arange(keys, device=p.q.device)
    for start, stop in pairwise(edges):
        begin, end = found.begin[..., start:stop, None], found.end[..., start:stop, None]
        first = min(int(begin.amin()), keys - 1)
        last = max(int(end.amax()), first + 1)  # never without a key
        tail = slice(max(found.first_global, last), keys)
        here = torch.cat([columns[first:last], columns[tail]])
        kept = ((here >= begin) & (here < end)) | (here >= found.first_global)
        if p.mask is not None:
            kept = kept & p.mask[..., here]
        yield _Block(slice(start, stop), slice(first, last), tail, kept)


def _weights(block: _Block, keys: Tensor, scaled: Tensor) -> Tensor:
    scores = (scaled @ keys.mT).masked_fill(~block.kept, -torch.inf)
    peak = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    exponentials = torch.exp(scores - peak)
    return exponentials / exponentials.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, p: Problem) -> Tensor:
        remember(ctx, p)
        groups = q.shape[-3] // k.shape[-3]
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        for block in _blocks(p):
            scaled = q[..., block.rows, :].to(p.dtype) * p.scale
            weights = _weights(block, block.take(k, groups), scaled)
            out[..., block.rows, :] = (weights @ block.take(v, groups)).to(out.dtype)
        return out

    @staticmethod
    @once
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        p, _ = recall(ctx)
        with torch.autocast(d_out.device.type, enabled=False):  # as in the forward pass
            return *_gradients(p, d_out), None


def _gradients(p: Problem, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = p.q, p.k, p.v
    groups = q.shape[-3] // k.shape[-3]
    dq = torch.empty_like(q)
    dk, dv = (x.new_zeros(x.shape, dtype=p.dtype) for x in (k, v))
    for block in _blocks(p):
        scaled = q[..., block.rows, :].to(p.dtype) * p.scale
        keys, change = block.take(k, groups), d_out[..., block.rows, :].to(p.dtype)
        weights = _weights(block, keys, scaled)
        d_weights = change @ block.take(v, groups).mT
        d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True))
        dq[..., block.rows, :] = ((d_scores @ keys) * p.scale).to(q.dtype)
        block.give(dk, d_scores.mT @ scaled, groups)
        block.give(dv, weights.mT @ change, groups)
    return dq, dk.to(k.dtype), dv.to(v.dtype)
