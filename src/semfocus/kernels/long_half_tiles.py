"""What surrounds the attention of a block in its forward pass, for examples that do not fit on chip.

    x = norm(h)    q, k, v = x W + b        (attention)        out = h + dropout(a Wo + bo)

Queries, keys and values are written as halves (see ``half.py``) at once. Their units come from a bound, as |x|^2 <= d:

    |x w + b| <= sqrt(d) |w| + |b|

Attention's output a is in v's unit. Every head has the whole width: W is (d, 3 H d), with the queries of all heads
first, and Wo (H d, d). ``maps`` (4 H, d, d) are they rounded to float16, without units, one square after another.
Letters: M tokens of a tile, d width, H heads.
"""

import triton
import triton.language as tl

from .attention_half_tiles import ATTENTION_OUT, WEIGHTS
from .half import unit_for
from .mlp_half_tiles import key_of_site, normed, vector
from .tiles import load_rows, mix, step_of, store_rows, survives


@triton.jit
def map_at(maps, index, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """(BLOCK_D, BLOCK_D): one of ``maps``, counted through all members."""
    return load_rows(maps + index * (WIDTH * WIDTH), tl.arange(0, BLOCK_D), WIDTH, WIDTH, WIDTH, BLOCK_D, False)


@triton.jit
def facts_of_members(
    w, b, w_out, scales, keys, units, maps, noise, head_scales, w_stride, b_stride, w_out_stride, members, examples,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Of a head of a member its ``maps``; and for that head of each example: units of q, k and v (3, m, b, H), the
    dropout key, the scores' scale.
    """
    member = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    d, example = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_B)
    there = example < examples
    at = (member * examples + example) * HEADS + head
    maps += (member * (4 * HEADS) + head) * (WIDTH * WIDTH)
    for which in tl.static_range(3):
        columns_before = (which * HEADS + head) * WIDTH
        start = w + member * w_stride + columns_before
        columns = load_rows(start, d, WIDTH, 3 * HEADS * WIDTH, WIDTH, BLOCK_D)
        store_rows(maps + which * (HEADS * WIDTH * WIDTH), d, WIDTH, WIDTH, columns, WIDTH, BLOCK_D)
        bias = vector(b + member * b_stride + columns_before, WIDTH, BLOCK_D)
        bound = tl.sqrt(tl.max(tl.sum(columns * columns, 0), 0) * WIDTH) + tl.max(tl.abs(bias), 0)
        unit, _inverse = unit_for(bound)  # float16 goes to 2^16: rounding may carry a number a little beyond its bound
        tl.store(units + which * members * examples * HEADS + at, unit + 0.0 * example, mask=there)
    back = load_rows(w_out + member * w_out_stride + head * (WIDTH * WIDTH), d, WIDTH, WIDTH, WIDTH, BLOCK_D)
    store_rows(maps + 3 * (HEADS * WIDTH * WIDTH), d, WIDTH, WIDTH, back, WIDTH, BLOCK_D)
    key = mix(mix(key_of_site(keys, member, WEIGHTS) + step_of(example)) + step_of(example * 0 + head))
    tl.store(noise + at, key.to(tl.int32, bitcast=True), mask=there)
    scale = (tl.load(scales + member) * WIDTH**-0.5).to(tl.float32)
    tl.store(head_scales + at, scale + 0.0 * example, mask=there)


@triton.jit
def before_forward(
    h, maps, b, units, qkv, b_stride, members, examples, tokens, eps,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """qkv (m, n, 3, H, d) in halves: a program takes a tile of one member's tokens, of which there are ``tokens``."""
    tiles = tl.cdiv(tokens, BLOCK_M)
    member = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * BLOCK_M
    own = tl.arange(0, BLOCK_M)
    at = (member * tokens + first) * WIDTH
    x, _inverse = normed(load_rows(h + at, own, tokens - first, WIDTH, WIDTH, BLOCK_D), eps, WIDTH, BLOCK_D)
    x = x.to(tl.float16)
    for column in range(3 * HEADS):
        # All examples have the same.
        unit = tl.load(units + (column // HEADS * members + member) * examples * HEADS + column % HEADS)
        y = tl.dot(x, map_at(maps, member * (4 * HEADS) + column, WIDTH, BLOCK_D))
        y = (y + vector(b + member * b_stride + column * WIDTH, WIDTH, BLOCK_D)[None, :]) * (1.0 / unit)
        here = qkv + (3 * HEADS) * at + column * WIDTH
        store_rows(here, own, tokens - first, 3 * HEADS * WIDTH, y, WIDTH, BLOCK_D)


@triton.jit(do_not_specialize=["limit"])
def after_forward(
    h, mixed, units, maps, b_out, keys, out, b_stride, members, examples, tokens, limit, factor,
    DROPOUT: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """A program takes a tile of one member's tokens."""
    tiles = tl.cdiv(tokens, BLOCK_M)
    member = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * BLOCK_M
    own = tl.arange(0, BLOCK_M)
    at = (member * tokens + first) * WIDTH
    y = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for head in range(HEADS):
        unit = tl.load(units + (2 * members + member) * examples * HEADS + head)
        of_head = load_rows(mixed + HEADS * at + head * WIDTH, own, tokens - first, HEADS * WIDTH, WIDTH, BLOCK_D)
        y += tl.dot(of_head, map_at(maps, member * (4 * HEADS) + 3 * HEADS + head, WIDTH, BLOCK_D)) * unit
    y = y * factor + vector(b_out + member * b_stride, WIDTH, BLOCK_D)[None, :]  # the weights' dropout, left out so far
    if DROPOUT:
        rows = mix(key_of_site(keys, member, ATTENTION_OUT) + step_of(first + own))
        y = tl.where(survives(rows[:, None], tl.arange(0, BLOCK_D)[None, :], limit), y * factor, 0.0)
    tile = load_rows(h + at, own, tokens - first, WIDTH, WIDTH, BLOCK_D)
    store_rows(out + at, own, tokens - first, WIDTH, tile + y, WIDTH, BLOCK_D)
