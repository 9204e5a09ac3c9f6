"""The forward kernels: a program takes a block of queries of one head against all keys.

    scores = scale * q k^T       weights = softmax over the kept keys       out = dropout(weights) v

Beside the output they leave the base-2 logarithm of each row's sum of exponentials (+inf where a row sees nothing, so
that every weight computed from it is 0) and, under top-k, one bit per score: kept or not.
"""

import triton
import triton.language as tl

from .best_keys import choose
from .tiles import (
    LIFT,
    LOG2_E,
    dropout_source,
    in_window,
    load_rows,
    padded_rows,
    place,
    seen_by,
    seen_keys,
    spare,
    spared_keys,
    start_of,
    steps_over_keys,
    store_rows,
    whole_tiles,
)


@triton.jit
def finish(
    acc, total, peak, out, lse, rows, queries, row_stride, factor,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Divides by the sum of the exponentials and writes the block. ``peak`` is in base 2."""
    empty = total == 0.0
    share = factor / tl.where(empty, 1.0, total)
    store_rows(out, rows, queries, row_stride, acc * share[:, None], WIDTH, BLOCK_D)
    tl.store(
        lse + rows, tl.where(empty, float("inf"), peak + tl.log2(tl.where(empty, 1.0, total))), mask=rows < queries
    )


@triton.jit
def add_tile(
    sums, q_tile, k, v, mask, noise, row_keys, rows, row_begin, row_end, start, stride, keys,
    k_stride, v_stride, mask_stride, scale, offset, limit, lift, first_global,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """The weighted values, largest score and sum of weights of each row, with those of one more tile of keys."""
    acc, peak, total = sums
    columns = start + tl.arange(0, BLOCK_N)
    k_tile = load_rows(k, columns, keys, k_stride, WIDTH, BLOCK_D, EDGE)
    scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * (scale * LOG2_E)  # (M, N)
    if EDGE:
        seen = seen_keys(columns, keys, mask, mask_stride, MASKED)[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None] + offset)
        if WINDOW:
            seen = seen & in_window(row_begin[:, None], row_end[:, None], columns[None, :], first_global)
        scores = tl.where(seen, scores, -float("inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    anchor = tl.where(higher == -float("inf"), 0.0, higher) - lift  # a row that has seen nothing yet
    weights = tl.exp2(scores - anchor[:, None])
    shrink = tl.exp2(peak - lift - anchor)
    total = total * shrink + tl.sum(weights, 1)
    if DROPOUT:
        spared = spared_keys(noise, row_keys, rows, stride, start, keys, limit, DROPOUT, BLOCK_N)
        weights = tl.where(spared, weights, 0.0)
    v_tile = load_rows(v, columns, keys, v_stride, WIDTH, BLOCK_D, EDGE)
    acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc * shrink[:, None], input_precision=PRECISION)
    return acc, higher, total


@triton.jit(do_not_specialize=["offset", "limit"])
def full_forward(
    q, k, v, out, lse, mask, noise, scales, q_units, k_units, v_units, begins, ends,
    q_strides, k_strides, v_strides, out_strides, mask_strides,
    queries, keys, middle, heads, groups,
    scale, offset, limit, factor, first_global, every,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, SCALED: tl.constexpr, HALVED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """All visible keys, or those of a window, with a running softmax over tiles of keys.

    A window is an interval [begin, end) for each query, and the keys from ``first_global`` on. ``every`` is 1 if each
    lead has intervals of its own, else 0.
    """
    blocks = tl.cdiv(queries, BLOCK_M)
    lead = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    q += place(q_strides, lead, middle, heads, 1)
    k += place(k_strides, lead, middle, heads, groups)
    v += place(v_strides, lead, middle, heads, groups)
    mask += place(mask_strides, lead, middle, heads, 1)
    if SCALED:
        scale = tl.load(scales + lead)
    lift = 0.0
    if HALVED:
        lift = LIFT
        scale = scale * tl.load(q_units + lead) * tl.load(k_units + lead // groups)
        factor = 1.0 if out.dtype.element_ty == tl.float16 else factor * tl.load(v_units + lead // groups)
    stride = padded_rows(queries)
    noise, row_keys = dropout_source(noise, lead, rows, offset, stride, keys, DROPOUT)
    q_tile = load_rows(q, rows, queries, q_strides[3], WIDTH, BLOCK_D)
    sums = (
        tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
        tl.full((BLOCK_M,), -float("inf"), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
    )
    by_all, end = seen_by(first, offset, keys, CAUSAL, BLOCK_M)
    row_begin, row_end, low, local, tail, count = steps_over_keys(
        begins, ends, lead, rows, queries, keys, end, first_global, every, WINDOW, BLOCK_N
    )
    whole = whole_tiles(by_all, WINDOW or MASKED, BLOCK_N) // BLOCK_N
    for turn in range(0, whole):
        sums = add_tile(
            sums, q_tile, k, v, mask, noise, row_keys, rows, row_begin, row_end,
            start_of(turn, low, local, tail, WINDOW, BLOCK_N), stride, keys,
            k_strides[3], v_strides[3], mask_strides[3], scale, offset, limit, lift, first_global,
            WIDTH, BLOCK_D, BLOCK_N, WINDOW, CAUSAL, MASKED, DROPOUT, PRECISION, False,
        )  # fmt: skip
    for turn in range(whole, count):
        sums = add_tile(
            sums, q_tile, k, v, mask, noise, row_keys, rows, row_begin, row_end,
            start_of(turn, low, local, tail, WINDOW, BLOCK_N), stride, keys,
            k_strides[3], v_strides[3], mask_strides[3], scale, offset, limit, lift, first_global,
            WIDTH, BLOCK_D, BLOCK_N, WINDOW, CAUSAL, MASKED, DROPOUT, PRECISION, True,
        )  # fmt: skip
    acc, peak, total = sums
    out += place(out_strides, lead, middle, heads, 1)
    lse += lead.to(tl.int64) * queries
    finish(acc, total, peak - lift, out, lse, rows, queries, out_strides[3], factor, WIDTH, BLOCK_D)


@triton.jit(do_not_specialize=["offset", "limit"])
def top_k_forward(
    q, k, v, out, lse, words, mask, noise, scales, q_units, k_units, v_units,
    q_strides, k_strides, v_strides, out_strides, mask_strides,
    queries, keys, middle, heads, groups, words_per_row,
    scale, offset, limit, factor,
    K: tl.constexpr, TILES: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, SCALED: tl.constexpr, HALVED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The K visible keys of largest score, ties to the lowest index. All TILES tiles of a row stay in registers."""
    blocks = tl.cdiv(queries, BLOCK_M)
    lead = tl.program_id(0) // blocks
    rows = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    q += place(q_strides, lead, middle, heads, 1)
    k += place(k_strides, lead, middle, heads, groups)
    v += place(v_strides, lead, middle, heads, groups)
    mask += place(mask_strides, lead, middle, heads, 1)
    if SCALED:
        scale = tl.load(scales + lead)
    lift = 0.0
    if HALVED:
        lift = LIFT
        scale = scale * tl.load(q_units + lead) * tl.load(k_units + lead // groups)
        factor = 1.0 if out.dtype.element_ty == tl.float16 else factor * tl.load(v_units + lead // groups)
    q_tile = load_rows(q, rows, queries, q_strides[3], WIDTH, BLOCK_D)
    row = ()
    for i in tl.static_range(TILES):
        columns = i * BLOCK_N + tl.arange(0, BLOCK_N)
        k_tile = load_rows(k, columns, keys, k_strides[3], WIDTH, BLOCK_D)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * scale  # (M, N)
        seen = seen_keys(columns, keys, mask, mask_strides[3], MASKED)[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None] + offset)
        row = row + (tl.where(seen, scores, -float("inf")),)  # noqa: RUF005 (Triton has no starred expressions)
    best = row[0]
    for i in tl.static_range(1, TILES):
        best = tl.maximum(best, row[i])
    peak = tl.max(best, 1)
    lowest, last = choose(row, peak, K, TILES, BLOCK_M, BLOCK_N)
    peak = tl.where(peak == -float("inf"), 0.0, peak * LOG2_E) - lift
    stride = padded_rows(queries)
    noise, row_keys = dropout_source(noise, lead, rows, offset, stride, keys, DROPOUT)
    words += lead.to(tl.int64) * stride * words_per_row
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for i in tl.static_range(TILES):
        columns = i * BLOCK_N + tl.arange(0, BLOCK_N)
        beyond = (row[i] == lowest[:, None]) & (columns[None, :] > last[:, None])
        kept = ~((row[i] < lowest[:, None]) | beyond | (row[i] == -float("inf")))  # NaN is kept: the output shows it
        bits = tl.reshape(kept.to(tl.int32), (BLOCK_M, BLOCK_N // 32, 32)) << tl.arange(0, 32)[None, None, :]
        word = i * (BLOCK_N // 32) + tl.arange(0, BLOCK_N // 32)
        inside = (rows[:, None] >= 0) & (word[None, :] < words_per_row)
        tl.store(words + word[None, :] * stride + rows[:, None], tl.sum(bits, 2), mask=inside)
        weights = tl.where(kept, tl.exp2(row[i] * LOG2_E - peak[:, None]), 0.0)
        total += tl.sum(weights, 1)
        if DROPOUT:
            spared = spared_keys(noise, row_keys, rows, stride, i * BLOCK_N, keys, limit, DROPOUT, BLOCK_N)
            weights = spare(weights, spared)
        v_tile = load_rows(v, columns, keys, v_strides[3], WIDTH, BLOCK_D)
        acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
    out += place(out_strides, lead, middle, heads, 1)
    lse += lead.to(tl.int64) * queries
    finish(acc, total, peak, out, lse, rows, queries, out_strides[3], factor, WIDTH, BLOCK_D)
