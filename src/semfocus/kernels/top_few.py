"""Top-k for small k: the keys pass by in tiles, and only a few scores of each column slot are remembered.

First pass: slot c of a row sees the keys c, c + N, c + 2 N, ... and keeps its best few in order, by maxima and minima
alone. The K-th best of what is kept is the K-th best of the row, unless a slot holds more of the K best than it keeps.
For few keys that is rare. For more, the scores that were overlooked are counted in another pass, which remembers the
smallest ones above the threshold: it is moved up past as many of them.

Last pass: scores again, those from the threshold on are kept and counted. K of them are the K best, whatever rounding
did. Another number means a crowded slot or equal scores: then the threshold is moved up (once more), and the pass is
repeated. If that was not enough, the threshold and the last column that is kept at it are found by bisection.
"""

import triton
import triton.language as tl

from .best_keys import REMOVALS_UP_TO, largest_below, one_from, search_score
from .forward import finish
from .tiles import (
    IMAGE_OF_INFINITY,
    IMAGE_OF_MINUS_INFINITY,
    LEAST,
    LIFT,
    LOG2_E,
    MAGNITUDE,
    dropout_source,
    load_rows,
    ones_in,
    padded_rows,
    place,
    seen_by,
    seen_keys,
    spare,
    spared_keys,
    whole_tiles,
)

#: How many of a slot's smallest scores above the threshold are remembered, and how many overlooked ones are expected.
NEAREST = tl.constexpr(2)
MOST_RAISED = tl.constexpr(8)


@triton.jit
def tile_scores(
    q_tile, k, mask, rows, start, keys, k_stride, mask_stride, scale, offset,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """(M, N): scores of the keys from ``start`` on; -inf for those that are not seen, which only an EDGE has."""
    columns = start + tl.arange(0, BLOCK_N)
    k_tile = load_rows(k, columns, keys, k_stride, WIDTH, BLOCK_D, EDGE)
    scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * scale
    if EDGE:
        seen = seen_keys(columns, keys, mask, mask_stride, MASKED)[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None] + offset)
        scores = tl.where(seen, scores, -float("inf"))
    return scores


@triton.jit
def insert(best, scores, LEVELS: tl.constexpr):
    """Each slot's best in order, with one more score each."""
    result = ()
    for i in tl.static_range(LEVELS):
        result = result + (tl.maximum(best[i], scores),)  # noqa: RUF005 (Triton has no starred expressions)
        scores = tl.minimum(best[i], scores)
    return result


@triton.jit
def kept_keys(scores, columns, lowest, last, TIED: tl.constexpr):
    """bool (M, N); ``lowest`` is finite. NaN is kept: the output shows it."""
    kept = ~(scores < lowest[:, None])
    if TIED:
        kept = kept & ~((scores == lowest[:, None]) & (columns[None, :] > last[:, None]))
    return kept


@triton.jit
def add_kept(
    sums, q_tile, k, v, words, mask, noise, row_keys, rows, start, stride, keys, lowest, last, peak,
    k_stride, v_stride, mask_stride, scale, offset, limit,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    TIED: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """The weighted values, weights and number of kept keys, with those of one more tile; writes its kept bits."""
    acc, totals, count = sums
    columns = start + tl.arange(0, BLOCK_N)
    scores = tile_scores(
        q_tile, k, mask, rows, start, keys, k_stride, mask_stride, scale, offset,
        WIDTH, BLOCK_D, BLOCK_N, CAUSAL, MASKED, PRECISION, EDGE,
    )  # fmt: skip
    kept = kept_keys(scores, columns, lowest, last, TIED)
    bits = tl.reshape(tl.where(kept, (1 << (tl.arange(0, BLOCK_N) & 31))[None, :], 0), (BLOCK_M, BLOCK_N // 32, 32))
    word = tl.sum(bits, 2)  # (M, N / 32)
    of_word = (start >> 5) + tl.arange(0, BLOCK_N // 32)[None, :]
    to = words + of_word * stride + rows[:, None]
    if EDGE:
        tl.store(to, word, mask=of_word * 32 < keys + 0 * rows[:, None])
    else:
        tl.store(to, word)
    weights = tl.where(kept, tl.exp2(scores * LOG2_E - peak[:, None]), 0.0)
    dropped = weights
    if DROPOUT:
        spared = spared_keys(noise, row_keys, rows, stride, start, keys, limit, DROPOUT, BLOCK_N)
        dropped = spare(weights, spared)
    v_tile = load_rows(v, columns, keys, v_stride, WIDTH, BLOCK_D, EDGE)
    acc = tl.dot(dropped.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
    return acc, totals + tl.sum(tl.reshape(weights, (BLOCK_M, BLOCK_N // 32, 32)), 1), count + tl.sum(ones_in(word), 1)


@triton.jit
def values_of_kept(
    q_tile, k, v, words, mask, noise, row_keys, rows, stride, keys, whole, end, lowest, last, peak,
    k_stride, v_stride, mask_stride, scale, offset, limit,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, TIED: tl.constexpr,
):  # fmt: skip
    """The last pass: weighted sum of values, sum of weights, number of kept keys; writes the kept bits."""
    sums = (
        tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
        tl.zeros((BLOCK_M, 32), tl.float32),
        tl.zeros((BLOCK_M,), tl.int32),
    )
    for start in range(0, whole, BLOCK_N):
        sums = add_kept(
            sums, q_tile, k, v, words, mask, noise, row_keys, rows, start, stride, keys, lowest, last, peak,
            k_stride, v_stride, mask_stride, scale, offset, limit,
            WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, CAUSAL, MASKED, DROPOUT, PRECISION, TIED, False,
        )  # fmt: skip
    for start in range(whole, end, BLOCK_N):
        sums = add_kept(
            sums, q_tile, k, v, words, mask, noise, row_keys, rows, start, stride, keys, lowest, last, peak,
            k_stride, v_stride, mask_stride, scale, offset, limit,
            WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, CAUSAL, MASKED, DROPOUT, PRECISION, TIED, True,
        )  # fmt: skip
    if CAUSAL:  # the backward kernels may look at more than these rows see
        for word in range(tl.cdiv(end, 32), tl.cdiv(keys, 32)):
            tl.store(words + word * stride + rows, tl.zeros((BLOCK_M,), tl.int32))
    return sums[0], tl.sum(sums[1], 1), sums[2]


@triton.jit
def note_smallest(nearest, counts, scores, lowest, LEVELS: tl.constexpr):
    """Each slot's smallest scores from ``lowest`` on in order, and how many it has seen, with one more score each."""
    counts += one_from(scores, lowest)
    scores = tl.where(scores >= lowest[:, None], scores, float("inf"))
    result = ()
    for i in tl.static_range(LEVELS):
        result = result + (tl.minimum(nearest[i], scores),)  # noqa: RUF005
        scores = tl.maximum(nearest[i], scores)
    return result, counts


@triton.jit
def raised(
    lowest, q_tile, k, mask, rows, keys, whole, end, k_stride, mask_stride, scale, offset,
    K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(M,): the threshold moved up past the smallest scores from it on, so that K are left where there were more."""
    nearest = ()
    for _ in tl.static_range(NEAREST):
        nearest = nearest + (tl.full((BLOCK_M, BLOCK_N), float("inf"), tl.float32),)  # noqa: RUF005
    counts = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, whole, BLOCK_N):
        scores = tile_scores(
            q_tile, k, mask, rows, start, keys, k_stride, mask_stride, scale, offset,
            WIDTH, BLOCK_D, BLOCK_N, CAUSAL, MASKED, PRECISION, False,
        )  # fmt: skip
        nearest, counts = note_smallest(nearest, counts, scores, lowest, NEAREST)
    for start in range(whole, end, BLOCK_N):
        scores = tile_scores(
            q_tile, k, mask, rows, start, keys, k_stride, mask_stride, scale, offset,
            WIDTH, BLOCK_D, BLOCK_N, CAUSAL, MASKED, PRECISION, True,
        )  # fmt: skip
        nearest, counts = note_smallest(nearest, counts, scores, lowest, NEAREST)
    surplus = tl.sum(counts, 1).to(tl.int32) - K
    lowest = tl.where(surplus > 0, tl.min(nearest[0], 1), lowest)  # from between two scores to the upper one
    turns = tl.minimum(tl.max(surplus, 0), MOST_RAISED)
    for turn in range(0, turns):
        best = tl.where(nearest[0] > lowest[:, None], nearest[0], float("inf"))
        for i in tl.static_range(1, NEAREST):
            best = tl.minimum(best, tl.where(nearest[i] > lowest[:, None], nearest[i], float("inf")))
        lowest = tl.where(turn < surplus, tl.min(best, 1), lowest)
    return lowest


@triton.jit
def wrong_rows(count, lowest, rows, queries, K: tl.constexpr):
    """bool (M,): rows that keep too many keys, or too few: but one that sees fewer than K has the least threshold."""
    return ((count > K) | ((count < K) & (lowest > LEAST))) & (rows < queries)


@triton.jit
def bisect(
    q_tile, k, mask, rows, keys, end, k_stride, mask_stride, scale, offset,
    K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(M,) each: the K-th largest score, and the last column kept among those equal to it. Slow, for rows with ties."""
    low = tl.full((BLOCK_M,), IMAGE_OF_MINUS_INFINITY, tl.int32)
    high = tl.full((BLOCK_M,), IMAGE_OF_INFINITY, tl.int32)
    for _ in range(32):
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow
        limit = (middle ^ ((middle >> 31) & MAGNITUDE)).to(tl.float32, bitcast=True)
        counts = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
        for start in range(0, end, BLOCK_N):
            scores = tile_scores(
                q_tile, k, mask, rows, start, keys, k_stride, mask_stride, scale, offset,
                WIDTH, BLOCK_D, BLOCK_N, CAUSAL, MASKED, PRECISION, True,
            )  # fmt: skip
            counts += (scores >= limit[:, None]).to(tl.int32)
        enough = tl.sum(counts, 1) >= K
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    lowest = tl.maximum((low ^ ((low >> 31) & MAGNITUDE)).to(tl.float32, bitcast=True), LEAST)
    before = tl.full((BLOCK_M,), -1, tl.int32)
    last = tl.zeros((BLOCK_M,), tl.int32) + keys
    for _ in range(12):  # rows have fewer than 4,096 columns
        column = (before + last) >> 1
        counts = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
        for start in range(0, end, BLOCK_N):
            scores = tile_scores(
                q_tile, k, mask, rows, start, keys, k_stride, mask_stride, scale, offset,
                WIDTH, BLOCK_D, BLOCK_N, CAUSAL, MASKED, PRECISION, True,
            )  # fmt: skip
            counts += kept_keys(scores, start + tl.arange(0, BLOCK_N), lowest, column, True).to(tl.int32)
        enough = tl.sum(counts, 1) >= K
        last = tl.where(enough, column, last)
        before = tl.where(enough, before, column)
    return lowest, last


@triton.jit(do_not_specialize=["offset", "limit"])
def top_few_forward(
    q, k, v, out, lse, words, mask, noise, scales, q_units, k_units, v_units,
    q_strides, k_strides, v_strides, out_strides, mask_strides,
    queries, keys, middle, heads, groups,
    scale, offset, limit, factor,
    K: tl.constexpr, LEVELS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr, SCALED: tl.constexpr, HALVED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The K visible keys of largest score, ties to the lowest index. Each of BLOCK_N slots keeps its LEVELS best."""
    blocks = tl.cdiv(queries, BLOCK_M)
    lead = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    q += place(q_strides, lead, middle, heads, 1)
    k += place(k_strides, lead, middle, heads, groups)
    v += place(v_strides, lead, middle, heads, groups)
    mask += place(mask_strides, lead, middle, heads, 1)
    stride = padded_rows(queries)
    words += lead.to(tl.int64) * stride * tl.cdiv(keys, 32)
    if SCALED:
        scale = tl.load(scales + lead)
    lift = 0.0
    if HALVED:
        lift = LIFT
        scale = scale * tl.load(q_units + lead) * tl.load(k_units + lead // groups)
        factor = 1.0 if out.dtype.element_ty == tl.float16 else factor * tl.load(v_units + lead // groups)
    q_tile = load_rows(q, rows, queries, q_strides[3], WIDTH, BLOCK_D)
    best = ()
    for _ in tl.static_range(LEVELS):
        best = best + (tl.full((BLOCK_M, BLOCK_N), -float("inf"), tl.float32),)  # noqa: RUF005
    by_all, end = seen_by(first, offset, keys, CAUSAL, BLOCK_M)
    whole = whole_tiles(by_all, MASKED, BLOCK_N)
    for start in range(0, whole, BLOCK_N):
        scores = tile_scores(
            q_tile, k, mask, rows, start, keys, k_strides[3], mask_strides[3], scale, offset,
            WIDTH, BLOCK_D, BLOCK_N, CAUSAL, MASKED, PRECISION, False,
        )  # fmt: skip
        best = insert(best, scores, LEVELS)
    for start in range(whole, end, BLOCK_N):
        scores = tile_scores(
            q_tile, k, mask, rows, start, keys, k_strides[3], mask_strides[3], scale, offset,
            WIDTH, BLOCK_D, BLOCK_N, CAUSAL, MASKED, PRECISION, True,
        )  # fmt: skip
        best = insert(best, scores, LEVELS)
    peak = tl.max(best[0], 1)
    if K <= REMOVALS_UP_TO:
        lowest = peak
        for i in tl.static_range(1, K):  # the i-th best but one is at most i deep in its slot
            lowest = largest_below(best, lowest, i + 1 if i < LEVELS else LEVELS)
        lowest = tl.maximum(lowest, LEAST)
    else:
        lowest, _ = search_score(best, peak, K, LEVELS, BLOCK_M)
        lowest = raised(
            lowest, q_tile, k, mask, rows, keys, whole, end, k_strides[3], mask_strides[3], scale, offset,
            K, WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, CAUSAL, MASKED, PRECISION,
        )  # fmt: skip
    peak = tl.where(peak == -float("inf"), 0.0, peak * LOG2_E) - lift
    noise, row_keys = dropout_source(noise, lead, rows, offset, stride, keys, DROPOUT)
    acc, total, count = values_of_kept(
        q_tile, k, v, words, mask, noise, row_keys, rows, stride, keys, whole, end, lowest, rows, peak,
        k_strides[3], v_strides[3], mask_strides[3], scale, offset, limit,
        WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, CAUSAL, MASKED, DROPOUT, PRECISION, False,
    )  # fmt: skip
    if tl.max(wrong_rows(count, lowest, rows, queries, K).to(tl.int32), 0) > 0:  # overlooked scores, or equal ones
        lowest = raised(
            lowest, q_tile, k, mask, rows, keys, whole, end, k_strides[3], mask_strides[3], scale, offset,
            K, WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, CAUSAL, MASKED, PRECISION,
        )  # fmt: skip
        acc, total, count = values_of_kept(
            q_tile, k, v, words, mask, noise, row_keys, rows, stride, keys, whole, end, lowest, rows, peak,
            k_strides[3], v_strides[3], mask_strides[3], scale, offset, limit,
            WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, CAUSAL, MASKED, DROPOUT, PRECISION, False,
        )  # fmt: skip
        if tl.max(wrong_rows(count, lowest, rows, queries, K).to(tl.int32), 0) > 0:
            lowest, last = bisect(
                q_tile, k, mask, rows, keys, end, k_strides[3], mask_strides[3], scale, offset,
                K, WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, CAUSAL, MASKED, PRECISION,
            )  # fmt: skip
            acc, total, count = values_of_kept(
                q_tile, k, v, words, mask, noise, row_keys, rows, stride, keys, whole, end, lowest, last, peak,
                k_strides[3], v_strides[3], mask_strides[3], scale, offset, limit,
                WIDTH, BLOCK_D, BLOCK_M, BLOCK_N, CAUSAL, MASKED, DROPOUT, PRECISION, True,
            )  # fmt: skip
    out += place(out_strides, lead, middle, heads, 1)
    lse += lead.to(tl.int64) * queries
    finish(acc, total, peak, out, lse, rows, queries, out_strides[3], factor, WIDTH, BLOCK_D)
