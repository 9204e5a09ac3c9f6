"""What surrounds the attention of a block, for examples that do not fit on chip: two kernels before it, one after.

    x = norm(h)    q, k, v = x W + b        (attention)        out = h + dropout(a Wo + bo)

Queries, keys and values are written as halves (see ``half.py``) at once. Their units come from a bound, as |x|^2 <= d:

    |x w + b| <= sqrt(d) |w| + |b|

Gradients are multiplied as halves too, with a unit for each tile. Every head has the whole width: W is (d, 3 H d), with
the queries of all heads first, and Wo (H d, d). Letters: M tokens of a tile, d width, H heads.
"""

import triton
import triton.language as tl

from .attention_half_tiles import ATTENTION_OUT, WEIGHTS, map_of, product
from .half import unit_for
from .mlp_half_tiles import key_of_site, normed, vector
from .tiles import load_rows, mix, step_of, store_rows, survives


@triton.jit
def facts_of_members(
    w, b, scales, keys, units, noise, head_scales, w_stride, b_stride, members, examples,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """For a head of each example of a member: units of q, k and v (3, m, b, H), the dropout key, the scores' scale."""
    member = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    d, example = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_B)
    there = example < examples
    at = (member * examples + example) * HEADS + head
    for which in tl.static_range(3):
        columns_before = (which * HEADS + head) * WIDTH
        start = w + member * w_stride + columns_before
        columns = load_rows(start, d, WIDTH, 3 * HEADS * WIDTH, WIDTH, BLOCK_D)
        bias = vector(b + member * b_stride + columns_before, WIDTH, BLOCK_D)
        bound = tl.sqrt(tl.max(tl.sum(columns * columns, 0), 0) * WIDTH) + tl.max(tl.abs(bias), 0)
        unit, _inverse = unit_for(bound)  # float16 goes to 2^16: rounding may carry a number a little beyond its bound
        tl.store(units + which * members * examples * HEADS + at, unit + 0.0 * example, mask=there)
    key = mix(mix(key_of_site(keys, member, WEIGHTS) + step_of(example)) + step_of(example * 0 + head))
    tl.store(noise + at, key.to(tl.int32, bitcast=True), mask=there)
    scale = (tl.load(scales + member) * WIDTH**-0.5).to(tl.float32)
    tl.store(head_scales + at, scale + 0.0 * example, mask=there)


@triton.jit
def before_forward(
    h, w, b, units, qkv, w_stride, b_stride, members, examples, tokens, eps,
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
    for head in range(HEADS):
        for which in tl.static_range(3):
            unit = tl.load(units + (which * members + member) * examples * HEADS + head)  # all examples have the same
            column = which * HEADS + head
            y = product(x, map_of(w + member * w_stride, column, 3 * HEADS * WIDTH, WIDTH, BLOCK_D))
            y = (y + vector(b + member * b_stride + column * WIDTH, WIDTH, BLOCK_D)[None, :]) / unit
            here = qkv + (3 * HEADS) * at + column * WIDTH
            store_rows(here, own, tokens - first, 3 * HEADS * WIDTH, y, WIDTH, BLOCK_D)


@triton.jit(do_not_specialize=["limit"])
def after_forward(
    h, mixed, w_out, b_out, keys, out, w_stride, b_stride, tokens, limit, factor,
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
        of_head = mixed + HEADS * at + head * WIDTH
        y += product(
            load_rows(of_head, own, tokens - first, HEADS * WIDTH, WIDTH, BLOCK_D),
            map_of(w_out + member * w_stride, head * WIDTH, WIDTH, WIDTH, BLOCK_D),
        )
    y += vector(b_out + member * b_stride, WIDTH, BLOCK_D)[None, :]
    if DROPOUT:
        rows = mix(key_of_site(keys, member, ATTENTION_OUT) + step_of(first + own))
        y = tl.where(survives(rows[:, None], tl.arange(0, BLOCK_D)[None, :], limit), y * factor, 0.0)
    tile = load_rows(h + at, own, tokens - first, WIDTH, WIDTH, BLOCK_D)
    store_rows(out + at, own, tokens - first, WIDTH, tile + y, WIDTH, BLOCK_D)


@triton.jit(do_not_specialize=["limit"])
def after_backward(
    d_out, mixed, w_out, keys, d_mixed, sums, w_stride, tokens, parts, per_part, limit, factor,
    DROPOUT: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dy = dropout(do), da = dy Wo^T; and a part of dWo = a^T dy, dbo: a program takes a head in a few tiles."""
    part = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    member = (part // parts).to(tl.int64)
    begin = part % parts * per_part
    d = tl.arange(0, BLOCK_D)
    back = tl.trans(map_of(w_out + member * w_stride, head * WIDTH, WIDTH, WIDTH, BLOCK_D))
    d_map = tl.zeros((BLOCK_D, BLOCK_D), tl.float32)
    d_bias = tl.zeros((16, BLOCK_D), tl.float32)
    ones = tl.full((16, BLOCK_M), 1.0, tl.float16)  # sums as products: no exchange between warps
    for first in range(begin, tl.minimum(begin + per_part, tokens), BLOCK_M):
        own = tl.arange(0, BLOCK_M)
        at = (member * tokens + first) * WIDTH
        dy = load_rows(d_out + at, own, tokens - first, WIDTH, WIDTH, BLOCK_D)
        if DROPOUT:
            rows = mix(key_of_site(keys, member, ATTENTION_OUT) + step_of(first + own))
            dy = tl.where(survives(rows[:, None], d[None, :], limit), dy * factor, 0.0)
        unit, scaled = unit_for(tl.max(tl.max(tl.abs(dy), 1), 0))
        dy = (dy * scaled).to(tl.float16)
        d_bias += tl.dot(ones, dy) * unit
        of_head = HEADS * at + head * WIDTH
        tile = load_rows(mixed + of_head, own, tokens - first, HEADS * WIDTH, WIDTH, BLOCK_D)
        d_map += product(tl.trans(tile), dy) * unit
        store_rows(d_mixed + of_head, own, tokens - first, HEADS * WIDTH, product(dy, back) * unit, WIDTH, BLOCK_D)
    sums += part.to(tl.int64) * (HEADS * WIDTH * WIDTH + WIDTH)
    store_rows(sums + head * WIDTH * WIDTH, d, WIDTH, WIDTH, d_map, WIDTH, BLOCK_D)
    tl.store(sums + HEADS * WIDTH * WIDTH + d, tl.sum(d_bias, 0) * 0.0625, mask=d < tl.where(head == 0, WIDTH, 0))


@triton.jit(do_not_specialize=["head"])
def before_backward(
    h, d_out, d_qkv, w, dh, sums, w_stride, tokens, parts, per_part, eps, head,
    FIRST: tl.constexpr, LAST: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dx = dqkv W^T, dh = do + inverse (dx - mean(dx) - x mean(x dx)); and a part of dW = x^T dqkv (d, 3 H d), db.

    One head at a time, as the gradients of more maps would not fit in registers: until the LAST, dh holds dx.
    """
    part = tl.program_id(0)
    member = (part // parts).to(tl.int64)
    begin = part % parts * per_part
    w += member * w_stride
    d = tl.arange(0, BLOCK_D)
    square, lines = tl.zeros((BLOCK_D, BLOCK_D), tl.float32), tl.zeros((16, BLOCK_D), tl.float32)
    d_maps = (square, square, square)
    d_biases = (lines, lines, lines)
    ones = tl.full((16, BLOCK_M), 1.0, tl.float16)
    backs = ()
    for which in tl.static_range(3):
        column = which * HEADS + head
        backs = backs + (tl.trans(map_of(w, column, 3 * HEADS * WIDTH, WIDTH, BLOCK_D)),)  # noqa: RUF005
    for first in range(begin, tl.minimum(begin + per_part, tokens), BLOCK_M):
        own = tl.arange(0, BLOCK_M)
        at = (member * tokens + first) * WIDTH
        x, inverse = normed(load_rows(h + at, own, tokens - first, WIDTH, WIDTH, BLOCK_D), eps, WIDTH, BLOCK_D)
        x_turned = tl.trans(x.to(tl.float16))
        here = d_qkv + 3 * HEADS * at + head * WIDTH
        dq = load_rows(here, own, tokens - first, 3 * HEADS * WIDTH, WIDTH, BLOCK_D)
        dk = load_rows(here + HEADS * WIDTH, own, tokens - first, 3 * HEADS * WIDTH, WIDTH, BLOCK_D)
        dv = load_rows(here + 2 * HEADS * WIDTH, own, tokens - first, 3 * HEADS * WIDTH, WIDTH, BLOCK_D)
        largest = tl.maximum(tl.maximum(tl.abs(dq), tl.abs(dk)), tl.abs(dv))
        unit, scaled = unit_for(tl.max(tl.max(largest, 1), 0))
        changes = ((dq * scaled).to(tl.float16), (dk * scaled).to(tl.float16), (dv * scaled).to(tl.float16))
        dx = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        maps = ()
        biases = ()
        for which in tl.static_range(3):
            maps = maps + (d_maps[which] + tl.dot(x_turned, changes[which]) * unit,)  # noqa: RUF005
            biases = biases + (d_biases[which] + tl.dot(ones, changes[which]) * unit,)  # noqa: RUF005
            dx = tl.dot(changes[which], backs[which], dx)
        d_maps = maps
        d_biases = biases
        dx = dx * unit
        if not FIRST:
            dx += load_rows(dh + at, own, tokens - first, WIDTH, WIDTH, BLOCK_D)
        if LAST:
            dx = dx - (tl.sum(dx, 1) / WIDTH)[:, None] - x * (tl.sum(x * dx, 1) / WIDTH)[:, None]
            dx = load_rows(d_out + at, own, tokens - first, WIDTH, WIDTH, BLOCK_D) + inverse[:, None] * dx
        store_rows(dh + at, own, tokens - first, WIDTH, dx, WIDTH, BLOCK_D)
    sums += part.to(tl.int64) * (3 * HEADS * (WIDTH * WIDTH + WIDTH))
    for which in tl.static_range(3):
        column = which * HEADS + head
        store_rows(sums + column * WIDTH, d, WIDTH, 3 * HEADS * WIDTH, d_maps[which], WIDTH, BLOCK_D)
        d_bias = tl.sum(d_biases[which], 0) * 0.0625
        tl.store(sums + 3 * HEADS * WIDTH * WIDTH + column * WIDTH + d, d_bias, mask=d < WIDTH)
