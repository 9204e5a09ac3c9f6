"""Attention over few keys in plain PyTorch: what was kept is gathered, and only that is remembered.

Scores are formed a few rows at a time, as in ``chunked``; the backward pass needs none of them again: it works on the
kept keys and their weights, (..., t, budget) each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .chunked import rows_per_chunk
from .once import once
from .patterns.top_k import TopK
from .reference import Problem, beyond_the_plain, kept_keys, raw_scores, repeat_heads, without_autocast
from .remembered import recall, remember

#: Rows gathered at once in the backward pass.
PIECE = 2**16


def cannot(problem: Problem, with_weights: bool) -> str | None:
    """Why gathering cannot serve, or None if it can."""
    p = problem
    if p.pattern.budget is None:
        return f"the pattern is {p.pattern.label}, which has no budget"
    if p.pattern.global_tokens:
        return f"the global tokens of {p.pattern.label} keep all keys"
    if p.mask is not None and p.mask.requires_grad:
        return "attn_mask needs a gradient"
    return beyond_the_plain(p, with_weights)


def attend(problem: Problem) -> Tensor:
    """Output (..., t, e) of a problem that ``cannot`` lets through."""
    with without_autocast(problem.q.device):
        result: Tensor = _Gathered.apply(problem.q, problem.k, problem.v, problem)  # type: ignore[no-untyped-call]
    return result


def choose(p: Problem, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The kept keys (..., t, budget) and their weights; 0 and 0 where a row keeps fewer."""
    scores = raw_scores(p, q, k)
    size = min(p.pattern.budget or 0, scores.shape[-1])
    if isinstance(p.pattern, TopK) and not p.pattern.sinks and p.q.device.type == "cpu":
        if p.is_causal or p.mask is not None:
            scores = scores.masked_fill_(~p.visible(), -torch.inf)
        best = _best(scores, size)
        if best is not None:
            return _weighted(*best)
    scores = scores.masked_fill(~kept_keys(p, q, k, scores), -torch.inf)
    return _weighted(*scores.topk(size, -1))


def _best(scores: Tensor, size: int) -> tuple[Tensor, Tensor] | None:
    """The largest scores in order, ties to the lowest index, and where they stand; None if too many are equal.

    The size-th largest of some group maxima is reached by ``size`` scores at least. What reaches it is hardly more than
    that, and quickly sorted. The look at how many there are would make a GPU wait.
    """
    groups = max(64, 4 * size)
    rounds = scores.shape[-1] // groups
    if rounds < 2:
        return None
    maxima = torch.unflatten(scores[..., : rounds * groups], -1, (rounds, groups)).amax(-2)
    bound = maxima.topk(size, -1).values[..., -1:].clamp(min=torch.finfo(scores.dtype).min)
    candidates = ~(scores < bound)  # (..., t, s); NaN is one too, so that it is seen in the result
    counts = candidates.sum(-1).flatten()
    most = int(counts.max())
    if most > 4 * size + 64:
        return None
    most = max(most, size)
    row, key = candidates.flatten(0, -2).nonzero().unbind(-1)
    slot = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    values = scores.new_full((len(counts), most), -torch.inf)
    keys = key.new_zeros(values.shape)
    values[row, slot] = scores.flatten(0, -2)[row, key]
    keys[row, slot] = key
    values, order = values.sort(dim=-1, descending=True, stable=True)
    keys = keys.gather(-1, order)
    shape = (*scores.shape[:-1], size)
    return values[:, :size].reshape(shape), keys[:, :size].reshape(shape)


def _weighted(scores: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    there = scores != -torch.inf
    peak = scores[..., :1].clamp(min=torch.finfo(scores.dtype).min)  # topk sorts
    weights = torch.exp(scores - peak).masked_fill(~there, 0.0)
    total = weights.sum(-1, keepdim=True)
    return keys.masked_fill(~there, 0), weights / total.masked_fill(total == 0, 1.0)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, p: Problem) -> Tensor:
        wide_k, wide_v = (x.to(p.dtype) for x in repeat_heads(p))
        chunk = rows_per_chunk(p)
        parts = []
        for start in range(0, q.shape[-2], chunk):
            part = p.rows(start, start + chunk)
            parts.append(choose(part, part.q.to(p.dtype), wide_k))
        keys, weights = (torch.cat(x, -2) for x in zip(*parts, strict=True))
        remember(ctx, replace(p, mask=None), keys, weights)  # the keys are chosen: no mask is needed any more
        out = _bags(keys, weights, wide_v)
        return out.to(q.dtype)

    @staticmethod
    @once
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        p, (keys, weights) = recall(ctx)
        q, k, v = p.q, p.k, p.v
        wide_k, wide_v = (x.to(p.dtype) for x in repeat_heads(p))
        d_out, scaled = d_out.to(p.dtype), q.to(p.dtype) * p.scale
        dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (wide_k, wide_v))
        d_weights = torch.empty_like(weights)
        pieces = _pieces(keys)
        for rows in pieces:
            d_weights[..., rows, :] = (_rows(wide_v, keys[..., rows, :]) * d_out[..., rows, None, :]).sum(-1)
        d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True))
        dq = _bags(keys, d_scores, wide_k) * p.scale
        for rows in pieces:
            _add_rows(dk, keys[..., rows, :], d_scores[..., rows, :, None] * scaled[..., rows, None, :])
            _add_rows(dv, keys[..., rows, :], weights[..., rows, :, None] * d_out[..., rows, None, :])
        groups = q.shape[-3] // k.shape[-3]
        if groups > 1:
            dk, dv = (torch.unflatten(x, -3, (-1, groups)).sum(-3) for x in (dk, dv))
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None


def _pieces(keys: Tensor) -> list[slice]:
    """Some query rows at a time: gathered rows are as many as kept keys, and as wide as a head."""
    rows = max(1, PIECE // max(1, keys[..., :1, :].numel()))
    return [slice(start, start + rows) for start in range(0, keys.shape[-2], rows)]


def _flat(keys: Tensor, x: Tensor) -> Tensor:
    """Places (..., t, n) of keys in the rows of x (..., s, d), all leading axes laid end to end."""
    starts = torch.arange(0, x.shape[:-1].numel(), x.shape[-2], device=x.device)
    return keys + starts.view(*x.shape[:-2], 1, 1)


def _bags(keys: Tensor, weights: Tensor, x: Tensor) -> Tensor:
    """(..., t, d): for each query the weighted sum of rows of x."""
    flat = _flat(keys, x)
    bags = F.embedding_bag(flat.flatten(0, -2), x.flatten(0, -2), mode="sum", per_sample_weights=weights.flatten(0, -2))
    return bags.view(*keys.shape[:-1], x.shape[-1])


def _rows(x: Tensor, keys: Tensor) -> Tensor:
    """(..., t, n, d): rows of x."""
    return x.flatten(0, -2)[_flat(keys, x)]


def _add_rows(total: Tensor, keys: Tensor, rows: Tensor) -> None:
    """Adds rows (..., t, n, d) to those of ``total`` (..., s, d) they belong to. Deterministic on a CPU."""
    total.view(-1, total.shape[-1]).index_add_(0, _flat(keys, total).flatten(), rows.reshape(-1, rows.shape[-1]))
