"""Long rows, the search: which keys of a row can be among its K best. No score is ever written to memory.

1. ``group_maxima``: the keys pass by in tiles; slot c of segment g remembers the largest score it met. One maximum per
   score and no exchange between threads.
2. ``bounds``: the K-th largest of a row's group maxima. K different keys reach it, so the K best do. Where one segment
   is enough, the first kernel knows it already.
3. ``candidates``: the scores again; those that reach the bound are packed into words, 32 columns that one thread
   holds to a word, and words that are not zero are appended to four short lists per row.
4. ``search_again``: exact bisection for the rows where that went wrong: more candidates than there is room for.

Scores are compared as they leave the matrix product: the queries carry the sign of the scale, and its size comes later.
"""

import triton
import triton.language as tl

from .best_keys import one_from
from .tiles import (
    IMAGE_OF_INFINITY,
    IMAGE_OF_MINUS_INFINITY,
    INTERPRETED,
    LEAST,
    MAGNITUDE,
    load_rows,
    ones_in,
    place,
    seen_keys,
)

#: Keys of a tile, and lists of a row: a thread of a matrix product holds columns 8 j + 2 i and 8 j + 2 i + 1.
TILE_KEYS = tl.constexpr(128)
LISTS = tl.constexpr(4)


@triton.jit
def rows_of(block, queries, BLOCK_M: tl.constexpr):
    """The lead of a block of queries, its first query, and all of them."""
    blocks = tl.cdiv(queries, BLOCK_M)
    lead = block // blocks
    first = block % blocks * BLOCK_M
    return lead, first, first + tl.arange(0, BLOCK_M)


@triton.jit
def ends_of(first, queries, keys, offset, CAUSAL: tl.constexpr, MASKED: tl.constexpr, BLOCK_M: tl.constexpr):
    """(tiles that every query of the block sees whole, tiles that any of them sees)."""
    whole = keys // TILE_KEYS
    some = tl.cdiv(keys, TILE_KEYS)
    if CAUSAL:
        whole = tl.minimum(whole, tl.maximum(first + offset + 1, 0) // TILE_KEYS)
        last = tl.minimum(first + BLOCK_M, queries) + offset
        some = tl.minimum(some, tl.cdiv(tl.maximum(last, 0), TILE_KEYS))
    if MASKED:
        whole = 0
    return whole, some


@triton.jit
def product(q_tile, k, tile, keys, k_stride, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, EDGE: tl.constexpr):
    """(M, TILE_KEYS): scores of a tile of keys, of which only an EDGE may lack some."""
    columns = tl.arange(0, TILE_KEYS) + tile * TILE_KEYS
    k_tile = load_rows(k, columns, keys, k_stride, WIDTH, BLOCK_D, EDGE)
    return tl.dot(q_tile, tl.trans(k_tile))


@triton.jit
def careful_product(
    q, k, rows, queries, tile, keys, q_stride, k_stride, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The same for any dtype: float32 as three products of TF32, and wide heads in pieces that fit on the chip."""
    piece: tl.constexpr = min(BLOCK_D, 32)
    columns = tl.arange(0, TILE_KEYS) + tile * TILE_KEYS
    scores = tl.zeros((BLOCK_M, TILE_KEYS), tl.float32)
    for start in range(0, WIDTH, piece):
        depth = start + tl.arange(0, piece)
        inside = depth[None, :] < WIDTH
        q_piece = tl.load(
            q + rows[:, None] * q_stride + depth[None, :], mask=inside & (rows[:, None] < queries), other=0.0
        )
        k_piece = tl.load(
            k + columns[:, None] * k_stride + depth[None, :], mask=inside & (columns[:, None] < keys), other=0.0
        )
        scores = tl.dot(q_piece, tl.trans(k_piece), scores, input_precision="tf32x3")
    return scores


@triton.jit
def seen_scores(scores, tile, rows, keys, mask, mask_stride, offset, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """The scores with -inf where a query does not see the key."""
    columns = tl.arange(0, TILE_KEYS) + tile * TILE_KEYS
    seen = seen_keys(columns, keys, mask, mask_stride, MASKED)[None, :]
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None] + offset)
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def bound_of(maxima, margins, lead, rows, queries, budget, FEW: tl.constexpr, HALVED: tl.constexpr):
    """(M,): a number that at least ``budget`` of a row's maxima (M, N) reach; the least float if it has fewer.

    ``margins`` (leads, queries) is how far two scores in half precision may be from their order in float32.
    """
    if FEW:  # the budget-th largest different number
        limit = tl.max(maxima, 1)
        for _ in range(1, budget):  # what was taken goes down to the least number; a select would take twice as long
            limit = tl.max(maxima + one_from(maxima, limit) * LEAST, 1)
    else:
        # The lower end is a bound at any moment; twelve halvings leave hardly a score between it and the best one.
        limit = tl.min(tl.where(maxima > -float("inf"), maxima, float("inf")), 1)
        limit = tl.where(tl.sum((maxima > -float("inf")).to(tl.int32), 1) >= budget, limit, -float("inf"))
        width = tl.where(limit > -float("inf"), tl.max(maxima, 1) - limit, 0.0)
        for _ in range(12):
            width = width * 0.5
            enough = tl.sum((maxima >= (limit + width)[:, None]).to(tl.int32), 1) >= budget
            limit = tl.where(enough, limit + width, limit)
    if HALVED:
        limit -= tl.load(margins + lead.to(tl.int64) * queries + rows, mask=rows < queries, other=0.0)
    return tl.maximum(limit, LEAST)


@triton.jit(do_not_specialize=["offset", "first_block"])
def group_maxima(
    q, k, mask, margins, maxima, bound, q_strides, k_strides, mask_strides,
    queries, keys, middle, heads, groups, offset, first_block, segments, step, budget,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, ALONE: tl.constexpr, FEW: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """maxima (blocks, segments, M, TILE_KEYS): tile j belongs to segment j mod ``step``, those beyond are left out.

    An ALONE segment has all there is to know, and gives the ``bound`` (blocks, M) at once.
    """
    block = tl.program_id(0) // segments
    segment = tl.program_id(0) % segments
    lead, first, rows = rows_of(first_block + block, queries, BLOCK_M)
    q += place(q_strides, lead, middle, heads, 1)
    k += place(k_strides, lead, middle, heads, groups)
    mask += place(mask_strides, lead, middle, heads, 1)
    q_tile = load_rows(q, rows, queries, q_strides[3], WIDTH, BLOCK_D)
    whole, some = ends_of(first, queries, keys, offset, CAUSAL, MASKED, BLOCK_M)
    best = tl.full((BLOCK_M, TILE_KEYS), -float("inf"), tl.float32)
    for tile in range(segment, whole, step):
        best = tl.maximum(best, product(q_tile, k, tile, keys, k_strides[3], WIDTH, BLOCK_D, False))
    rest = segment + tl.cdiv(tl.maximum(whole - segment, 0), step) * step
    for tile in range(rest, some, step):
        scores = product(q_tile, k, tile, keys, k_strides[3], WIDTH, BLOCK_D, True)
        best = tl.maximum(best, seen_scores(scores, tile, rows, keys, mask, mask_strides[3], offset, CAUSAL, MASKED))
    at = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    if ALONE:
        tl.store(bound + at, bound_of(best, margins, lead, rows, queries, budget, FEW, HALVED))
    else:
        tl.store(maxima + at[:, None] * TILE_KEYS + tl.arange(0, TILE_KEYS)[None, :], best)


@triton.jit(do_not_specialize=["first_block"])
def bounds(
    maxima, margins, bound, queries, first_block, segments, budget,
    BLOCK_M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FEW: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """bound (blocks, M) from the maxima of several segments."""
    pieces: tl.constexpr = BLOCK_M // ROWS
    block = tl.program_id(0) // pieces
    row = tl.program_id(0) % pieces * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = (block.to(tl.int64) * segments + columns // TILE_KEYS)[None, :] * BLOCK_M + row[:, None]
    inside = (columns < segments * TILE_KEYS)[None, :] & (row >= 0)[:, None]
    values = tl.load(maxima + at * TILE_KEYS + (columns % TILE_KEYS)[None, :], mask=inside, other=-float("inf"))
    lead, first, _rows = rows_of(first_block + block, queries, BLOCK_M)
    limit = bound_of(values, margins, lead, first + row, queries, budget, FEW, HALVED)
    tl.store(bound + block.to(tl.int64) * BLOCK_M + row, limit)


@triton.jit
def packed(hits, BLOCK_M: tl.constexpr):
    """(M, LISTS): the hits (M, TILE_KEYS) as words; bit 2 j + c of list i is column 8 j + 2 i + c."""
    columns = tl.arange(0, TILE_KEYS)
    bit = ((columns >> 3) << 1) | (columns & 1)
    bits = tl.where(hits, (1 << bit)[None, :], 0)
    bits = tl.reshape(bits, (BLOCK_M, TILE_KEYS // 8, LISTS, 2))
    return tl.sum(tl.sum(bits, 3), 1)


@triton.jit
def store_apart(pointers, values, mask):
    """Stores int64 values where the threads hold them. ``tl.store`` would first exchange them between threads."""
    if INTERPRETED:
        tl.store(pointers, values, mask=mask)
    else:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.b64 [$1], $2; mov.u32 $0, 0; }",
            "=r,l,l,r", [pointers.to(tl.int64), values, mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def append(lists, used, total, words, tile, valid, ROOM: tl.constexpr):
    """Appends a tile's words that are not zero. ``lists`` points to each list's beginning."""
    some = (words != 0) & valid
    entry = ((used.to(tl.int64) * 0 + tile) << 32) | words.to(tl.uint32, bitcast=True).to(tl.int64)
    store_apart(lists + used, entry, some & (used < ROOM))
    return used + some.to(tl.int32), total + tl.where(some, ones_in(words), 0)


@triton.jit(do_not_specialize=["offset", "first_block"])
def candidates(
    q, k, mask, bound, lists, used, totals, q_strides, k_strides, mask_strides,
    queries, keys, middle, heads, groups, offset, first_block, splits,
    ROOM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """lists (blocks, M, splits, LISTS, ROOM): tile << 32 | word; used (blocks, M, splits, LISTS): how many words there
    were, even where there was no room; totals of the same shape: how many candidates. A split takes every so many-th
    tile.
    """
    block = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    lead, first, rows = rows_of(first_block + block, queries, BLOCK_M)
    q += place(q_strides, lead, middle, heads, 1)
    k += place(k_strides, lead, middle, heads, groups)
    mask += place(mask_strides, lead, middle, heads, 1)
    q_tile = load_rows(q, rows, queries, q_strides[3], WIDTH, BLOCK_D)
    local = block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    limit = tl.load(bound + local)[:, None]
    at = (local[:, None] * splits + split) * LISTS + tl.arange(0, LISTS)[None, :]  # (M, LISTS)
    begin = lists + at * ROOM
    valid = (rows < queries)[:, None] & (tl.arange(0, LISTS) >= 0)[None, :]
    count = tl.zeros((BLOCK_M, LISTS), tl.int32)
    total = tl.zeros((BLOCK_M, LISTS), tl.int32)
    whole, some = ends_of(first, queries, keys, offset, CAUSAL, MASKED, BLOCK_M)
    for tile in range(split, whole, splits):
        scores = product(q_tile, k, tile, keys, k_strides[3], WIDTH, BLOCK_D, False)
        count, total = append(begin, count, total, packed(scores >= limit, BLOCK_M), tile, valid, ROOM)
    rest = split + tl.cdiv(tl.maximum(whole - split, 0), splits) * splits
    for tile in range(rest, some, splits):
        scores = product(q_tile, k, tile, keys, k_strides[3], WIDTH, BLOCK_D, True)
        scores = seen_scores(scores, tile, rows, keys, mask, mask_strides[3], offset, CAUSAL, MASKED)
        count, total = append(begin, count, total, packed(scores >= limit, BLOCK_M), tile, valid, ROOM)
    tl.store(used + at, count)
    tl.store(totals + at, total)


@triton.jit
def kept_scores(scores, tile, lowest, last):
    """bool (M, TILE_KEYS): scores above ``lowest``, and those equal to it up to the column ``last``."""
    columns = (tl.arange(0, TILE_KEYS) + tile * TILE_KEYS)[None, :]
    return (scores > lowest[:, None]) | ((scores == lowest[:, None]) & (columns <= last[:, None]))


@triton.jit
def score_of(image):
    """The float whose sortable integer image this is."""
    return (image ^ ((image >> 31) & MAGNITUDE)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["offset", "first_block"])
def search_again(
    q, k, mask, bound, lists, used, totals, q_strides, k_strides, mask_strides,
    queries, keys, middle, heads, groups, offset, first_block, splits, budget, steps,
    CANDIDATES: tl.constexpr, ROOM: tl.constexpr, ALL_LISTS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Replaces the lists of rows with too many candidates, or too few, by exactly ``budget`` keys. Slow and rare.

    2^steps must exceed the number of keys.
    """
    block = tl.program_id(0)
    local = block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    every = tl.arange(0, ALL_LISTS)
    at = local[:, None] * (splits * LISTS) + every[None, :]
    there = (every < splits * LISTS)[None, :] & (local >= 0)[:, None]
    fullest = tl.max(tl.load(used + at, mask=there, other=0), 1)
    found = tl.sum(tl.load(totals + at, mask=there, other=0), 1)
    lead, first, rows = rows_of(first_block + block, queries, BLOCK_M)
    too_few = (found < budget) & (tl.load(bound + local) > LEAST)
    wrong = ((fullest > ROOM) | (found > CANDIDATES) | too_few) & (rows < queries)
    if tl.max(wrong.to(tl.int32), 0) > 0:
        q += place(q_strides, lead, middle, heads, 1)
        k += place(k_strides, lead, middle, heads, groups)
        mask += place(mask_strides, lead, middle, heads, 1)
        _whole, some = ends_of(first, queries, keys, offset, CAUSAL, MASKED, BLOCK_M)
        low = tl.full((BLOCK_M,), IMAGE_OF_MINUS_INFINITY, tl.int32) + 1
        high = tl.full((BLOCK_M,), IMAGE_OF_INFINITY, tl.int32)
        for _ in range(32):  # the budget-th largest score, ties counted; the least one if there are fewer
            mean = (low & high) + ((low ^ high) >> 1)
            limit = score_of(mean)
            counts = tl.zeros((BLOCK_M, TILE_KEYS), tl.int32)
            for tile in range(0, some):
                scores = careful_product(
                    q, k, rows, queries, tile, keys, q_strides[3], k_strides[3], BLOCK_M, WIDTH, BLOCK_D
                )
                scores = seen_scores(scores, tile, rows, keys, mask, mask_strides[3], offset, CAUSAL, MASKED)
                counts += (scores >= limit[:, None]).to(tl.int32)
            enough = tl.sum(counts, 1) >= budget
            low = tl.where(enough, mean, low)
            high = tl.where(enough, high, mean)
        lowest = score_of(low)
        before = tl.full((BLOCK_M,), -1, tl.int32)
        last = before + (1 << steps)
        for _ in range(steps):  # the first column up to which there are enough
            column = (before + last) >> 1
            counts = tl.zeros((BLOCK_M, TILE_KEYS), tl.int32)
            for tile in range(0, some):
                scores = careful_product(
                    q, k, rows, queries, tile, keys, q_strides[3], k_strides[3], BLOCK_M, WIDTH, BLOCK_D
                )
                scores = seen_scores(scores, tile, rows, keys, mask, mask_strides[3], offset, CAUSAL, MASKED)
                counts += kept_scores(scores, tile, lowest, column).to(tl.int32)
            enough = tl.sum(counts, 1) >= budget
            last = tl.where(enough, column, last)
            before = tl.where(enough, before, column)
        tl.store(used + at, tl.zeros((BLOCK_M, ALL_LISTS), tl.int32), mask=there & wrong[:, None])
        tl.debug_barrier()
        own = local[:, None] * (splits * LISTS) + tl.arange(0, LISTS)[None, :]
        valid = wrong[:, None] & (tl.arange(0, LISTS) >= 0)[None, :]
        count = tl.zeros((BLOCK_M, LISTS), tl.int32)
        total = tl.zeros((BLOCK_M, LISTS), tl.int32)
        for tile in range(0, some):
            scores = careful_product(
                q, k, rows, queries, tile, keys, q_strides[3], k_strides[3], BLOCK_M, WIDTH, BLOCK_D
            )
            scores = seen_scores(scores, tile, rows, keys, mask, mask_strides[3], offset, CAUSAL, MASKED)
            words = packed(kept_scores(scores, tile, lowest, last) & (scores > -float("inf")), BLOCK_M)
            count, total = append(lists + own * ROOM, count, total, words, tile, valid, ROOM)
        tl.store(used + own, count, mask=valid)
