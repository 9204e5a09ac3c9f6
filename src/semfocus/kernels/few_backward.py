"""The backward pass where a query keeps a few keys: only their scores are computed again, and only from halves.

    dv = (D w)^T do       ds = w (D (do . v) - delta)       dq = scale ds k       dk = scale ds^T q

with the letters of ``backward.py``. ``few_queries`` finds a query's kept columns in its bits, gathers their keys and
values, and leaves what it computed from them as lists: int16 (leads, K, 3, padded rows), for each slot of a row its
column and, as float16, the weight that dropout left and ds. ``few_keys`` puts the lists back into matrices, tile by
tile, and multiplies. It goes through two queries at a time, whose halves share a register. No atomics.

Letters: K kept keys; M queries and N keys of a tile.
"""

import triton
import triton.language as tl

from .backward import facts_of_rows
from .half import store_with_unit
from .tiles import (
    INTERPRETED,
    LOG2_E,
    UNLIFT,
    load_rows,
    ones_in,
    padded_rows,
    place,
)

#: The column of a slot without a key. No key is so far, and read as a float16 it is NaN, which equals nothing.
NONE = tl.constexpr(0x7FFF)
#: As many words of bits as a row may have: which of them are not empty is a word again.
WORDS = tl.constexpr(32)
UNROLLED = tl.constexpr(8)
HIGH_HALF = tl.constexpr(-(2**16))
#: A weight of 1, lifted.
HEAVIEST = tl.constexpr(2.0**15)


@triton.jit
def lowest_bit(word):
    """The index of the lowest bit that is set, 32 if none is."""
    return ones_in((word & -word) - 1)


@triton.jit
def write_columns(to, words, rows, queries, keys, stride, K: tl.constexpr):
    """The first K columns that each row keeps, in order; NONE where it keeps fewer."""
    filled = rows * 0  # the words that are not empty, each a bit
    count = tl.cdiv(keys, 32)
    for first in range(0, count, UNROLLED):
        for i in tl.static_range(UNROLLED):
            index = tl.minimum(first + i, count - 1)  # the last one again is no harm
            filled |= tl.where(tl.load(words + index * stride + rows) != 0, 1 << index, 0)
    filled = tl.where(rows < queries, filled, 0)  # anything may stand beyond the last one
    at, word = rows * 0, rows * 0
    for slot in tl.static_range(K):
        done = word == 0
        at = tl.where(done, lowest_bit(filled), at)
        word = tl.where(done, tl.load(words + at * stride + rows, mask=done & (filled != 0), other=0), word)
        filled = tl.where(done, filled & (filled - 1), filled)
        tl.store(to + 3 * slot * stride, tl.where(word != 0, at * 32 + lowest_bit(word), NONE).to(tl.int16))
        word = word & (word - 1)


@triton.jit
def spared_columns(bits, rows, stride, column):
    """bool (M,): does dropout spare the weight of each row at its ``column``? ``bits``: its choices, of a lead."""
    word = tl.load(bits + (column >> 5) * stride + rows, mask=column != NONE, other=0)
    return ((word >> (column & 31)) & 1) != 0


@triton.jit
def bits_of_half(x):
    return x.to(tl.float16).to(tl.int16, bitcast=True)


@triton.jit
def few_queries(
    q, k, v, out, d_out, lse, words, bits, scales, q_units, k_units, v_units, d_out_units, dq, dq_units, lists,
    q_strides, k_strides, v_strides, d_out_strides, out_strides, dq_strides,
    queries, keys, middle, heads, groups,
    scale, factor, shrink,
    K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    DROPOUT: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """dq, and the lists, also of the rows beyond the last query: a program takes a block of queries.

    A slot without a key has a key and a value of zeros, so that it adds nothing here, and no tile has its column.
    """
    blocks = tl.cdiv(queries, BLOCK_M)
    lead = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    q_tile, d_out_tile, row_lse, row_delta, scale, step, result_scale = facts_of_rows(
        q, out, d_out, lse, scales, q_units, k_units, v_units, d_out_units, q_strides, out_strides, d_out_strides,
        lead, rows, queries, middle, heads, groups, scale, factor, shrink, WIDTH, BLOCK_D, SCALED, True,
    )  # fmt: skip
    q_tile, d_out_tile = q_tile.to(tl.float32), d_out_tile.to(tl.float32)
    k += place(k_strides, lead, middle, heads, groups)
    v += place(v_strides, lead, middle, heads, groups)
    stride = padded_rows(queries)
    words += lead.to(tl.int64) * stride * tl.cdiv(keys, 32)
    bits += lead.to(tl.int64) * stride * tl.cdiv(keys, 32)
    lists += lead.to(tl.int64) * (3 * K) * stride + rows
    write_columns(lists, words, rows, queries, keys, stride, K)
    tl.debug_barrier()  # they are read by other threads
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for _ in range(K):
        column = tl.load(lists).to(tl.int32)
        k_rows = load_rows(k, column, keys, k_strides[3], WIDTH, BLOCK_D).to(tl.float32)
        v_rows = load_rows(v, column, keys, v_strides[3], WIDTH, BLOCK_D).to(tl.float32)
        weight = tl.exp2(tl.sum(q_tile * k_rows, 1) * (scale * LOG2_E) - row_lse)
        # The scores behind row_lse were added up in another order; a weight is not more than 1, and a half has an end.
        weight = tl.where(weight > HEAVIEST, HEAVIEST, weight)
        change = tl.sum(d_out_tile * v_rows, 1) * (factor * step) - row_delta
        dropped = weight
        if DROPOUT:
            spared = spared_columns(bits, rows, stride, column)
            dropped = tl.where(spared, weight, 0.0)
            change = tl.where(spared, change, -row_delta)
        d_score = (weight * change).to(tl.float16)
        acc += d_score.to(tl.float32)[:, None] * k_rows
        tl.store(lists + stride, bits_of_half(dropped))
        tl.store(lists + 2 * stride, bits_of_half(d_score))
        lists += 3 * stride
    dq += place(dq_strides, lead, middle, heads, 1)
    result = acc * result_scale
    store_with_unit(dq, dq_units, lead, first, rows, queries, dq_strides[3], result, True, WIDTH, BLOCK_D, BLOCK_M)


@triton.jit
def put(dropped, d_scores, keys, columns, new_dropped, new_d_scores):
    """``dropped`` and ``d_scores`` (N, M / 2) with the new ones (1, M / 2) at their ``columns``, where they were 0.

    All numbers are int32 and hold two halves, of neighbouring queries: also the columns, and the ``keys`` (N, 1), which
    hold each key twice. These are compared as if they were float16: that takes one instruction for both. On a GPU the
    rest is products with 0 and 1: a row of NaN makes the gradients of all keys NaN, not only of those it keeps.
    """
    if INTERPRETED:
        apart = columns ^ keys
        same = tl.where((apart & 0xFFFF) == 0, 0xFFFF, 0) | tl.where((apart & HIGH_HALF) == 0, HIGH_HALF, 0)
        return dropped | (same & new_dropped), d_scores | (same & new_d_scores)
    same = tl.inline_asm_elementwise(
        "set.eq.f16x2.f16x2 $0, $1, $2;", "=r,r,r", [columns, keys], dtype=tl.int32, is_pure=True, pack=1
    )
    return add_product(same, new_dropped, dropped), add_product(same, new_d_scores, d_scores)


@triton.jit
def add_product(a, b, acc):
    """acc + a b, of pairs of float16."""
    return tl.inline_asm_elementwise(
        "fma.rn.f16x2 $0, $1, $2, $3;", "=r,r,r,r", [a, b, acc], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def halves_in(pairs, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    """int32 (N, M / 2) -> float16 (N, M)."""
    both = tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16))
    return tl.reshape(both, (BLOCK_N, BLOCK_M)).to(tl.float16, bitcast=True)


@triton.jit(do_not_specialize=["offset"])
def few_keys(
    q, d_out, lists, scales, q_units, v_units, d_out_units, dk, dk_units, dv, dv_units,
    q_strides, d_out_strides, dk_strides, dv_strides,
    queries, keys, middle, heads, groups,
    scale, offset, factor, shrink,
    K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """dk and dv: a program takes a block of keys through all queries of the ``groups`` heads that share them.

    ``lists`` as pairs of rows: int32 (leads, K, 3, padded rows / 2).
    """
    blocks = tl.cdiv(keys, BLOCK_N)
    shared = tl.program_id(0) // blocks  # counts (n0, n1, key head)
    first = tl.program_id(0) % blocks * BLOCK_N
    columns = first + tl.arange(0, BLOCK_N)
    twice = (columns | (columns << 16))[:, None]
    stride = padded_rows(queries) // 2
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    begin = 0
    if CAUSAL:  # the first query that sees any of these keys
        begin = tl.maximum(first - offset, 0) // BLOCK_M * BLOCK_M
    for group in range(groups):
        lead = shared * groups + group
        q_head = q + place(q_strides, lead, middle, heads, 1)
        d_out_head = d_out + place(d_out_strides, lead, middle, heads, 1)
        lists_head = lists + lead.to(tl.int64) * (3 * K) * stride
        dk_scale = scale
        if SCALED:
            dk_scale = tl.load(scales + lead)
        d_unit = tl.load(d_out_units + lead)
        dv_scale = factor * d_unit * UNLIFT
        dk_scale = dk_scale / shrink * tl.load(q_units + lead) * d_unit * tl.load(v_units + shared)
        dk_head = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        dv_head = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        for start in range(begin, queries, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            q_tile = load_rows(q_head, rows, queries, q_strides[3], WIDTH, BLOCK_D)
            d_out_tile = load_rows(d_out_head, rows, queries, d_out_strides[3], WIDTH, BLOCK_D)
            pairs = lists_head + start // 2 + tl.arange(0, BLOCK_M // 2)
            dropped = tl.zeros((BLOCK_N, BLOCK_M // 2), tl.int32)
            d_scores = tl.zeros((BLOCK_N, BLOCK_M // 2), tl.int32)
            for slot in tl.static_range(K):
                of_slot = pairs + 3 * slot * stride
                dropped, d_scores = put(
                    dropped, d_scores, twice, tl.load(of_slot)[None, :],
                    tl.load(of_slot + stride)[None, :], tl.load(of_slot + 2 * stride)[None, :],
                )  # fmt: skip
            dv_head = tl.dot(halves_in(dropped, BLOCK_N, BLOCK_M), d_out_tile, dv_head)
            dk_head = tl.dot(halves_in(d_scores, BLOCK_N, BLOCK_M), q_tile, dk_head)
        dk_acc += dk_head * dk_scale
        dv_acc += dv_head * dv_scale
    dk += place(dk_strides, shared, middle, heads // groups, 1)
    dv += place(dv_strides, shared, middle, heads // groups, 1)
    store_with_unit(dk, dk_units, shared, first, columns, keys, dk_strides[3], dk_acc, True, WIDTH, BLOCK_D, BLOCK_N)
    store_with_unit(dv, dv_units, shared, first, columns, keys, dv_strides[3], dv_acc, True, WIDTH, BLOCK_D, BLOCK_N)
