"""Long rows, the backward pass for keys: for each key the list of the choices that fell on it, and sums over it.

    dk_j = scale * sum over the queries i that keep j of ds_ij q_i         dv_j = the same sum of w_ij do_i

A choice is numbered (lead, query, slot). The lists are a stable sort of all choices by key, so no sum depends on the
order in which programs run. A list of popular keys is cut into pieces, which are summed up side by side.
"""

import triton
import triton.language as tl

from .long_attend import gathered
from .tiles import place


@triton.jit
def sums_over(
    q, d_out, weights, d_scores, scales, order, begin, end, lead, q_strides, d_out_strides, queries, scale, budget,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """(BLOCK_D,) twice: the sums for dk and dv over some of a key's choices. ``lead`` is the group's first head."""
    dk = tl.zeros((BLOCK_D,), tl.float32)
    dv = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(begin, end, CHUNK):
        slot = start + tl.arange(0, CHUNK)
        there = slot < end
        choice = tl.load(order + slot, mask=there, other=0)
        row = choice // budget
        member = row // queries - lead  # of the group
        query = row % queries
        change = tl.load(d_scores + choice, mask=there, other=0.0)
        weight = tl.load(weights + choice, mask=there, other=0.0)
        if SCALED:
            change *= tl.load(scales + lead + member, mask=there, other=0.0)
        else:
            change *= scale
        q_at = member * q_strides[2] + query * q_strides[3]
        d_at = member * d_out_strides[2] + query * d_out_strides[3]
        dk += tl.sum(change[:, None] * gathered(q, q_at, there, 1, WIDTH, BLOCK_D), 0)
        dv += tl.sum(weight[:, None] * gathered(d_out, d_at, there, 1, WIDTH, BLOCK_D), 0)
    return dk, dv


@triton.jit
def sum_surplus(
    q, d_out, weights, d_scores, scales, order, ends, surplus, partial, q_strides, d_out_strides,
    queries, keys, middle, heads, groups, scale, budget, all_keys, steps,
    LIMIT: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr,
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
        dk, dv = sums_over(
            q + place(q_strides, lead, middle, heads, 1), d_out + place(d_out_strides, lead, middle, heads, 1),
            weights, d_scores, scales, order, begin, end, lead, q_strides, d_out_strides, queries, scale, budget,
            CHUNK, WIDTH, BLOCK_D, SCALED,
        )  # fmt: skip
        to = partial + piece.to(tl.int64) * (2 * BLOCK_D) + tl.arange(0, BLOCK_D)
        tl.store(to, dk)
        tl.store(to + BLOCK_D, dv)


@triton.jit
def gather_keys(
    q, d_out, weights, d_scores, scales, order, ends, surplus, partial, dk, dv,
    q_strides, d_out_strides, dk_strides, dv_strides, queries, keys, middle, heads, groups, scale, budget,
    LIMIT: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """dk and dv of one key. ``ends`` (key heads * keys): where its list ends in ``order``."""
    at = tl.program_id(0)
    shared = at // keys
    key = at % keys
    begin = tl.load(ends + at - 1, mask=at > 0, other=0)
    end = tl.minimum(begin + LIMIT, tl.load(ends + at))
    lead = shared * groups
    dk_row, dv_row = sums_over(
        q + place(q_strides, lead, middle, heads, 1), d_out + place(d_out_strides, lead, middle, heads, 1),
        weights, d_scores, scales, order, begin, end, lead, q_strides, d_out_strides, queries, scale, budget,
        CHUNK, WIDTH, BLOCK_D, SCALED,
    )  # fmt: skip
    width = tl.arange(0, BLOCK_D)
    for piece in range(tl.load(surplus + at - 1, mask=at > 0, other=0), tl.load(surplus + at)):
        more = partial + (width.to(tl.int64) * 0 + piece) * (2 * BLOCK_D) + width
        dk_row += tl.load(more)
        dv_row += tl.load(more + BLOCK_D)
    dk += place(dk_strides, shared, middle, heads // groups, 1) + key.to(tl.int64) * dk_strides[3] + width
    dv += place(dv_strides, shared, middle, heads // groups, 1) + key.to(tl.int64) * dv_strides[3] + width
    tl.store(dk, dk_row.to(dk.dtype.element_ty), mask=width < WIDTH)
    tl.store(dv, dv_row.to(dv.dtype.element_ty), mask=width < WIDTH)


@triton.jit
def mark_kept(indices, words, count, queries, padded, words_per_row, budget, TILE: tl.constexpr):
    """Sets the bit of every choice in words (leads, words of 32 keys, padded rows), zero before."""
    choice = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    key = tl.load(indices + choice, mask=choice < count, other=-1)
    row = choice // budget
    at = (row // queries * words_per_row + (key >> 5)) * padded + row % queries
    tl.atomic_or(words + at, 1 << (key & 31), mask=key >= 0)
