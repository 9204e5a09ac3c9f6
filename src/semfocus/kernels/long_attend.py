"""Long rows, after the search: the K best of a row's candidates, and attention over them. A program takes a few rows.

    scores = scale * q k^T       weights = softmax over the kept keys       out = weights v
    dp = do v^T                  ds = weights (dp - do . out)               dq = scale ds k

Candidates are scored again in float32, and ranked among themselves only. Letters: R rows, C candidates, D width.
"""

import triton
import triton.language as tl

from .long_search import LISTS, TILE_KEYS, ones_in, score_of
from .tiles import LOG2_E, MAGNITUDE, load_rows, place, store_rows


@triton.jit
def gathered(x, rows, there, stride, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """(..., BLOCK_D) in float32: some rows of a matrix; zeros where there is none."""
    columns = tl.arange(0, BLOCK_D)
    if len(rows.shape) == 2:
        columns = columns[None, :]
    pointers = x + tl.expand_dims(rows.to(tl.int64) * stride, -1) + tl.expand_dims(columns, 0)
    inside = tl.expand_dims(there, -1) & tl.expand_dims(columns < WIDTH, 0)
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def image_of(score):
    """The sortable integer image of a float."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & MAGNITUDE)


@triton.jit
def unpack(
    lists, used, columns, here, there, splits,
    ROWS: tl.constexpr, ROOM: tl.constexpr, SLOTS: tl.constexpr, ALL_LISTS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Writes the columns of each row's candidates (rows, MOST) and returns how many there are (R,).

    SLOTS words of every list at a time.
    """
    every = tl.arange(0, ALL_LISTS * SLOTS)
    which = every // SLOTS  # (split, list)
    own = here[:, None] * (splits * LISTS) + which[None, :]
    filled = tl.load(used + own, mask=there[:, None] & (which < splits * LISTS)[None, :], other=0)
    total = tl.zeros((ROWS,), tl.int32)
    for start in range(0, tl.minimum(tl.max(tl.max(filled, 1), 0), ROOM), SLOTS):
        slot = start + (every % SLOTS)[None, :]
        entry = tl.load(lists + own * ROOM + slot, mask=(slot < filled) & (slot < ROOM), other=0)
        word = (entry & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True)
        first = (entry >> 32).to(tl.int32) * TILE_KEYS + (2 * (which % LISTS))[None, :]
        ones = ones_in(word)
        to = columns + here[:, None] * MOST + (total[:, None] + tl.cumsum(ones, 1) - ones)
        total += tl.sum(ones, 1)
        while tl.max(tl.max((word != 0).to(tl.int32), 1), 0) > 0:
            lowest = (word & -word).to(tl.uint32, bitcast=True).to(tl.float32)  # a power of two
            bit = (lowest.to(tl.int32, bitcast=True) >> 23) - 127
            tl.store(to, first + 8 * (bit >> 1) + (bit & 1), mask=word != 0)
            word = word & (word - 1)
            to += 1
    return total


@triton.jit
def best(scores, columns, total, budget, steps):
    """bool (R, C): the ``budget`` largest scores of each row, or all it has, ties to the lowest column.

    -inf is never kept.
    """
    there = scores > -float("inf")
    low = image_of(tl.min(tl.where(there, scores, float("inf")), 1))
    high = image_of(tl.max(scores, 1)) + 1
    count = total
    open_rows = (count > budget) & (low + 1 < high)
    while tl.max(open_rows.to(tl.int32), 0) > 0:
        mean = (low & high) + ((low ^ high) >> 1)
        reached = tl.sum((scores >= score_of(mean)[:, None]).to(tl.int32), 1)
        low = tl.where(open_rows & (reached >= budget), mean, low)
        high = tl.where(open_rows & (reached < budget), mean, high)
        count = tl.where(open_rows & (reached >= budget), reached, count)
        open_rows = (count > budget) & (low + 1 < high)
    lowest = score_of(low)[:, None]
    kept = (scores >= lowest) & there
    if tl.max(count, 0) > budget:  # equal scores at the edge
        above = scores > lowest
        tied = scores == lowest
        room = budget - tl.sum(above.to(tl.int32), 1)
        before = room * 0 - 1
        last = before + (1 << steps)
        for _ in range(steps):
            column = (before + last) >> 1
            enough = tl.sum((tied & (columns <= column[:, None])).to(tl.int32), 1) >= room
            last = tl.where(enough, column, last)
            before = tl.where(enough, before, column)
        kept = tl.where((count > budget)[:, None], above | (tied & (columns <= last[:, None])), kept)
    return kept


@triton.jit
def score_candidates(
    query, k, columns, scores, here, total, stride, scale,
    CHUNK: tl.constexpr, MOST: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Writes the scores of each row's candidates (rows, MOST)."""
    for start in range(0, tl.max(total, 0), CHUNK):
        slot = start + tl.arange(0, CHUNK)
        there = slot[None, :] < total[:, None]
        at = here[:, None] * MOST + slot[None, :]
        key = gathered(k, tl.load(columns + at, mask=there, other=0), there, stride, WIDTH, BLOCK_D)
        tl.store(scores + at, tl.sum(query[:, None, :] * key, 2) * scale, mask=there)


@triton.jit
def weighted_values(
    v, indices, weights, at, count, stride,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """(R, BLOCK_D): the sum of the values of each row's kept keys, which begin ``at`` its place."""
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    for start in range(0, tl.max(count, 0), CHUNK):
        slot = start + tl.arange(0, CHUNK)
        there = slot[None, :] < count[:, None]
        places = at[:, None] + slot[None, :]
        value = gathered(v, tl.load(indices + places, mask=there, other=0), there, stride, WIDTH, BLOCK_D)
        acc += tl.sum(tl.load(weights + places, mask=there, other=0.0)[:, :, None] * value, 1)
    return acc


@triton.jit(do_not_specialize=["first_block"])
def attend_to_best(
    q, k, v, scales, lists, used, candidate_columns, candidate_scores, out, lse, indices, weights,
    q_strides, k_strides, v_strides, out_strides,
    queries, middle, heads, groups, scale, first_block, splits, budget, steps,
    BLOCK_M: tl.constexpr, ROWS: tl.constexpr, ROOM: tl.constexpr, SLOTS: tl.constexpr, ALL_LISTS: tl.constexpr,
    CANDIDATES: tl.constexpr, CHUNK: tl.constexpr, VALUES: tl.constexpr, KEPT: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr, SIGHTED: tl.constexpr,
):  # fmt: skip
    """indices and weights (leads, queries, budget): the kept keys and their weights; -1 and 0 where there are fewer.

    SIGHTED: every row sees a key, so that one without candidates has NaN for scores, and its output is NaN.
    """
    first = tl.program_id(0) * ROWS  # ROWS divides BLOCK_M
    blocks = tl.cdiv(queries, BLOCK_M)
    block = first_block + first // BLOCK_M
    lead = block // blocks
    rows = block % blocks * BLOCK_M + first % BLOCK_M + tl.arange(0, ROWS)
    there = rows < queries
    here = first.to(tl.int64) + tl.arange(0, ROWS)
    q += place(q_strides, lead, middle, heads, 1)
    k += place(k_strides, lead, middle, heads, groups)
    v += place(v_strides, lead, middle, heads, groups)
    out += place(out_strides, lead, middle, heads, 1)
    if SCALED:
        scale = tl.load(scales + lead)
    total = unpack(lists, used, candidate_columns, here, there, splits, ROWS, ROOM, SLOTS, ALL_LISTS, CANDIDATES)
    tl.debug_barrier()
    query = load_rows(q, rows, queries, q_strides[3], WIDTH, BLOCK_D).to(tl.float32)
    score_candidates(
        query, k, candidate_columns, candidate_scores, here, total, k_strides[3], scale,
        CHUNK, CANDIDATES, WIDTH, BLOCK_D,
    )  # fmt: skip
    tl.debug_barrier()
    slot = tl.arange(0, CANDIDATES)[None, :]
    filled = slot < total[:, None]
    at = here[:, None] * CANDIDATES + slot
    columns = tl.load(candidate_columns + at, mask=filled, other=0)
    scores = tl.load(candidate_scores + at, mask=filled, other=-float("inf"))
    kept = filled
    if tl.max(total, 0) > budget:
        kept = tl.where((total > budget)[:, None], best(scores, columns, total, budget, steps), filled)
    some = total > 0
    peak = tl.where(some, tl.max(scores, 1), 0.0)
    exponentials = tl.where(kept, tl.exp2((scores - peak[:, None]) * LOG2_E), 0.0)
    whole = tl.where(some, tl.sum(exponentials, 1), 1.0)
    of_row = lead.to(tl.int64) * queries + rows
    tl.store(lse + of_row, tl.where(some, peak * LOG2_E + tl.log2(whole), float("inf")), mask=there)
    to = of_row * budget
    places = to[:, None] + tl.cumsum(kept.to(tl.int32), 1) - 1
    tl.store(indices + places, columns, mask=kept)
    tl.store(weights + places, exponentials / whole[:, None], mask=kept)
    room = tl.arange(0, KEPT)[None, :]
    missing = (room >= total[:, None]) & (room < budget) & there[:, None]
    tl.store(indices + to[:, None] + room, tl.full((ROWS, KEPT), -1, tl.int32), mask=missing)
    tl.store(weights + to[:, None] + room, tl.zeros((ROWS, KEPT), tl.float32), mask=missing)
    tl.debug_barrier()
    acc = weighted_values(
        v, indices, weights, to, tl.minimum(total, budget), v_strides[3], ROWS, VALUES, WIDTH, BLOCK_D
    )
    if SIGHTED:
        acc = tl.where(some[:, None], acc, float("nan"))
    store_rows(out, rows, queries, out_strides[3], acc, WIDTH, BLOCK_D)


@triton.jit
def gather_queries(
    k, v, out, d_out, scales, indices, weights, dq, d_scores,
    k_strides, v_strides, out_strides, d_out_strides, dq_strides,
    queries, middle, heads, groups, scale, budget,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """dq, and the gradient of the kept scores, shaped like ``weights``."""
    blocks = tl.cdiv(queries, ROWS)
    lead = tl.program_id(0) // blocks
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    k += place(k_strides, lead, middle, heads, groups)
    v += place(v_strides, lead, middle, heads, groups)
    d_out += place(d_out_strides, lead, middle, heads, 1)
    out += place(out_strides, lead, middle, heads, 1)
    if SCALED:
        scale = tl.load(scales + lead)
    d_row = load_rows(d_out, rows, queries, d_out_strides[3], WIDTH, BLOCK_D).to(tl.float32)
    out_row = load_rows(out, rows, queries, out_strides[3], WIDTH, BLOCK_D).to(tl.float32)
    delta = tl.sum(d_row * out_row, 1)[:, None]
    at = (lead.to(tl.int64) * queries + rows) * budget
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    for start in range(0, budget, CHUNK):
        slot = start + tl.arange(0, CHUNK)
        inside = (rows < queries)[:, None] & (slot < budget)[None, :]
        places = at[:, None] + slot[None, :]
        column = tl.load(indices + places, mask=inside, other=-1)
        there = column >= 0
        value = gathered(v, column, there, v_strides[3], WIDTH, BLOCK_D)
        key = gathered(k, column, there, k_strides[3], WIDTH, BLOCK_D)
        weight = tl.load(weights + places, mask=inside, other=0.0)
        change = weight * (tl.sum(d_row[:, None, :] * value, 2) - delta)
        tl.store(d_scores + places, change, mask=inside)
        acc += tl.sum(change[:, :, None] * key, 1)
    dq += place(dq_strides, lead, middle, heads, 1)
    store_rows(dq, rows, queries, dq_strides[3], acc * scale, WIDTH, BLOCK_D)
