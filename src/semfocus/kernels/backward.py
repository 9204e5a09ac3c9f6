"""The backward kernels: weights are computed again from the scores and each row's log-sum-exp. No atomics.

    dv = (D w)^T do       dp = D (do v^T)       ds = w (dp - delta)       dq = scale ds k       dk = scale ds^T q

with w the weights, D the dropout factors (0 or 1 / (1 - p)) and delta = rowsum(do * out) = rowsum(w dp). Where the
inputs are halves (see ``half.py``), ds is multiplied by ``shrink``, a power of two that keeps it in range.
"""

import triton
import triton.language as tl

from .half import store_with_unit
from .tiles import (
    DRAWN,
    LIFT,
    LOG2_E,
    UNLIFT,
    bits_of,
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
    steps_of,
    steps_over_keys,
    survives,
    whole_tiles,
)


@triton.jit
def add_queries_gradient(
    acc, q_tile, d_out_tile, row_lse, row_delta, k, v, words, mask, noise, row_keys, rows, row_begin, row_end, start,
    stride, keys, k_stride, v_stride, mask_stride, scale, offset, limit, step, first_global,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, CHOSEN: tl.constexpr, WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """ds k of one more tile of keys."""
    columns = start + tl.arange(0, BLOCK_N)
    k_tile = load_rows(k, columns, keys, k_stride, WIDTH, BLOCK_D, EDGE)
    v_tile = load_rows(v, columns, keys, v_stride, WIDTH, BLOCK_D, EDGE)
    scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * (scale * LOG2_E)  # (M, N)
    weights = tl.exp2(scores - row_lse[:, None])
    if CHOSEN:  # the choice was made among the visible keys
        weights = tl.where(bits_of(words, rows, stride, start, keys, True, BLOCK_N), weights, 0.0)
    elif EDGE:
        seen = seen_keys(columns, keys, mask, mask_stride, MASKED)[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None] + offset)
        if WINDOW:
            seen = seen & in_window(row_begin[:, None], row_end[:, None], columns[None, :], first_global)
        weights = tl.where(seen, weights, 0.0)
    d_weights = tl.dot(d_out_tile, tl.trans(v_tile), input_precision=PRECISION)  # (M, N)
    change = d_weights * step - row_delta[:, None]
    if DROPOUT:
        spared = spared_keys(noise, row_keys, rows, stride, start, keys, limit, DROPOUT, BLOCK_N)
        change = tl.where(spared, change, -row_delta[:, None])
    d_scores = weights * change
    return tl.dot(d_scores.to(k_tile.dtype), k_tile, acc, input_precision=PRECISION)


@triton.jit
def facts_of_rows(
    q, out, d_out, lse, scales, q_units, k_units, v_units, d_out_units, q_strides, out_strides, d_out_strides,
    lead, rows, queries, middle, heads, groups, scale, factor, shrink,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """What the gradient of a block of queries rests on.

    q and do (M, D); log-sum-exp (infinite beyond the last query) and delta (M,); what q k^T, do v^T without the
    dropout factor, and ds k are multiplied by.
    """
    if SCALED:
        scale = tl.load(scales + lead)
    lift = 0.0
    step = shrink
    result_scale = scale / shrink
    if HALVED:
        lift = LIFT
        step = step * UNLIFT
        k_unit = tl.load(k_units + lead // groups)
        d_unit = tl.load(d_out_units + lead) * tl.load(v_units + lead // groups)
        result_scale = result_scale * k_unit * d_unit
        scale = scale * tl.load(q_units + lead) * k_unit
    row_lse = tl.load(lse + lead.to(tl.int64) * queries + rows, mask=rows < queries, other=float("inf")) - lift
    q += place(q_strides, lead, middle, heads, 1)
    out += place(out_strides, lead, middle, heads, 1)
    d_out += place(d_out_strides, lead, middle, heads, 1)
    q_tile = load_rows(q, rows, queries, q_strides[3], WIDTH, BLOCK_D)
    d_out_tile = load_rows(d_out, rows, queries, d_out_strides[3], WIDTH, BLOCK_D)
    out_tile = load_rows(out, rows, queries, out_strides[3], WIDTH, BLOCK_D)
    row_delta = tl.sum(out_tile.to(tl.float32) * d_out_tile.to(tl.float32), 1)
    if HALVED:  # in the units of do v^T
        if out.dtype.element_ty == tl.float16:
            row_delta = row_delta * factor
        else:
            row_delta = row_delta / tl.load(v_units + lead // groups)
    return q_tile, d_out_tile, row_lse, row_delta * step, scale, step, result_scale


@triton.jit(do_not_specialize=["offset", "limit"])
def backward_queries(
    q, k, v, out, d_out, lse, words, mask, noise, scales, q_units, k_units, v_units, d_out_units,
    begins, ends, dq, dq_units, delta, levels, hashes,
    q_strides, k_strides, v_strides, d_out_strides, out_strides, mask_strides, dq_strides,
    queries, keys, middle, heads, groups,
    scale, offset, limit, factor, shrink, first_global, every,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHOSEN: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, SCALED: tl.constexpr, HALVED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, and for ``backward_keys`` what it must know of each row: a program takes a block of queries.

    That is delta, the log-sum-exp (infinite beyond the last query) and the dropout key, each (heads, padded rows).
    """
    blocks = tl.cdiv(queries, BLOCK_M)
    lead = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    k += place(k_strides, lead, middle, heads, groups)
    v += place(v_strides, lead, middle, heads, groups)
    mask += place(mask_strides, lead, middle, heads, 1)
    stride = padded_rows(queries)
    words += lead.to(tl.int64) * stride * tl.cdiv(keys, 32)
    noise, row_keys = dropout_source(noise, lead, rows, offset, stride, keys, DROPOUT)
    at = lead.to(tl.int64) * stride + rows
    if DROPOUT == 1:
        tl.store(hashes + at[:, None], row_keys.to(tl.int32, bitcast=True))
    q_tile, d_out_tile, row_lse, row_delta, scale, step, result_scale = facts_of_rows(
        q, out, d_out, lse, scales, q_units, k_units, v_units, d_out_units, q_strides, out_strides, d_out_strides,
        lead, rows, queries, middle, heads, groups, scale, factor, shrink, WIDTH, BLOCK_D, SCALED, HALVED,
    )  # fmt: skip
    tl.store(levels + at, row_lse)
    tl.store(delta + at, row_delta)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    by_all, end = seen_by(first, offset, keys, CAUSAL, BLOCK_M)
    row_begin, row_end, low, local, tail, count = steps_over_keys(
        begins, ends, lead, rows, queries, keys, end, first_global, every, WINDOW, BLOCK_N
    )
    whole = tl.minimum(count, keys // BLOCK_N)
    if not CHOSEN:
        whole = whole_tiles(by_all, WINDOW or MASKED, BLOCK_N) // BLOCK_N
    for turn in range(0, whole):
        acc = add_queries_gradient(
            acc, q_tile, d_out_tile, row_lse, row_delta, k, v, words, mask, noise, row_keys, rows, row_begin, row_end,
            start_of(turn, low, local, tail, WINDOW, BLOCK_N), stride, keys,
            k_strides[3], v_strides[3], mask_strides[3], scale, offset, limit, factor * step, first_global,
            WIDTH, BLOCK_D, BLOCK_N, CHOSEN, WINDOW, CAUSAL, MASKED, DROPOUT, PRECISION, False,
        )  # fmt: skip
    for turn in range(whole, count):
        acc = add_queries_gradient(
            acc, q_tile, d_out_tile, row_lse, row_delta, k, v, words, mask, noise, row_keys, rows, row_begin, row_end,
            start_of(turn, low, local, tail, WINDOW, BLOCK_N), stride, keys,
            k_strides[3], v_strides[3], mask_strides[3], scale, offset, limit, factor * step, first_global,
            WIDTH, BLOCK_D, BLOCK_N, CHOSEN, WINDOW, CAUSAL, MASKED, DROPOUT, PRECISION, True,
        )  # fmt: skip
    dq += place(dq_strides, lead, middle, heads, 1)
    result = acc * result_scale
    store_with_unit(dq, dq_units, lead, first, rows, queries, dq_strides[3], result, HALVED, WIDTH, BLOCK_D, BLOCK_M)


@triton.jit(do_not_specialize=["offset", "limit"])
def backward_keys(
    q, k, v, d_out, delta, levels, hashes, words, mask, noise, scales, q_units, k_units, v_units, d_out_units,
    begins, ends, firsts, lasts, dk, dk_units, dv, dv_units,
    q_strides, k_strides, v_strides, d_out_strides, mask_strides, dk_strides, dv_strides,
    queries, keys, middle, heads, groups,
    scale, offset, limit, factor, shrink, first_global, every,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHOSEN: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, SCALED: tl.constexpr, HALVED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv: a program takes a block of keys through all queries of the ``groups`` heads that share them.

    All tiles are transposed, (N, M), so that the sums over queries are plain products.
    """
    blocks = tl.cdiv(keys, BLOCK_N)
    stride = padded_rows(queries)
    shared = tl.program_id(0) // blocks  # counts (n0, n1, key head)
    first = tl.program_id(0) % blocks * BLOCK_N
    columns = first + tl.arange(0, BLOCK_N)
    k += place(k_strides, shared, middle, heads // groups, 1)
    v += place(v_strides, shared, middle, heads // groups, 1)
    k_tile = load_rows(k, columns, keys, k_strides[3], WIDTH, BLOCK_D)
    v_tile = load_rows(v, columns, keys, v_strides[3], WIDTH, BLOCK_D)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    begin = 0
    if CAUSAL:  # the first query that sees any of these keys
        begin = tl.maximum(first - offset, 0) // BLOCK_M * BLOCK_M
    for group in range(groups):
        lead = shared * groups + group
        q_head = q + place(q_strides, lead, middle, heads, 1)
        d_out_head = d_out + place(d_out_strides, lead, middle, heads, 1)
        mask_head = mask + place(mask_strides, lead, middle, heads, 1)
        before = lead.to(tl.int64) * stride * tl.cdiv(keys, 32)  # words of other heads
        head_scale = scale
        if SCALED:
            head_scale = tl.load(scales + lead)
        dk_scale = head_scale / shrink
        dv_scale = factor
        step = shrink
        if HALVED:
            d_unit = tl.load(d_out_units + lead)
            dv_scale = dv_scale * d_unit * UNLIFT
            dk_scale = dk_scale * tl.load(q_units + lead) * d_unit * tl.load(v_units + shared)
            head_scale = head_scale * tl.load(q_units + lead) * tl.load(k_units + shared)
            step = step * UNLIFT
        seen_column = seen_keys(columns, keys, mask_head, mask_strides[3], MASKED)[:, None]
        dk_head = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        dv_head = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
        low, tail = begin, 0
        local = tl.cdiv(tl.maximum(queries - begin, 0), BLOCK_M)
        count = local
        if WINDOW:
            reach = (lead * every).to(tl.int64) * keys
            early = tl.load(firsts + reach + first)
            late = tl.load(lasts + reach + tl.minimum(first + BLOCK_N, keys) - 1)
            if first + BLOCK_N > first_global:  # all queries see a global key
                early = early * 0
                late = early + queries
            low, local, tail, count = steps_of(early, late, queries - (keys - first_global), queries, BLOCK_M)
        for turn in range(0, count):
            rows = start_of(turn, low, local, tail, WINDOW, BLOCK_M) + tl.arange(0, BLOCK_M)
            at = lead.to(tl.int64) * stride + rows
            row_lse = tl.load(levels + at)
            row_delta = tl.load(delta + at)
            q_tile = load_rows(q_head, rows, queries, q_strides[3], WIDTH, BLOCK_D)
            d_out_tile = load_rows(d_out_head, rows, queries, d_out_strides[3], WIDTH, BLOCK_D)
            scores = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION) * (head_scale * LOG2_E)  # (N, M)
            weights = tl.exp2(scores - row_lse[None, :])
            if CHOSEN:
                weights = tl.where(bits_of(words + before, rows, stride, first, keys, False, BLOCK_N), weights, 0.0)
            elif CAUSAL or WINDOW or MASKED:  # else only keys beyond the last are not seen, of which nothing is written
                seen = seen_column
                if CAUSAL:
                    seen = seen & (columns[:, None] <= rows[None, :] + offset)
                if WINDOW:
                    own = (lead * every).to(tl.int64) * queries + rows
                    row_begin = tl.load(begins + own, mask=rows < queries, other=keys)
                    row_end = tl.load(ends + own, mask=rows < queries, other=0)
                    seen = seen & in_window(row_begin[None, :], row_end[None, :], columns[:, None], first_global)
                weights = tl.where(seen, weights, 0.0)
            d_weights = tl.dot(v_tile, tl.trans(d_out_tile), input_precision=PRECISION)  # (N, M)
            change = d_weights * (factor * step) - row_delta[None, :]
            dropped = weights
            if DROPOUT:
                if DROPOUT == DRAWN:
                    spared = bits_of(noise + before, rows, stride, first, keys, False, BLOCK_N)
                else:
                    row_keys = tl.load(hashes + at).to(tl.uint32, bitcast=True)
                    spared = survives(row_keys[None, :], columns[:, None], limit)
                dropped = spare(weights, spared)
                change = tl.where(spared, change, -row_delta[None, :])
            dv_head = tl.dot(dropped.to(d_out_tile.dtype), d_out_tile, dv_head, input_precision=PRECISION)
            d_scores = weights * change
            dk_head = tl.dot(d_scores.to(q_tile.dtype), q_tile, dk_head, input_precision=PRECISION)
        dk_acc += dk_head * dk_scale
        dv_acc += dv_head * dv_scale
    dk += place(dk_strides, shared, middle, heads // groups, 1)
    dv += place(dv_strides, shared, middle, heads // groups, 1)
    store_with_unit(dk, dk_units, shared, first, columns, keys, dk_strides[3], dk_acc, HALVED, WIDTH, BLOCK_D, BLOCK_N)
    store_with_unit(dv, dv_units, shared, first, columns, keys, dv_strides[3], dv_acc, HALVED, WIDTH, BLOCK_D, BLOCK_N)
