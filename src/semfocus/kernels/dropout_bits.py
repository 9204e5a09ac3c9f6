"""Dropout's choices for a matrix of weights, one bit each, drawn once for the forward and both backward kernels.

The number behind a bit takes nine instructions, reading the bit takes three, and a thread that draws the 32 bits of a
word needs nobody else for it.
"""

import triton
import triton.language as tl

from .tiles import mix, padded_rows, step_of, survives


@triton.jit(do_not_specialize=["offset", "limit"])
def draw_bits(noise, bits, queries, keys, offset, limit, BLOCK_M: tl.constexpr):
    """bits (leads, words of 32 keys, padded rows), from a key for each lead: a program takes a block of one's rows."""
    stride = padded_rows(queries)
    blocks = tl.cdiv(stride, BLOCK_M)
    lead = (tl.program_id(0) // blocks).to(tl.int64)
    rows = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    words = tl.cdiv(keys, 32)
    row_keys = mix(tl.load(noise + lead).to(tl.uint32, bitcast=True) + step_of(rows + offset))
    bits += lead * words * stride
    for word in range(0, words):
        found = tl.zeros((BLOCK_M,), tl.int32)
        for i in tl.static_range(32):
            found |= survives(row_keys, rows * 0 + (word * 32 + i), limit).to(tl.int32) << i
        tl.store(bits + word * stride + rows, found, mask=rows < stride)
