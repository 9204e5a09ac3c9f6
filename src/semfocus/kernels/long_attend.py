"""Long rows, after the search: the K best of a row's candidates, and attention over them. A program takes one row.

    scores = scale * q k^T       weights = softmax over the kept keys       out = weights v
    dp = do v^T                  ds = weights (dp - do . out)               dq = scale ds k

Candidates are scored again in float32, and ranked among themselves only.
"""

import triton
import triton.language as tl

from .long_search import LISTS, TILE_KEYS, ones_in, score_of
from .tiles import LOG2_E, MAGNITUDE, place


@triton.jit
def row_vector(x, row, stride, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """(BLOCK_D,) in float32: a row of a matrix, zeros beyond its end."""
    columns = tl.arange(0, BLOCK_D)
    return tl.load(x + row * stride + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def gathered(x, rows, there, stride, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """(rows, BLOCK_D) in float32: some rows of a matrix; zeros where there is none."""
    columns = tl.arange(0, BLOCK_D)[None, :]
    inside = there[:, None] & (columns < WIDTH)
    return tl.load(x + rows[:, None].to(tl.int64) * stride + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def image_of(score):
    """The sortable integer image of a float."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & MAGNITUDE)


@triton.jit
def unpack(lists, used, columns, splits, ROOM: tl.constexpr, ENTRIES: tl.constexpr):
    """Writes the columns of a row's candidates and returns how many there are."""
    slot = tl.arange(0, ENTRIES)
    which = slot // ROOM  # (split, list)
    there = which < splits * LISTS
    there = there & (slot % ROOM < tl.load(used + which, mask=there, other=0))
    entry = tl.load(lists + slot, mask=there, other=0)
    word = (entry & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True)
    first = (entry >> 32).to(tl.int32) * TILE_KEYS + 2 * (which % LISTS)
    ones = ones_in(word)
    to = tl.cumsum(ones, 0) - ones
    while tl.max((word != 0).to(tl.int32), 0) > 0:
        lowest = (word & -word).to(tl.uint32, bitcast=True).to(tl.float32)  # a power of two
        bit = (lowest.to(tl.int32, bitcast=True) >> 23) - 127
        tl.store(columns + to, first + 8 * (bit >> 1) + (bit & 1), mask=word != 0)
        word = word & (word - 1)
        to += 1
    return tl.sum(ones, 0)


@triton.jit
def best(scores, columns, total, budget, steps):
    """bool (candidates,): the ``budget`` largest scores, ties to the lowest column. -inf is never kept."""
    there = scores > -float("inf")
    low = image_of(tl.min(tl.where(there, scores, float("inf")), 0))
    high = image_of(tl.max(scores, 0)) + 1
    count = total
    while (count != budget) & (low + 1 < high):
        mean = (low & high) + ((low ^ high) >> 1)
        reached = tl.sum((scores >= score_of(mean)).to(tl.int32), 0)
        low = tl.where(reached >= budget, mean, low)
        high = tl.where(reached >= budget, high, mean)
        count = tl.where(reached >= budget, reached, count)
    lowest = score_of(low)
    kept = (scores >= lowest) & there
    if count > budget:  # equal scores at the edge
        above = scores > lowest
        tied = scores == lowest
        room = budget - tl.sum(above.to(tl.int32), 0)
        before = room * 0 - 1
        last = before + (1 << steps)
        for _ in range(steps):
            column = (before + last) >> 1
            enough = tl.sum((tied & (columns <= column)).to(tl.int32), 0) >= room
            last = tl.where(enough, column, last)
            before = tl.where(enough, before, column)
        kept = above | (tied & (columns <= last))
    return kept


@triton.jit
def score_candidates(
    query, k, columns, scores, total, stride, scale, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Writes the scores of a row's candidates."""
    for start in range(0, total, CHUNK):
        slot = start + tl.arange(0, CHUNK)
        there = slot < total
        key = gathered(k, tl.load(columns + slot, mask=there, other=0), there, stride, WIDTH, BLOCK_D)
        tl.store(scores + slot, tl.sum(query[None, :] * key, 1) * scale, mask=there)


@triton.jit
def weighted_values(
    v, indices, weights, count, stride, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr
):
    """(BLOCK_D,): the sum of the kept keys' values."""
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, count, CHUNK):
        slot = start + tl.arange(0, CHUNK)
        there = slot < count
        value = gathered(v, tl.load(indices + slot, mask=there, other=0), there, stride, WIDTH, BLOCK_D)
        acc += tl.sum(tl.load(weights + slot, mask=there, other=0.0)[:, None] * value, 0)
    return acc


@triton.jit(do_not_specialize=["first_block"])
def attend_to_best(
    q, k, v, scales, lists, used, candidate_columns, candidate_scores, out, lse, indices, weights,
    q_strides, k_strides, v_strides, out_strides,
    queries, middle, heads, groups, scale, first_block, splits, budget, steps,
    BLOCK_M: tl.constexpr, ROOM: tl.constexpr, ENTRIES: tl.constexpr, CANDIDATES: tl.constexpr,
    CHUNK: tl.constexpr, VALUES: tl.constexpr, KEPT: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr, SIGHTED: tl.constexpr,
):  # fmt: skip
    """indices and weights (leads, queries, budget): the kept keys and their weights; -1 and 0 where there are fewer.

    SIGHTED: every row sees a key, so that one without candidates has NaN for scores, and its output is NaN.
    """
    local = tl.program_id(0)
    blocks = tl.cdiv(queries, BLOCK_M)
    block = first_block + local // BLOCK_M
    lead = block // blocks
    row = block % blocks * BLOCK_M + local % BLOCK_M
    if row < queries:
        here = local.to(tl.int64)
        columns_of = candidate_columns + here * CANDIDATES
        scores_of = candidate_scores + here * CANDIDATES
        q += place(q_strides, lead, middle, heads, 1)
        k += place(k_strides, lead, middle, heads, groups)
        v += place(v_strides, lead, middle, heads, groups)
        out += place(out_strides, lead, middle, heads, 1)
        if SCALED:
            scale = tl.load(scales + lead)
        total = unpack(
            lists + here * splits * LISTS * ROOM,
            used + here * splits * LISTS,
            columns_of,
            splits,
            ROOM,
            ENTRIES,
        )
        tl.debug_barrier()
        query = row_vector(q, row, q_strides[3], WIDTH, BLOCK_D)
        score_candidates(query, k, columns_of, scores_of, total, k_strides[3], scale, CHUNK, WIDTH, BLOCK_D)
        tl.debug_barrier()
        slot = tl.arange(0, CANDIDATES)
        columns = tl.load(columns_of + slot, mask=slot < total, other=0)
        scores = tl.load(scores_of + slot, mask=slot < total, other=-float("inf"))
        kept = slot < total
        if total > budget:
            kept = best(scores, columns, total, budget, steps)
        peak = tl.max(scores, 0)
        peak = tl.where(total > 0, peak, 0.0)
        exponentials = tl.where(kept, tl.exp2((scores - peak) * LOG2_E), 0.0)
        whole = tl.sum(exponentials, 0)
        tl.store(
            lse + lead.to(tl.int64) * queries + row,
            tl.where(total > 0, peak * LOG2_E + tl.log2(tl.where(total > 0, whole, 1.0)), float("inf")),
        )
        at = (lead.to(tl.int64) * queries + row) * budget
        to = at + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(indices + to, columns, mask=kept)
        tl.store(weights + to, exponentials / tl.where(total > 0, whole, 1.0), mask=kept)
        room = tl.arange(0, KEPT)
        missing = (room >= total) & (room < budget)
        tl.store(indices + at + room, tl.full((KEPT,), -1, tl.int32), mask=missing)
        tl.store(weights + at + room, tl.zeros((KEPT,), tl.float32), mask=missing)
        tl.debug_barrier()
        acc = weighted_values(
            v, indices + at, weights + at, tl.minimum(total, budget), v_strides[3], VALUES, WIDTH, BLOCK_D
        )
        if SIGHTED:
            acc = tl.where(total > 0, acc, float("nan"))
        width = tl.arange(0, BLOCK_D)
        tl.store(out + row * out_strides[3] + width, acc.to(out.dtype.element_ty), mask=width < WIDTH)


@triton.jit
def gather_queries(
    k, v, out, d_out, scales, indices, weights, dq, d_scores,
    k_strides, v_strides, out_strides, d_out_strides, dq_strides,
    queries, middle, heads, groups, scale, budget,
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """dq, and the gradient of the kept scores, shaped like ``weights``."""
    lead = tl.program_id(0) // queries
    row = tl.program_id(0) % queries
    k += place(k_strides, lead, middle, heads, groups)
    v += place(v_strides, lead, middle, heads, groups)
    if SCALED:
        scale = tl.load(scales + lead)
    d_row = row_vector(d_out + place(d_out_strides, lead, middle, heads, 1), row, d_out_strides[3], WIDTH, BLOCK_D)
    out_row = row_vector(out + place(out_strides, lead, middle, heads, 1), row, out_strides[3], WIDTH, BLOCK_D)
    delta = tl.sum(d_row * out_row, 0)
    at = (lead.to(tl.int64) * queries + row) * budget
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, budget, CHUNK):
        slot = start + tl.arange(0, CHUNK)
        column = tl.load(indices + at + slot, mask=slot < budget, other=-1)
        there = column >= 0
        value = gathered(v, column, there, v_strides[3], WIDTH, BLOCK_D)
        key = gathered(k, column, there, k_strides[3], WIDTH, BLOCK_D)
        weight = tl.load(weights + at + slot, mask=slot < budget, other=0.0)
        change = weight * (tl.sum(d_row[None, :] * value, 1) - delta)
        tl.store(d_scores + at + slot, change, mask=slot < budget)
        acc += tl.sum(change[:, None] * key, 0)
    dq += place(dq_strides, lead, middle, heads, 1)
    width = tl.arange(0, BLOCK_D)
    tl.store(dq + row * dq_strides[3] + width, (acc * scale).to(dq.dtype.element_ty), mask=width < WIDTH)
