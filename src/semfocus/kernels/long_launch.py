"""Long rows: workspaces, tile sizes and launches. Shapes as in ``launch.py``; memory beside the results is bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import WIDEST_HEAD, launch
from .integers import cdiv, padded
from .launch import Options, rows_contiguous, sizes
from .long_attend import attend_to_best, gather_queries
from .long_lists import gather_keys, mark_kept, sum_surplus
from .long_search import LISTS as LISTS_IN_KERNEL
from .long_search import TILE_KEYS as TILE_KEYS_IN_KERNEL
from .long_search import bounds, candidates, group_maxima, search_again

TILE_KEYS, LISTS = int(TILE_KEYS_IN_KERNEL.value), int(LISTS_IN_KERNEL.value)
#: Bytes of workspace a launch may have; rows beyond that wait for the next one.
WORKSPACE = 2**29
#: Queries of a block.
BLOCK_M = 64
#: Programs that fill a GPU.
PROGRAMS = 512
#: Up to this K the bound is found by taking the best maximum away again and again.
FEW_BOUND = 16
#: The bound is the K-th largest of at least this many times K group maxima.
GROUPS_PER_KEPT = 4
#: (step, keys per kept key from which on): the bound comes from every step-th tile of keys.
SAMPLING = ((4, 4096), (2, 512), (1, 0))
#: Rows of a program that gathers, and candidates of all its rows, if it ranks them first.
ROWS, WIDEST_RANKING = 4, 256
#: Choices of a key that one program sums up.
LIST_LIMIT = 256
#: (slope, intercept): from slope * k + intercept keys on, the backward pass gathers instead of multiplying tiles;
#: twice as many if causal, where tiles cost half. Measured on an H200.
GATHER_FROM = (46, 370)


@dataclass(frozen=True)
class Plan:
    """How the rows of a call are searched. All counts are Python numbers: nothing is read back from the GPU."""

    block_m: int
    segments: int
    step: int
    splits: int
    room: int  # words in a list
    candidates: int
    expected: int  # candidates, where keys are independent

    @property
    def alone(self) -> bool:
        """Does one segment hold all maxima of a row?"""
        return self.segments == 1

    @property
    def slots(self) -> int:
        """Words of a list to look at at once: hardly any list has more."""
        return min(self.room, padded(2 * cdiv(self.expected, LISTS * self.splits), 8))

    @property
    def maxima(self) -> int:
        """Numbers of a row that one kernel writes for another."""
        return 0 if self.alone else self.segments * TILE_KEYS

    @property
    def bytes_per_row(self) -> int:
        lists = self.splits * LISTS
        return 4 * self.maxima + 4 + lists * (8 * self.room + 8) + 8 * self.candidates


def plan(leads: int, queries: int, keys: int, budget: int) -> Plan:
    sampling = next(step for step, ratio in SAMPLING if keys >= ratio * budget)
    block_m = min(BLOCK_M, padded(queries, 16))
    tiles, blocks = cdiv(keys, TILE_KEYS), leads * cdiv(queries, block_m)
    share = cdiv(PROGRAMS, blocks)  # programs a block of queries may have to itself
    segments = min(tiles, max(cdiv(GROUPS_PER_KEPT * budget, TILE_KEYS), min(share, 32)))
    splits = min(tiles, share, 16)
    # Lists and candidates are sized for six deviations above what independent keys give: K from the sample, a few more
    # as groups may hold several, and as many for each other step. A bound from all keys leaves hardly more than K.
    listed, spread = sampling * budget / (LISTS * splits), math.sqrt(1.13 * budget * (sampling - 1) * sampling)
    room = padded(max(budget, math.ceil(listed + 6 * math.sqrt(listed * sampling)) + 4))
    most = padded(math.ceil((1.5 if sampling == 1 else 1.13 * sampling) * budget + 6 * spread) + 16)
    return Plan(block_m, segments, segments * sampling, splits, room, most, sampling * budget)


def signed(q: Tensor, options: Options) -> Tensor:
    """The queries times the sign of the scale: the order of their products with the keys is that of the scores."""
    if options.scales is not None:
        return q * torch.sign(options.scales).view(*q.shape[:3], 1, 1).to(q.dtype)
    return q if options.scale > 0 else q * (-1 if options.scale < 0 else 0)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (n0, n1, h, t, d) times a power of two, as float16, and the Euclidean norm of its rows.

    The rounding error of a row is at most 2^-11 |row| + sqrt(d) 2^-24: see ``half.py``.
    """
    half, _ = launch.halves(x)
    return half, half.float().norm(dim=-1)


def margins(q_norms: Tensor, k_norms: Tensor, width: int, groups: int) -> Tensor:
    """(n0, n1, h, t): twice the error that rounding to halves can make in a query's score, for any key."""
    largest = k_norms.amax(-1).repeat_interleave(groups, -1)[..., None]  # (n0, n1, h, 1)
    share, rest = 2.0**-11 + width * 2.0**-24, math.sqrt(width) * 2.0**-24
    return 2.1 * ((share * q_norms + rest) * largest + (share * largest + rest) * q_norms)


def forward(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out (n0, n1, t, h, d), lse (n0, n1, h, t) in base 2, kept keys and their weights (n0, n1, h, t, budget)."""
    q, k, v = (rows_contiguous(x) for x in (q, k, v))
    out, lse, indices, weights = empty_results(q, options.budget)
    queries, keys, *_, groups = counts = sizes(q, k)
    leads, width = q.shape[:3].numel(), q.shape[4]
    p = plan(leads, queries, keys, options.budget)
    order = rows_contiguous(signed(q, options))
    halved = q.dtype == torch.float32
    search_q, search_k, margin = order, k, lse
    if halved:
        (search_q, q_norms), (search_k, k_norms) = halves(order), halves(k)
        margin = margins(q_norms, k_norms, width, groups).contiguous()
    blocks = leads * cdiv(queries, p.block_m)
    together = max(1, min(blocks, WORKSPACE // (p.bytes_per_row * p.block_m)))
    work = _workspace(q, p, together * p.block_m)
    mask = q if options.mask is None else options.mask.view(torch.uint8)
    scales = q if options.scales is None else options.scales
    shape = {"WIDTH": width, "BLOCK_D": padded(width, 16)}
    seen = shape | {"BLOCK_M": p.block_m, "CAUSAL": options.causal, "MASKED": options.mask is not None}
    stages = 3 if width <= 64 else 2
    steps, rows = keys.bit_length(), max(1, min(rows_of(width), WIDEST_RANKING // p.candidates))
    into = out.transpose(2, 3)
    for first in range(0, blocks, together):
        here = min(together, blocks - first)
        common = (*counts, options.offset, first)
        fast = [search_q.stride()[:4], search_k.stride()[:4], options.mask_strides]
        group_maxima[(here * p.segments,)](
            search_q, search_k, mask, margin, work.maxima, work.bound, *fast, *common, p.segments, p.step,
            options.budget, **seen, ALONE=p.alone, FEW=options.budget <= FEW_BOUND, HALVED=halved,
            num_warps=4, num_stages=stages,
        )  # fmt: skip
        if not p.alone:
            _bounds(work, margin, p, here, queries, first, options.budget, halved)
        candidates[(here * p.splits,)](
            search_q, search_k, mask, work.bound, work.lists, work.used, work.totals, *fast, *common, p.splits,
            ROOM=p.room, **seen, num_warps=4, num_stages=stages,
        )  # fmt: skip
        search_again[(here,)](
            order, k, mask, work.bound, work.lists, work.used, work.totals,
            order.stride()[:4], k.stride()[:4], options.mask_strides, *common, p.splits, options.budget, steps,
            CANDIDATES=p.candidates, ROOM=p.room, ALL_LISTS=padded(p.splits * LISTS), **seen,
            num_warps=4, num_stages=1,
        )  # fmt: skip
        attend_to_best[(here * p.block_m // rows,)](
            q, k, v, scales, work.lists, work.used, work.columns, work.scores, into, lse, indices, weights,
            q.stride()[:4], k.stride()[:4], v.stride()[:4], into.stride()[:4],
            queries, *counts[2:], options.scale, first, p.splits, options.budget, steps,
            BLOCK_M=p.block_m, ROWS=rows, ROOM=p.room, SLOTS=p.slots, ALL_LISTS=padded(p.splits * LISTS),
            CANDIDATES=p.candidates, KEPT=padded(options.budget),
            CHUNK=chunk_of(p.expected + p.expected // 4 + 4, width, rows),
            VALUES=chunk_of(options.budget, width, rows),
            SCALED=options.scales is not None, num_warps=max(1, min(8, p.candidates // 512)), **shape,
            SIGHTED=options.mask is None and not (options.causal and options.offset < 0),
        )  # fmt: skip
    return out, lse, indices, weights


@dataclass(frozen=True)
class Workspace:
    maxima: Tensor
    bound: Tensor
    lists: Tensor
    used: Tensor
    totals: Tensor
    columns: Tensor
    scores: Tensor


def _workspace(like: Tensor, p: Plan, rows: int) -> Workspace:
    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return like.new_empty(shape, dtype=dtype)

    lists = (rows, p.splits, LISTS)
    return Workspace(
        maxima=made(rows, p.maxima),
        bound=made(rows),
        lists=made(*lists, p.room, dtype=torch.int64),
        used=made(*lists, dtype=torch.int32),
        totals=made(*lists, dtype=torch.int32),
        columns=made(rows, p.candidates, dtype=torch.int32),
        scores=made(rows, p.candidates),
    )


def _bounds(
    work: Workspace, margin: Tensor, p: Plan, blocks: int, queries: int, first: int, budget: int, halved: bool
) -> None:
    columns = padded(p.segments * TILE_KEYS)
    rows = min(p.block_m, max(1, 4096 // columns))
    bounds[(blocks * (p.block_m // rows),)](
        work.maxima, margin, work.bound, queries, first, p.segments, budget,
        BLOCK_M=p.block_m, ROWS=rows, COLUMNS=columns, FEW=budget <= FEW_BOUND, HALVED=halved, num_warps=4,
    )  # fmt: skip


def rows_of(width: int) -> int:
    """Rows of a program that gathers: as many as leave 64 numbers to a thread of its only warp.

    >>> [rows_of(width) for width in (16, 64, 128, 256)]
    [4, 4, 2, 1]
    """
    return max(1, min(ROWS, 256 // padded(width, 16)))


def chunk_of(gathered: int, width: int, rows: int = 1) -> int:
    """Keys to gather at once for each of ``rows``: about as many as there are, but at most 64 numbers to a thread."""
    return max(8, min(padded(gathered), 2048 // (padded(width, 16) * rows)))


def empty_results(q: Tensor, budget: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n0, n1, h, t, d = q.shape
    kept = (n0, n1, h, t, budget)
    return (
        q.new_empty((n0, n1, t, h, d)),
        q.new_empty((n0, n1, h, t), dtype=torch.float32),
        q.new_empty(kept, dtype=torch.int32),
        q.new_empty(kept, dtype=torch.float32),
    )


def gathers(queries: int, keys: int, budget: int, causal: bool) -> bool:
    """Is the sparse backward pass the faster one?"""
    slope, intercept = GATHER_FROM
    return keys >= (slope * budget + intercept) * (2 if causal and queries > 1 else 1)


def backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, indices: Tensor, weights: Tensor,
    options: Options, dq: Tensor, dk: Tensor, dv: Tensor,
) -> None:  # fmt: skip
    """Fills dq, dk and dv."""
    q, k, v = (rows_contiguous(x) for x in (q, k, v))
    queries, keys = q.shape[3], k.shape[3]
    # Tiles know neither wide heads nor tensor cores for exact float32.
    if options.exact or q.shape[4] > WIDEST_HEAD or gathers(queries, keys, options.budget, options.causal):
        _sparse_backward(d_out, q, k, v, out, indices, weights, options, dq, dk, dv)
        return
    inputs = launch.prepare(q, k, v, options.exact)
    words = q.new_zeros((*q.shape[:3], launch.words_per_row(keys), launch.padded_rows(queries)), dtype=torch.int32)
    rows, tile = indices.shape[:4].numel(), 1024
    mark_kept[(cdiv(rows * options.budget, tile),)](
        indices, words, rows * options.budget, queries, words.shape[4], words.shape[3], options.budget, TILE=tile
    )
    launch.backward(d_out, inputs, out, lse, words, options, dq, dk, dv)


def _sparse_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, indices: Tensor, weights: Tensor, options: Options,
    dq: Tensor, dk: Tensor, dv: Tensor,
) -> None:  # fmt: skip
    out, d_out = out.transpose(2, 3), rows_contiguous(d_out.transpose(2, 3))  # (n0, n1, h, t, d)
    queries, keys, middle, heads, groups = sizes(q, k)
    budget, width = options.budget, q.shape[4]
    flags: dict[str, Any] = {
        "WIDTH": width,
        "BLOCK_D": padded(width, 16),
        "SCALED": options.scales is not None,
    }
    scales = q if options.scales is None else options.scales
    d_scores = torch.empty_like(weights)
    rows = rows_of(width)
    gather_queries[(q.shape[:3].numel() * cdiv(queries, rows),)](
        k, v, out, d_out, scales, indices, weights, dq, d_scores,
        k.stride()[:4], v.stride()[:4], out.stride()[:4], d_out.stride()[:4], dq.stride()[:4],
        queries, middle, heads, groups, options.scale, budget,
        ROWS=rows, CHUNK=chunk_of(budget, width, rows), num_warps=1, **flags,
    )  # fmt: skip
    order, ends = sorted_choices(indices, k.shape[:3].numel(), keys)
    lengths = ends.diff(prepend=ends.new_zeros(1))
    surplus = ((lengths - 1).clamp(min=0) // LIST_LIMIT).cumsum(0, dtype=ends.dtype)
    flags["FAR"] = ends.dtype == torch.int64
    pieces = max(1, order.numel() // LIST_LIMIT)
    partial = q.new_empty((pieces, 2, flags["BLOCK_D"]), dtype=torch.float32)
    sides = (q, d_out, weights, d_scores, scales, order, ends, surplus, partial)
    strides = (q.stride()[:4], d_out.stride()[:4])
    counts = (queries, keys, middle, heads, groups, options.scale, budget)
    sum_surplus[(pieces,)](
        *sides, *strides, *counts, len(ends), (len(ends) + 1).bit_length(),
        LIMIT=LIST_LIMIT, CHUNK=chunk_of(64, width), num_warps=1, **flags,
    )  # fmt: skip
    average = order.numel() // len(ends)
    gather_keys[(len(ends) // keys * cdiv(keys, rows),)](
        *sides, dk, dv, *strides, dk.stride()[:4], dv.stride()[:4], *counts,
        ROWS=rows, LIMIT=LIST_LIMIT, CHUNK=chunk_of(average, width, rows), num_warps=1, **flags,
    )  # fmt: skip


def sorted_choices(indices: Tensor, key_heads: int, keys: int) -> tuple[Tensor, Tensor]:
    """order: all choices by (key head, key), equals in order; ends (key heads * keys): where each key's list ends."""
    last = key_heads * keys
    wide = torch.int64 if last >= 2**31 else torch.int32
    heads = torch.arange(0, last, keys, dtype=wide, device=indices.device)[:, None]
    flat = indices.view(key_heads, -1).to(wide)
    places, order = torch.sort(torch.where(flat < 0, last, flat + heads).flatten(), stable=True)
    firsts = torch.arange(1, last + 1, dtype=wide, device=indices.device)
    return order, torch.searchsorted(places, firsts, out_int32=order.numel() < 2**31)
