"""Float32 matrices as half-precision ones with a unit: x = unit * y, unit a power of two, y in float16.

A float16 has as many significant bits as TF32, and products with it are twice as fast and read half the bytes. What it
lacks is range, so each head's matrix gets a unit that puts its largest entry between 2^14 and 2^15:

    |x - unit * y| <= 2^-11 |x| + 2^-39 max|x|
"""

import triton
import triton.language as tl

from .tiles import load_rows, place, store_rows


@triton.jit
def unit_for(largest, TOP: tl.constexpr = 14):
    """The unit that puts the largest entry between 2^TOP and twice that (TOP from 1 on), and its inverse."""
    # The bits of a power of two are its exponent + 127, shifted; what is smaller than 2^(TOP - 126) counts as that.
    exponent = tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, TOP + 1)
    unit = ((exponent - TOP) << 23).to(tl.float32, bitcast=True)
    return unit, ((-exponent + 254 + TOP) << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_half(
    x, y, units, x_strides, rows, middle, heads,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """A program converts the matrix of one head, (n0, n1, h, rows, WIDTH) in any strides -> contiguous."""
    lead = tl.program_id(0)
    x += place(x_strides, lead, middle, heads, 1)
    y += lead.to(tl.int64) * rows * WIDTH
    largest = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, rows, BLOCK_M):
        tile = load_rows(x, start + tl.arange(0, BLOCK_M), rows, x_strides[3], WIDTH, BLOCK_D)
        largest = tl.maximum(largest, tl.max(tl.abs(tile), 1))
    unit, inverse = unit_for(tl.max(largest, 0))
    tl.store(units + lead, unit)
    for start in range(0, rows, BLOCK_M):
        here = start + tl.arange(0, BLOCK_M)
        tile = load_rows(x, here, rows, x_strides[3], WIDTH, BLOCK_D)
        store_rows(y, here, rows, WIDTH, tile * inverse, WIDTH, BLOCK_D)


#: Rows that share a unit, where a matrix has several.
UNIT_ROWS = tl.constexpr(64)


@triton.jit
def store_with_unit(
    x, units, lead, first, rows, count, stride, values,
    HALVED: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As ``store_rows``, of a BLOCK of rows from ``first`` on.

    A result of HALVED inputs that is itself written as halves has one unit for all of them: units (leads, tiles of
    UNIT_ROWS rows).
    """
    if HALVED and x.dtype.element_ty == tl.float16:
        values = tl.where((rows < count)[:, None], values, 0.0)
        unit, inverse = unit_for(tl.max(tl.max(tl.abs(values), 1), 0))
        tiles = tl.cdiv(count, UNIT_ROWS)  # a smaller BLOCK holds all rows, or two programs would write one unit
        own = first // UNIT_ROWS + tl.arange(0, max(BLOCK // UNIT_ROWS, 1))
        tl.store(units + lead.to(tl.int64) * tiles + own, unit + 0.0 * own, mask=own < tiles)
        values = values * inverse
    store_rows(x, rows, count, stride, values, WIDTH, BLOCK_D)
