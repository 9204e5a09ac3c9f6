"""Long rows, the backward pass for keys: for each key the list of the choices that fell on it, and sums over it.

    dk_j = scale * sum over the queries i that keep j of ds_ij q_i         dv_j = the same sum of w_ij do_i

A choice is numbered (query head of the group, query, slot). The lists are a stable counting sort of the choices by key:
counts per (key, block of choices), their running sum, then each block writes its own choices in order. No sum depends
on the order in which programs run.
"""

import triton
import triton.language as tl

from .long_attend import gathered
from .tiles import place


@triton.jit
def count_choices(
    indices, counts, choices, keys, blocks, per_block, TILE: tl.constexpr
):  # fmt: skip
    """counts (key heads, keys, blocks), zero before: how many choices of a block fall on a key."""
    shared = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    indices += shared * choices
    counts += shared * keys * blocks + block
    end = tl.minimum((block + 1) * per_block, choices)
    for start in range(block * per_block, end, TILE):
        choice = start + tl.arange(0, TILE)
        key = tl.load(indices + choice, mask=choice < end, other=-1)
        tl.atomic_add(counts + key.to(tl.int64) * blocks, 1, mask=key >= 0)


@triton.jit
def place_choices(
    indices, starts, order, choices, keys, blocks, per_block, TILE: tl.constexpr
):  # fmt: skip
    """order (key heads, choices): the choices sorted by key. ``starts`` (as counts) is advanced."""
    shared = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    indices += shared * choices
    order += shared * choices
    starts += shared * keys * blocks + block
    end = tl.minimum((block + 1) * per_block, choices)
    place_in_tile = tl.arange(0, TILE)
    for start in range(block * per_block, end, TILE):
        choice = start + place_in_tile
        key = tl.load(indices + choice, mask=choice < end, other=-1)
        there = key >= 0
        # The keys again, the other way round: cheaper than turning the block.
        others = tl.load(indices + choice[None, :], mask=choice[None, :] < end, other=-2)
        same = key[:, None] == others  # (TILE, TILE)
        earlier = tl.sum((same & (place_in_tile[None, :] < place_in_tile[:, None])).to(tl.int32), 1)
        later = tl.sum((same & (place_in_tile[None, :] > place_in_tile[:, None])).to(tl.int32), 1)
        at = starts + key.to(tl.int64) * blocks
        to = tl.load(at, mask=there, other=0) + earlier
        tl.debug_barrier()  # all have read before one writes
        tl.store(order + to, choice, mask=there)
        tl.store(at, to + 1, mask=there & (later == 0))
        tl.debug_barrier()


@triton.jit
def sums_over(
    q, d_out, weights, d_scores, scales, order, begin, end, lead, q_strides, d_out_strides,
    queries, scale, budget,
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
        member = row // queries  # of the group
        query = row % queries
        change = tl.load(d_scores + choice, mask=there, other=0.0)
        weight = tl.load(weights + choice, mask=there, other=0.0)
        if SCALED:
            change *= tl.load(scales + lead + member, mask=there, other=0.0)
        else:
            change *= scale
        q_at = member.to(tl.int64) * q_strides[2] + query.to(tl.int64) * q_strides[3]
        d_at = member.to(tl.int64) * d_out_strides[2] + query.to(tl.int64) * d_out_strides[3]
        dk += tl.sum(change[:, None] * gathered(q, q_at, there, 1, WIDTH, BLOCK_D), 0)
        dv += tl.sum(weight[:, None] * gathered(d_out, d_at, there, 1, WIDTH, BLOCK_D), 0)
    return dk, dv


@triton.jit
def sum_surplus(
    q, d_out, weights, d_scores, scales, order, ends, surplus, partial,
    q_strides, d_out_strides, queries, keys, middle, heads, groups, scale, budget, choices, all_keys, steps,
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
            beyond = tl.load(surplus + tl.maximum(half, 0)) > piece
            inside = half > before
            at = tl.where(inside & beyond, half, at)
            before = tl.where(inside & (beyond == 0), half, before)
        first_piece = tl.load(surplus + tl.maximum(at - 1, 0)) * (at > 0).to(tl.int32)
        shared = at // keys
        key = at % keys
        begin = tl.load(ends + tl.maximum(at - 1, 0)) * (key > 0).to(tl.int32)
        begin += (piece - first_piece + 1) * LIMIT
        end = tl.minimum(begin + LIMIT, tl.load(ends + at))
        lead = shared * groups
        base = shared.to(tl.int64) * choices
        dk, dv = sums_over(
            q + place(q_strides, lead, middle, heads, 1), d_out + place(d_out_strides, lead, middle, heads, 1),
            weights + base, d_scores + base, scales, order + base, begin, end, lead, q_strides, d_out_strides,
            queries, scale, budget, CHUNK, WIDTH, BLOCK_D, SCALED,
        )  # fmt: skip
        to = partial + piece.to(tl.int64) * 2 * BLOCK_D + tl.arange(0, BLOCK_D)
        tl.store(to, dk)
        tl.store(to + BLOCK_D, dv)


@triton.jit
def gather_keys(
    q, d_out, weights, d_scores, scales, order, ends, surplus, partial, dk, dv,
    q_strides, d_out_strides, dk_strides, dv_strides,
    queries, keys, middle, heads, groups, scale, budget, choices,
    LIMIT: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """dk and dv of one key. ``ends`` (key heads * keys): where its list ends within the order of its head."""
    at = tl.program_id(0)
    shared = at // keys
    key = at % keys
    begin = tl.load(ends + tl.maximum(at - 1, 0)) * (key > 0).to(tl.int32)
    end = tl.minimum(begin + LIMIT, tl.load(ends + at))
    lead = shared * groups
    base = shared.to(tl.int64) * choices
    dk_row, dv_row = sums_over(
        q + place(q_strides, lead, middle, heads, 1), d_out + place(d_out_strides, lead, middle, heads, 1),
        weights + base, d_scores + base, scales, order + base, begin, end, lead, q_strides, d_out_strides,
        queries, scale, budget, CHUNK, WIDTH, BLOCK_D, SCALED,
    )  # fmt: skip
    width = tl.arange(0, BLOCK_D)
    first_piece = tl.load(surplus + tl.maximum(at - 1, 0)) * (at > 0).to(tl.int32)
    for piece in range(first_piece, tl.load(surplus + at)):
        more = partial + (width.to(tl.int64) * 0 + piece) * (2 * BLOCK_D) + width
        dk_row += tl.load(more)
        dv_row += tl.load(more + BLOCK_D)
    dk += place(dk_strides, shared, middle, heads // groups, 1) + key.to(tl.int64) * dk_strides[3] + width
    dv += place(dv_strides, shared, middle, heads // groups, 1) + key.to(tl.int64) * dv_strides[3] + width
    tl.store(dk, dk_row.to(dk.dtype.element_ty), mask=width < WIDTH)
    tl.store(dv, dv_row.to(dv.dtype.element_ty), mask=width < WIDTH)


@triton.jit
def mark_kept(indices, words, count, queries, words_per_row, budget, TILE: tl.constexpr):
    """Sets the bit of every choice in words (leads, words of 32 keys, queries), zero before."""
    choice = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    key = tl.load(indices + choice, mask=choice < count, other=-1)
    row = choice // budget
    at = (row // queries * words_per_row + (key >> 5)) * queries + row % queries
    tl.atomic_or(words + at, 1 << (key & 31), mask=key >= 0)
