"""What the kernels share: who sees whom, the reference's dropout bits, and the choice of the k best keys of a row.

Letters: M queries and N keys of a tile; a row of scores under top-k is a tuple of tiles (M, N) side by side.
"""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2_E = tl.constexpr(1.4426950408889634)
GOLDEN = tl.constexpr(0x9E3779B9)
OFFSET = tl.constexpr(0x3C6EF372)
FIRST_MULTIPLIER = tl.constexpr(0x7FEB352D)
SECOND_MULTIPLIER = tl.constexpr(0x846CA68B)
# The sortable integer image of a float: the bits, with all but the sign flipped where it is negative.
IMAGE_OF_MINUS_INFINITY = tl.constexpr(-2139095041)
IMAGE_OF_INFINITY = tl.constexpr(2139095040)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
#: What is known of each row of scores (its kept bits, its log-sum-exp) is stored for a multiple of this many rows:
#: kernels read it in whole vectors, without asking where the last row is.
ROWS = tl.constexpr(64)
#: A kernel's DROPOUT: 0 for none, this where its bits were drawn before (``dropout_bits``), and 1 to draw them itself.
DRAWN = tl.constexpr(2)
#: The smallest finite number.
LEAST = tl.constexpr(-3.4028234663852886e38)
#: Weights in half precision are computed 2^LIFT times too large: smaller ones keep their digits.
LIFT = tl.constexpr(15.0)
UNLIFT = tl.constexpr(2.0**-15)
#: Up to this many keys, taking the best remaining one is cheaper than a search for the threshold.
REMOVALS_UP_TO = tl.constexpr(16)
#: Steps of that search, which usually needs seven for a block; and scores that it may leave to be taken one by one.
LONGEST_SEARCH = tl.constexpr(24)
REMOVED = tl.constexpr(2)


@triton.jit
def place(strides, lead, middle, heads, groups):
    """Where the matrix of the ``lead``-th (n0, n1, head) begins; ``groups`` query heads share a head."""
    head = lead % heads // groups
    return (
        (lead // (heads * middle)).to(tl.int64) * strides[0]
        + (lead // heads % middle).to(tl.int64) * strides[1]
        + head.to(tl.int64) * strides[2]
    )


@triton.jit
def padded_rows(queries):
    return tl.cdiv(queries, ROWS) * ROWS


@triton.jit
def load_rows(start, rows, count, stride, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, EDGE: tl.constexpr = True):
    """(rows, BLOCK_D) of a matrix with contiguous rows; zeros beyond its ends. Without an EDGE all rows are inside."""
    columns = tl.arange(0, BLOCK_D)
    pointers = start + rows[:, None] * stride + columns[None, :]
    if WIDTH < BLOCK_D:
        return tl.load(pointers, mask=(rows[:, None] < count) & (columns[None, :] < WIDTH), other=0.0)
    if EDGE:
        return tl.load(pointers, mask=rows[:, None] < count, other=0.0)
    return tl.load(pointers)


@triton.jit
def seen_by(first, offset, keys, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr):
    """How many keys the first and the last row of a block see, masks aside."""
    by_first, by_last = keys, keys
    if CAUSAL:
        by_first = tl.minimum(keys, tl.maximum(first + offset + 1, 0))
        by_last = tl.minimum(keys, tl.maximum(first + offset + BLOCK_M, 0))
    return by_first, by_last


@triton.jit
def whole_tiles(seen_by_all, CHECKED: tl.constexpr, BLOCK: tl.constexpr):
    """Up to where the tiles of a block of rows need no look at who sees whom; nowhere if each must be CHECKED."""
    if CHECKED:
        return seen_by_all * 0
    return seen_by_all // BLOCK * BLOCK


@triton.jit
def store_rows(start, rows, count, stride, values, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < count) & (columns[None, :] < WIDTH)
    tl.store(start + rows[:, None] * stride + columns[None, :], values.to(start.dtype.element_ty), mask=inside)


@triton.jit
def seen_keys(columns, keys, mask, mask_stride, MASKED: tl.constexpr):
    """bool (N,): keys that exist and that the mask lets through."""
    seen = columns < keys
    if MASKED:
        seen = seen & (tl.load(mask + columns.to(tl.int64) * mask_stride, mask=seen, other=0) != 0)
    return seen


@triton.jit
def steps_of(low, high, tail, end, BLOCK: tl.constexpr):
    """Tiles of [low, high) and then of [tail, end): begin and number of the first, begin of the rest, number of all.

    The rest begin where the first stop, if not later.
    """
    low = low // BLOCK * BLOCK
    local = tl.cdiv(tl.maximum(high - low, 0), BLOCK)
    tail = tl.maximum(tail // BLOCK * BLOCK, low + local * BLOCK)
    return low, local, tail, local + tl.cdiv(tl.maximum(end - tail, 0), BLOCK)


@triton.jit
def steps_over_keys(
    begins, ends, lead, rows, queries, keys, end, first_global, every, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Each query's interval of keys, and the tiles of keys its block goes through, as ``steps_of`` gives them.

    Without a window: those up to ``end``.
    """
    row_begin, row_end = rows, rows
    low, tail = 0, 0
    local = tl.cdiv(end, BLOCK_N)
    count = local
    if WINDOW:
        at = (lead * every).to(tl.int64) * queries + rows
        row_begin = tl.load(begins + at, mask=rows < queries, other=keys)
        row_end = tl.load(ends + at, mask=rows < queries, other=0)
        low, local, tail, count = steps_of(tl.min(row_begin, 0), tl.max(row_end, 0), first_global, keys, BLOCK_N)
    return row_begin, row_end, low, local, tail, count


@triton.jit
def start_of(turn, low, local, tail, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    """Where the ``turn``-th tile begins."""
    start = low + turn * BLOCK
    if WINDOW:
        start = tl.where(turn < local, start, tail + (turn - local) * BLOCK)
    return start


@triton.jit
def in_window(begin, end, columns, first_global):
    """bool: keys of a query's interval, and global ones. The arguments broadcast to the tile."""
    return ((columns >= begin) & (columns < end)) | (columns >= first_global)


@triton.jit
def mix(h):
    """``randomness.mix`` on uint32."""
    h = (h ^ (h >> 16)) * FIRST_MULTIPLIER
    h = (h ^ (h >> 15)) * SECOND_MULTIPLIER
    return h ^ (h >> 16)


@triton.jit
def step_of(index):
    """What absorbing an index adds to a key."""
    return (index.to(tl.uint32) ^ OFFSET) * GOLDEN


@triton.jit
def survives(row_keys, columns, limit):
    """bool: which weights dropout spares, ``mix(...) >= limit``; ``row_keys`` and ``columns`` broadcast to the tile.

    The last step of ``mix`` adds the upper half h of the number to its lower half, which counts only where h is the
    upper half of the limit: so that one is added, which is the same for all.
    """
    h = row_keys + step_of(columns)
    h = (h ^ (h >> 16)) * FIRST_MULTIPLIER
    h = (h ^ (h >> 15)) * SECOND_MULTIPLIER
    return (h.to(tl.int32, bitcast=True) ^ ((limit >> 16) & 0xFFFF)) >= limit


@triton.jit
def dropout_source(noise, lead, rows, offset, stride, keys, DROPOUT: tl.constexpr):
    """Where ``spared_keys`` finds its choice: the lead's bits, and a key for each row (M, 1)."""
    row_keys = rows[:, None]
    if DROPOUT == DRAWN:
        noise += lead.to(tl.int64) * stride * tl.cdiv(keys, 32)
    elif DROPOUT:
        row_keys = mix(tl.load(noise + lead).to(tl.uint32, bitcast=True) + step_of(rows + offset))[:, None]
    return noise, row_keys


@triton.jit
def spared_keys(bits, row_keys, rows, stride, start, keys, limit, DROPOUT: tl.constexpr, BLOCK_N: tl.constexpr):
    """bool (M, N): which weights dropout spares, for the keys from ``start`` on."""
    if DROPOUT == DRAWN:
        return bits_of(bits, rows, stride, start, keys, True, BLOCK_N)
    return survives(row_keys, (start + tl.arange(0, BLOCK_N))[None, :], limit)


@triton.jit
def spare(values, spared):
    """``values`` where ``spared``, else 0, in a form that stays as it is when it is rounded to halves next.

    The compiler would round first and then pick from pairs of halves, which takes three times as many instructions.
    """
    chosen = tl.where(spared, values, 0.0)
    if INTERPRETED:
        return chosen
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [chosen], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def ones_in(word):
    """How many bits of int32 numbers are set."""
    if INTERPRETED:
        x = word.to(tl.uint32, bitcast=True)
        x = x - ((x >> 1) & 0x55555555)
        x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
        return ((((x + (x >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)
    return tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [word], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def bits_of(words, rows, stride, first, keys, ROWS_DOWN: tl.constexpr, BLOCK_N: tl.constexpr):
    """bool (M, N), or (N, M) unless ``ROWS_DOWN``: what was chosen before for the keys from ``first`` on.

    ``words`` is (words of 32 keys, padded rows), with that ``stride``. Anything may stand beyond the last query.
    """
    columns = tl.arange(0, BLOCK_N)
    columns = columns[None, :] if ROWS_DOWN else columns[:, None]
    bits = tl.zeros((1, 1), tl.int32)
    for i in tl.static_range((BLOCK_N + 31) // 32):
        word = (first >> 5) + i
        inside = word * 32 + 0 * rows < keys  # both sides are blocks: some versions insist
        loaded = tl.load(words + word * stride + rows, mask=inside, other=0)
        loaded = loaded[:, None] if ROWS_DOWN else loaded[None, :]
        bits = tl.where(columns >= 32 * i, loaded, bits)
    return ((bits >> ((first + columns) & 31)) & 1) != 0


# --- the k best keys of a row ---


@triton.jit
def largest_below(scores, limit, TILES: tl.constexpr):
    """(M,): the largest score of each row that is smaller than ``limit``; -inf if there is none."""
    best = tl.where(scores[0] < limit[:, None], scores[0], -float("inf"))
    for i in tl.static_range(1, TILES):
        best = tl.maximum(best, tl.where(scores[i] < limit[:, None], scores[i], -float("inf")))
    return tl.max(best, 1)


@triton.jit
def rough_log(x):
    """Grows nearly like the logarithm of a positive number: its exponent and, between two of them, its fraction."""
    return x.to(tl.int32, bitcast=True).to(tl.float32)


@triton.jit
def one_from(scores, limit):
    """1.0 where a score is at least its row's ``limit`` (M,), else 0.0: one instruction, where a select takes two."""
    if INTERPRETED:
        return (scores >= limit[:, None]).to(tl.float32)
    return tl.inline_asm_elementwise(
        "set.ge.f32.f32 $0, $1, $2;", "=f,f,f", [scores, limit[:, None]], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def count_from(scores, limit, TILES: tl.constexpr):
    """(M,): how many scores of each row are at least ``limit``."""
    count = one_from(scores[0], limit)
    for i in tl.static_range(1, TILES):
        count += one_from(scores[i], limit)
    return tl.sum(count, 1).to(tl.int32)


@triton.jit
def count_ties(scores, limit, last, TILES: tl.constexpr, BLOCK_N: tl.constexpr):
    """(M,): how many scores of each row equal ``limit``, up to the column ``last``."""
    columns = tl.arange(0, BLOCK_N)[None, :]
    count = ((scores[0] == limit[:, None]) & (columns <= last[:, None])).to(tl.int32)
    for i in tl.static_range(1, TILES):
        count += ((scores[i] == limit[:, None]) & (columns + i * BLOCK_N <= last[:, None])).to(tl.int32)
    return tl.sum(count, 1)


@triton.jit
def bisect_score(scores, k, TILES: tl.constexpr, BLOCK_M: tl.constexpr):
    """(M,): the k-th largest score of each row, ties counted; the least finite number if the row has fewer."""
    low = tl.full((BLOCK_M,), IMAGE_OF_MINUS_INFINITY, tl.int32)
    high = tl.full((BLOCK_M,), IMAGE_OF_INFINITY, tl.int32)
    for _ in range(32):
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow
        limit = (middle ^ ((middle >> 31) & MAGNITUDE)).to(tl.float32, bitcast=True)
        enough = count_from(scores, limit, TILES) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return tl.maximum((low ^ ((low >> 31) & MAGNITUDE)).to(tl.float32, bitcast=True), LEAST)


@triton.jit
def search_score(scores, best, k, TILES: tl.constexpr, BLOCK_M: tl.constexpr):
    """(M,): a threshold from which on each row has its k best scores, or all if it has fewer; and if all were found.

    Interpolates the logarithm of the number of scores above a threshold, which is nearly linear in the threshold for
    most distributions, between one that is too low and one that is too high, until at most REMOVED are missing. They
    are taken one by one. Many equal scores can hide the threshold.
    """
    top = scores[0]  # of each column slot
    for i in tl.static_range(1, TILES):
        top = tl.maximum(top, scores[i])
    some = top > -float("inf")
    x = tl.sum(tl.where(some, top, 0.0), 1) / tl.maximum(tl.sum(some.to(tl.int32), 1), 1)
    limit = tl.full((BLOCK_M,), LEAST, tl.float32)
    found = count_from(scores, limit, TILES) <= k
    reached = tl.where(found, k, 0)  # scores from the limit on
    low, high, width = x, best, tl.maximum(best - x, 1e-3 * tl.abs(best))
    wanted = rough_log(tl.full((BLOCK_M,), k - 0.5 * REMOVED, tl.float32))
    log_low, log_high = tl.full((BLOCK_M,), 0.0, tl.float32), rough_log(tl.full((BLOCK_M,), 0.5, tl.float32))
    step = 0
    missing = tl.max((~found).to(tl.int32), 0)
    while (step < LONGEST_SEARCH) & (missing > 0):
        above = count_from(scores, x, TILES)
        hit = (above <= k) & (above >= k - REMOVED) & ~found
        limit = tl.where(hit, x, limit)
        reached = tl.where(hit, above, reached)
        found = found | hit
        many = above > k
        log_above = rough_log(tl.maximum(above.to(tl.float32), 0.5))
        low = tl.where(many, x, low)
        log_low = tl.where(many, log_above, log_low)
        high = tl.where(many, high, x)
        log_high = tl.where(many, log_high, log_above)
        bounded = log_low > 0.0  # one that is too low is known
        share = (log_low - wanted) / (log_low - log_high)
        share = tl.where(step % 3 == 2, 0.5, tl.minimum(tl.maximum(share, 0.02), 0.98))
        width = tl.where(bounded, width, 2.0 * width)
        x = tl.where(bounded, low + (high - low) * share, high - width)
        missing = tl.max((~found).to(tl.int32), 0)
        step += 1
    for _ in tl.static_range(REMOVED):
        limit = tl.where(reached < k, tl.maximum(largest_below(scores, limit, TILES), LEAST), limit)
        reached += 1
    return limit, missing == 0


@triton.jit
def bisect_column(scores, limit, room, TILES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(M,): the first column up to which each row holds ``room`` scores equal to ``limit``."""
    low = tl.full((BLOCK_M,), -1, tl.int32)
    high = tl.full((BLOCK_M,), TILES * BLOCK_N - 1, tl.int32)
    for _ in range(11):  # rows have at most 1,024 columns
        middle = (low + high) >> 1
        enough = count_ties(scores, limit, middle, TILES, BLOCK_N) >= room
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit
def choose(scores, best, k, TILES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The k best keys: those above the first result, and those equal to it up to the column of the second.

    ``best`` (M,) is each row's largest score. Invisible keys have score -inf and are never chosen.
    """
    limit = best
    if k <= REMOVALS_UP_TO:
        for _ in range(1, k):
            limit = largest_below(scores, limit, TILES)  # the k-th largest different score
        limit = tl.maximum(limit, LEAST)
    else:
        limit, found = search_score(scores, best, k, TILES, BLOCK_M)
        if not found:
            limit = bisect_score(scores, k, TILES, BLOCK_M)
    last = tl.full((BLOCK_M,), TILES * BLOCK_N, tl.int32)
    surplus = count_from(scores, limit, TILES) - k
    if tl.max(surplus, 0) > 0:  # somewhere two scores are equal
        if k <= REMOVALS_UP_TO:
            limit = bisect_score(scores, k, TILES, BLOCK_M)
            surplus = count_from(scores, limit, TILES) - k
        ties = count_ties(scores, limit, last, TILES, BLOCK_N)
        cut = bisect_column(scores, limit, ties - surplus, TILES, BLOCK_M, BLOCK_N)
        last = tl.where(surplus > 0, cut, last)
    return limit, last
