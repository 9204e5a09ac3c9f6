"""What surrounds the attention of a block in its backward pass, for examples that do not fit on chip.

    dy = dropout(do)      da = dy Wo^T        dWo = a^T dy       (attention)
    dx = dqkv W^T         dW = x^T dqkv       dh = do + inverse (dx - mean(dx) - x mean(x dx))

Every matrix that is read more than once is written as halves: x as it is, dy with a unit for each example, da for each
example and head, and dq, dk and dv for each of their tiles (``half.store_with_unit``). The unit of da is a bound:

    |dy w| <= max|dy| sum|w|

Tiles begin anew with each example, for the sake of its units. Letters and maps as in ``long_half_tiles``.
"""

import triton
import triton.language as tl

from .attention_half_tiles import ATTENTION_OUT
from .half import unit_for
from .long_half_tiles import map_at
from .mlp_half_tiles import key_of_site, normed
from .tiles import load_rows, mix, step_of, store_rows, survives


@triton.jit(do_not_specialize=["limit"])
def facts_of_gradients(
    d_out, maps, keys, dy, y_units, units, examples, tokens, limit, factor,
    DROPOUT: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dy (m, b, t, d) and its units (m, b), and those of da (m, b, H): a program takes an example of a member."""
    lead = tl.program_id(0).to(tl.int64)
    member = lead // examples
    example = tl.program_id(0) % examples
    own, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    at = lead * tokens * WIDTH
    largest = tl.zeros((BLOCK_M,), tl.float32)
    for first in range(0, tokens, BLOCK_M):
        tile = load_rows(d_out + at + first * WIDTH, own, tokens - first, WIDTH, WIDTH, BLOCK_D)
        largest = tl.maximum(largest, tl.max(tl.abs(tile), 1))
    bound = tl.max(largest, 0) * factor
    unit, inverse = unit_for(bound)
    tl.store(y_units + lead, unit)
    for first in range(0, tokens, BLOCK_M):
        tile = load_rows(d_out + at + first * WIDTH, own, tokens - first, WIDTH, WIDTH, BLOCK_D) * inverse
        if DROPOUT:
            rows = mix(key_of_site(keys, member, ATTENTION_OUT) + step_of(example * tokens + first + own))
            tile = tl.where(survives(rows[:, None], d[None, :], limit), tile * factor, 0.0)
        store_rows(dy + at + first * WIDTH, own, tokens - first, WIDTH, tile, WIDTH, BLOCK_D)
    for head in range(HEADS):
        weights = map_at(maps, member * (4 * HEADS) + 3 * HEADS + head, WIDTH, BLOCK_D).to(tl.float32)
        unit, _inverse = unit_for(bound * tl.max(tl.sum(tl.abs(weights), 1), 0))
        tl.store(units + lead * HEADS + head, unit)


@triton.jit
def after_backward(
    dy, y_units, mixed, v_units, maps, d_mixed, units, sums, examples, tokens, parts, per_part, factor,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """da; and a part of dWo and dbo: a program takes a head in a few tiles. v_units: of all members (m, b, H)."""
    part = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    member = part // parts
    begin = (part % parts * per_part).to(tl.int32)
    tiles = tl.cdiv(tokens, BLOCK_M)
    own, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    back = tl.trans(map_at(maps, member * (4 * HEADS) + 3 * HEADS + head, WIDTH, BLOCK_D))
    v_unit = tl.load(v_units + member * examples * HEADS + head) * factor  # all examples have the same
    d_map = tl.zeros((BLOCK_D, BLOCK_D), tl.float32)
    d_bias = tl.zeros((16, BLOCK_D), tl.float32)
    ones = tl.full((16, BLOCK_M), 1.0, tl.float16)  # sums as products: no exchange between warps
    for turn in range(begin, tl.minimum(begin + per_part, examples * tiles)):
        lead = member * examples + turn // tiles
        first = turn % tiles * BLOCK_M
        at = (lead * tokens + first) * WIDTH
        change = load_rows(dy + at, own, tokens - first, WIDTH, WIDTH, BLOCK_D)
        of_head = HEADS * at + head * WIDTH
        tile = load_rows(mixed + of_head, own, tokens - first, HEADS * WIDTH, WIDTH, BLOCK_D)
        unit = tl.load(y_units + lead)
        d_bias += tl.dot(ones, change) * unit
        d_map += tl.dot(tl.trans(tile), change) * (unit * v_unit)
        result = tl.dot(change, back) * (unit / tl.load(units + lead * HEADS + head))
        store_rows(d_mixed + of_head, own, tokens - first, HEADS * WIDTH, result, WIDTH, BLOCK_D)
    sums += part * (HEADS * WIDTH * WIDTH + WIDTH)
    store_rows(sums + head * WIDTH * WIDTH, d, WIDTH, WIDTH, d_map, WIDTH, BLOCK_D)
    tl.store(sums + HEADS * WIDTH * WIDTH + d, tl.sum(d_bias, 0) * 0.0625, mask=d < tl.where(head == 0, WIDTH, 0))


@triton.jit
def before_backward(
    h, d_out, d_qkv, units, maps, x_half, dh, members, examples, tokens, eps,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dh, and x in halves: a program takes a tile of an example. units (3, m, b, H, tiles) are those of dqkv."""
    tiles = tl.cdiv(tokens, BLOCK_M)
    lead = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    member = lead // examples
    own = tl.arange(0, BLOCK_M)
    left = tokens - tile * BLOCK_M
    at = (lead * tokens + tile * BLOCK_M) * WIDTH
    dx = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for column in range(3 * HEADS):
        of_head = (column // HEADS * members * examples + lead) * HEADS + column % HEADS
        change = load_rows(d_qkv + 3 * HEADS * at + column * WIDTH, own, left, 3 * HEADS * WIDTH, WIDTH, BLOCK_D)
        back = tl.trans(map_at(maps, member * (4 * HEADS) + column, WIDTH, BLOCK_D))
        dx += tl.dot(change, back) * tl.load(units + of_head * tiles + tile)
    x, inverse = normed(load_rows(h + at, own, left, WIDTH, WIDTH, BLOCK_D), eps, WIDTH, BLOCK_D)
    store_rows(x_half + at, own, left, WIDTH, x, WIDTH, BLOCK_D)
    dx = dx - (tl.sum(dx, 1) / WIDTH)[:, None] - x * (tl.sum(x * dx, 1) / WIDTH)[:, None]
    result = load_rows(d_out + at, own, left, WIDTH, WIDTH, BLOCK_D) + inverse[:, None] * dx
    store_rows(dh + at, own, left, WIDTH, result, WIDTH, BLOCK_D)


@triton.jit
def maps_backward(
    x_half, d_qkv, units, sums, members, examples, tokens, parts, per_part,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """A part of dW (d, 3 H d) and db: a program takes a head in a few tiles."""
    part = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    member = part // parts
    begin = (part % parts * per_part).to(tl.int32)
    tiles = tl.cdiv(tokens, BLOCK_M)
    own, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    square, lines = tl.zeros((BLOCK_D, BLOCK_D), tl.float32), tl.zeros((16, BLOCK_D), tl.float32)
    d_maps = (square, square, square)
    d_biases = (lines, lines, lines)
    ones = tl.full((16, BLOCK_M), 1.0, tl.float16)
    for turn in range(begin, tl.minimum(begin + per_part, examples * tiles)):
        lead = member * examples + turn // tiles
        left = tokens - turn % tiles * BLOCK_M
        at = (lead * tokens + turn % tiles * BLOCK_M) * WIDTH
        x = tl.trans(load_rows(x_half + at, own, left, WIDTH, WIDTH, BLOCK_D))
        maps = ()
        biases = ()
        for which in tl.static_range(3):
            here = d_qkv + 3 * HEADS * at + (which * HEADS + head) * WIDTH
            change = load_rows(here, own, left, 3 * HEADS * WIDTH, WIDTH, BLOCK_D)
            of_head = (which * members * examples + lead) * HEADS + head
            unit = tl.load(units + of_head * tiles + turn % tiles)
            maps = maps + (d_maps[which] + tl.dot(x, change) * unit,)  # noqa: RUF005 (Triton has no starred expressions)
            biases = biases + (d_biases[which] + tl.dot(ones, change) * unit,)  # noqa: RUF005
        d_maps = maps
        d_biases = biases
    sums += part * (3 * HEADS * (WIDTH * WIDTH + WIDTH))
    for which in tl.static_range(3):
        column = which * HEADS + head
        store_rows(sums + column * WIDTH, d, WIDTH, 3 * HEADS * WIDTH, d_maps[which], WIDTH, BLOCK_D)
        d_bias = tl.sum(d_biases[which], 0) * 0.0625
        tl.store(sums + 3 * HEADS * WIDTH * WIDTH + column * WIDTH + d, d_bias, mask=d < WIDTH)
