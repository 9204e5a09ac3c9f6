"""Long rows, the backward pass for keys: for each key the list of the choices that fell on it, and sums over it.

    dk_j = scale * sum over the queries i that keep j of ds_ij q_i         dv_j = the same sum of w_ij do_i

A choice is numbered (lead, query, slot). The lists are a stable sort of all choices by key, so no sum depends on the
order in which programs run. A list of popular keys is cut into pieces, which are summed up side by side.
"""

import triton
import triton.language as tl

from .long_attend import gathered
from .tiles import place, store_rows


@triton.jit
def sums_over(
    q, d_out, weights, d_scores, scales, order, begin, end, lead, q_strides, d_out_strides, queries, scale, budget,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """(R, BLOCK_D) twice: the sums for dk and dv over some of each key's choices, from ``begin`` (R,) up to ``end``.

    ``lead`` is the group's first head. FAR: there are 2^31 choices or more.
    """
    dk = tl.zeros((ROWS, BLOCK_D), tl.float32)
    dv = tl.zeros((ROWS, BLOCK_D), tl.float32)
    for start in range(0, tl.max(end - begin, 0).to(tl.int32), CHUNK):
        slot = begin[:, None] + start + tl.arange(0, CHUNK)[None, :]
        there = slot < end[:, None]
        choice = tl.load(order + slot, mask=there, other=0)
        if not FAR:
            choice = choice.to(tl.int32)  # 64-bit divisions are slow
        row = choice // budget
        member = row // queries - lead  # of the group
        query = row % queries
        change = tl.load(d_scores + choice, mask=there, other=0.0)
        weight = tl.load(weights + choice, mask=there, other=0.0)
        if SCALED:
            change *= tl.load(scales + lead + member, mask=there, other=0.0)
        else:
            change *= scale
        q_at = member.to(tl.int64) * q_strides[2] + query.to(tl.int64) * q_strides[3]
        d_at = member.to(tl.int64) * d_out_strides[2] + query.to(tl.int64) * d_out_strides[3]
        dk += tl.sum(change[:, :, None] * gathered(q, q_at, there, 1, WIDTH, BLOCK_D), 1)
        dv += tl.sum(weight[:, :, None] * gathered(d_out, d_at, there, 1, WIDTH, BLOCK_D), 1)
    return dk, dv


@triton.jit
def sum_surplus(
    q, d_out, weights, d_scores, scales, order, ends, surplus, partial, q_strides, d_out_strides,
    queries, keys, middle, heads, groups, scale, budget, all_keys, steps,
    LIMIT: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    """partial (pieces, 2, BLOCK_D): sums over what lists hold beyond their first LIMIT choices, LIMIT at a time.

    ``surplus`` (key heads * keys) is the running sum of the number of such pieces; 2^steps exceeds its length.
    """
    piece = tl.program_id(0)
    if piece < tl.load(surplus + all_keys - 1):
        before = piece * 0 - 1
        at = before + all_keys
        for _ in range(steps):  # the first key whose running sum exceeds the piece
            half = (before + at) >> 1
            inside = half > before
            beyond = tl.load(surplus + tl.maximum(half, 0)) > piece
            at = tl.where(inside & beyond, half, at)
            before = tl.where(inside & (beyond == 0), half, before)
        first_piece = tl.load(surplus + at - 1, mask=at > 0, other=0)
        begin = tl.load(ends + at - 1, mask=at > 0, other=0) + (piece - first_piece + 1) * LIMIT
        end = tl.minimum(begin + LIMIT, tl.load(ends + at))
        lead = at // keys * groups
        only = tl.arange(0, 1)
        dk, dv = sums_over(
            q + place(q_strides, lead, middle, heads, 1), d_out + place(d_out_strides, lead, middle, heads, 1),
            weights, d_scores, scales, order, begin + only, end + only, lead, q_strides, d_out_strides,
            queries, scale, budget, 1, CHUNK, WIDTH, BLOCK_D, SCALED, FAR,
        )  # fmt: skip
        to = partial + piece.to(tl.int64) * (2 * BLOCK_D) + tl.arange(0, BLOCK_D)[None, :]
        tl.store(to, dk)
        tl.store(to + BLOCK_D, dv)


@triton.jit
def gather_keys(
    q, d_out, weights, d_scores, scales, order, ends, surplus, partial, dk, dv,
    q_strides, d_out_strides, dk_strides, dv_strides, queries, keys, middle, heads, groups, scale, budget,
    ROWS: tl.constexpr, LIMIT: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    SCALED: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """dk and dv of some keys of a head. ``ends`` (key heads * keys): where a key's list ends in ``order``."""
    blocks = tl.cdiv(keys, ROWS)
    shared = tl.program_id(0) // blocks
    key = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    at = shared * keys + key
    there, later = key < keys, (key < keys) & (at > 0)
    begin = tl.load(ends + at - 1, mask=later, other=0)
    end = tl.minimum(begin + LIMIT, tl.load(ends + at, mask=there, other=0))
    lead = shared * groups
    dk_rows, dv_rows = sums_over(
        q + place(q_strides, lead, middle, heads, 1), d_out + place(d_out_strides, lead, middle, heads, 1),
        weights, d_scores, scales, order, begin, end, lead, q_strides, d_out_strides, queries, scale, budget,
        ROWS, CHUNK, WIDTH, BLOCK_D, SCALED, FAR,
    )  # fmt: skip
    first = tl.load(surplus + at - 1, mask=later, other=0)
    pieces = tl.load(surplus + at, mask=there, other=0) - first
    for piece in range(0, tl.max(pieces, 0).to(tl.int32)):
        more = (first + piece).to(tl.int64)[:, None] * (2 * BLOCK_D) + tl.arange(0, BLOCK_D)[None, :]
        inside = (piece < pieces)[:, None] & (more >= 0)
        dk_rows += tl.load(partial + more, mask=inside, other=0.0)
        dv_rows += tl.load(partial + more + BLOCK_D, mask=inside, other=0.0)
    dk += place(dk_strides, shared, middle, heads // groups, 1)
    dv += place(dv_strides, shared, middle, heads // groups, 1)
    store_rows(dk, key, keys, dk_strides[3], dk_rows, WIDTH, BLOCK_D)
    store_rows(dv, key, keys, dv_strides[3], dv_rows, WIDTH, BLOCK_D)


@triton.jit
def mark_kept(indices, words, count, queries, padded, words_per_row, budget, TILE: tl.constexpr):
    """Sets the bit of every choice in words (leads, words of 32 keys, padded rows), zero before."""
    choice = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    key = tl.load(indices + choice, mask=choice < count, other=-1)
    row = choice // budget
    at = (row // queries * words_per_row + (key >> 5)) * padded + row % queries
    tl.atomic_or(words + at, 1 << (key & 31), mask=key >= 0)
