"""What the kernels share: tiles of matrices, who sees whom, and the reference's dropout bits.

Letters: M queries and N keys of a tile.
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
#: What is known of each row of scores (its kept bits, its log-sum-exp) is stored for a multiple of this many rows, or
#: for half as many: kernels read it in whole vectors, without asking where the last row is. No tile has more rows.
ROWS = tl.constexpr(128)
#: A kernel's DROPOUT: 0 for none, this where its bits were drawn before (``dropout_bits``), and 1 to draw them itself.
DRAWN = tl.constexpr(2)
#: The smallest finite number.
LEAST = tl.constexpr(-3.4028234663852886e38)
#: Weights in half precision are computed 2^LIFT times too large: smaller ones keep their digits.
LIFT = tl.constexpr(15.0)
UNLIFT = tl.constexpr(2.0**-15)


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
    return tl.where(queries <= ROWS // 2, ROWS // 2, tl.cdiv(queries, ROWS) * ROWS)


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
