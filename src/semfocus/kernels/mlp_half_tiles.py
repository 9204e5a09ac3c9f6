"""The second half of a block in one kernel, for a whole population: nothing between its ends is written to memory.

    x = norm(h)     z = dropout(x W1 + b1)     a = f(z)     out = h + dropout(a W2 + b2)

f is ReLU, GELU or Mish, as each member has it.

The backward kernel computes x and z again. Products are those of halves (see ``half.py``), sums float32.
Letters: M tokens of a tile, d width, e hidden width; all tiles fit on chip.
"""

import triton
import triton.language as tl

from .half import unit_for
from .tiles import load_rows, mix, step_of, store_rows, survives

#: Where randomness enters, as in ``model.block``.
MLP_HIDDEN, MLP_OUT = tl.constexpr(2), tl.constexpr(3)
#: Members' activations, as bits: of those that are not in PRESENT no code is made. ReLU is 1.
GELU, MISH = tl.constexpr(2), tl.constexpr(4)
#: Gradients are multiplied at about 2^4: after a product with the weights they still fit into a half.
GRADIENTS = tl.constexpr(4)


@triton.jit
def key_of_site(keys, member, SITE: tl.constexpr):
    """The member's key for one of the places where randomness enters a block."""
    return mix(tl.load(keys + member).to(tl.uint32, bitcast=True) + step_of(member * 0 + SITE))


@triton.jit
def vector(start, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    return tl.load(start + places, mask=places < SIZE, other=0.0)


@triton.jit
def normed(h, eps, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """LayerNorm of the rows of h (M, BLOCK_D), zeros beyond WIDTH; and what it divided by, inverted."""
    inside = tl.arange(0, BLOCK_D)[None, :] < WIDTH
    centred = tl.where(inside, h - (tl.sum(h, 1) / WIDTH)[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
    return centred * inverse[:, None], inverse


@triton.jit
def half_rows(start, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """(BLOCK_R, BLOCK_D): a matrix of weights as halves."""
    return load_rows(start, tl.arange(0, BLOCK_R), ROWS, WIDTH, WIDTH, BLOCK_D).to(tl.float16)


@triton.jit
def hidden_of(x, w_in, b_in, row_keys, limit, factor, BLOCK_E: tl.constexpr, DROPOUT: tl.constexpr):
    """z (M, BLOCK_E), and what dropout multiplied it by."""
    hidden = tl.dot(x, w_in) + b_in[None, :]
    kept = tl.full(hidden.shape, 1.0, tl.float32)
    if DROPOUT:
        spared = survives(row_keys[:, None], tl.arange(0, BLOCK_E)[None, :], limit)
        kept = tl.where(spared, factor, 0.0)
        hidden = tl.where(spared, hidden * factor, 0.0)
    return hidden, kept


@triton.jit
def tanh_softplus(z):
    """And e^z, cut where the first is 1: with e = e^z it is e (e + 2) / (e (e + 2) + 2)."""
    e = tl.exp(tl.minimum(z, 20.0))
    n = e * (e + 2.0)
    return n / (n + 2.0), e


@triton.jit
def activated(z, kind, PRESENT: tl.constexpr):
    """f(z)"""
    y = tl.maximum(z, 0.0)
    if GELU & PRESENT:  # noqa: SIM102 (the compiler decides this one)
        if kind == GELU:
            y = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    if MISH & PRESENT:  # noqa: SIM102 (the compiler decides this one)
        if kind == MISH:
            part, _e = tanh_softplus(z)
            y = z * part
    return y


@triton.jit
def slope(z, kind, PRESENT: tl.constexpr):
    """f'(z)"""
    dy = tl.where(z > 0.0, 1.0, 0.0)
    if GELU & PRESENT:  # noqa: SIM102 (the compiler decides this one)
        if kind == GELU:
            dy = 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * tl.exp(-0.5 * z * z) * 0.3989422804014327
    if MISH & PRESENT:  # noqa: SIM102 (the compiler decides this one)
        if kind == MISH:
            part, e = tanh_softplus(z)
            dy = part + z * (e / (1.0 + e)) * (1.0 - part * part)
    return dy


@triton.jit(do_not_specialize=["limit"])
def mlp_forward(
    h, w_in, b_in, w_out, b_out, keys, kinds, out, w_in_stride, b_in_stride, w_out_stride, b_out_stride,
    tokens, eps, limit, factor,
    WIDTH: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr,
    DROPOUT: tl.constexpr, PRESENT: tl.constexpr,
):  # fmt: skip
    """A program takes a tile of one member's tokens."""
    tiles = tl.cdiv(tokens, BLOCK_M)
    member = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * BLOCK_M
    own = tl.arange(0, BLOCK_M)
    rows = first + own
    at = (member * tokens + first) * WIDTH
    tile = load_rows(h + at, own, tokens - first, WIDTH, WIDTH, BLOCK_D)
    x, _inverse = normed(tile, eps, WIDTH, BLOCK_D)
    hidden_rows, out_rows = rows, rows
    if DROPOUT:
        hidden_rows = mix(key_of_site(keys, member, MLP_HIDDEN) + step_of(rows))
        out_rows = mix(key_of_site(keys, member, MLP_OUT) + step_of(rows))
    w = half_rows(w_in + member * w_in_stride, WIDTH, HIDDEN, BLOCK_D, BLOCK_E)
    b = vector(b_in + member * b_in_stride, HIDDEN, BLOCK_E)
    hidden, _kept = hidden_of(x.to(tl.float16), w, b, hidden_rows, limit, factor, BLOCK_E, DROPOUT)
    active = activated(hidden, tl.load(kinds + member), PRESENT)
    w = half_rows(w_out + member * w_out_stride, HIDDEN, WIDTH, BLOCK_E, BLOCK_D)
    y = tl.dot(active.to(tl.float16), w) + vector(b_out + member * b_out_stride, WIDTH, BLOCK_D)[None, :]
    columns = tl.arange(0, BLOCK_D)[None, :]
    if DROPOUT:
        y = tl.where(survives(out_rows[:, None], columns, limit), y * factor, 0.0)
    store_rows(out + at, own, tokens - first, WIDTH, tile + y, WIDTH, BLOCK_D)


@triton.jit(do_not_specialize=["limit"])
def mlp_backward(
    h, d_out, w_in, b_in, w_out, keys, kinds, dh, sums, w_in_stride, b_in_stride, w_out_stride,
    tokens, parts, per_part, eps, limit, factor,
    WIDTH: tl.constexpr, HIDDEN: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr,
    DROPOUT: tl.constexpr, PRESENT: tl.constexpr,
):  # fmt: skip
    """A program takes some tiles of one member, and writes that part's sums of the gradients: dW1, db1, dW2, db2.

    dy = dropout(do)   dW2 = a^T dy   da = dy W2^T   dz = da f'(z), times dropout   dW1 = x^T dz
    dx = dz W1^T       dh = do + inverse (dx - mean(dx) - x mean(x dx))
    """
    part = tl.program_id(0)
    member = (part // parts).to(tl.int64)
    first = part % parts * per_part
    w_first = half_rows(w_in + member * w_in_stride, WIDTH, HIDDEN, BLOCK_D, BLOCK_E)
    w_second = half_rows(w_out + member * w_out_stride, HIDDEN, WIDTH, BLOCK_E, BLOCK_D)
    b = vector(b_in + member * b_in_stride, HIDDEN, BLOCK_E)
    kind = tl.load(kinds + member)
    sum_first = tl.zeros((BLOCK_D, BLOCK_E), tl.float32)
    sum_second = tl.zeros((BLOCK_E, BLOCK_D), tl.float32)
    # A sum over tokens by a product with ones, the smallest there is: 16 equal rows.
    ones = tl.full((16, BLOCK_M), 1.0, tl.float16)
    bias_first = tl.zeros((16, BLOCK_E), tl.float32)
    bias_second = tl.zeros((16, BLOCK_D), tl.float32)
    columns = tl.arange(0, BLOCK_D)[None, :]
    for start in range(first, tl.minimum(first + per_part, tokens), BLOCK_M):
        own = tl.arange(0, BLOCK_M)
        rows = start + own
        at = (member * tokens + start) * WIDTH
        x, inverse = normed(load_rows(h + at, own, tokens - start, WIDTH, WIDTH, BLOCK_D), eps, WIDTH, BLOCK_D)
        half = x.to(tl.float16)
        change = load_rows(d_out + at, own, tokens - start, WIDTH, WIDTH, BLOCK_D)
        unit, scaled = unit_for(tl.max(tl.max(tl.abs(change), 1), 0), GRADIENTS)
        hidden_rows, dy = rows, change * scaled
        if DROPOUT:
            hidden_rows = mix(key_of_site(keys, member, MLP_HIDDEN) + step_of(rows))
            out_rows = mix(key_of_site(keys, member, MLP_OUT) + step_of(rows))
            dy = tl.where(survives(out_rows[:, None], columns, limit), dy * factor, 0.0)
        dy = dy.to(tl.float16)
        hidden, kept = hidden_of(half, w_first, b, hidden_rows, limit, factor, BLOCK_E, DROPOUT)
        bias_second += tl.dot(ones, dy) * unit
        sum_second += tl.dot(tl.trans(activated(hidden, kind, PRESENT).to(tl.float16)), dy) * unit
        dz = tl.dot(dy, tl.trans(w_second))
        if PRESENT == 1:  # what was dropped is 0, and not above it
            dz = tl.where(hidden > 0.0, dz * factor, 0.0)
        else:
            dz = dz * slope(hidden, kind, PRESENT) * kept
        dz = dz.to(tl.float16)
        bias_first += tl.dot(ones, dz) * unit
        sum_first += tl.dot(tl.trans(half), dz) * unit
        dx = tl.dot(dz, tl.trans(w_first)) * unit
        dx = dx - (tl.sum(dx, 1) / WIDTH)[:, None] - x * (tl.sum(x * dx, 1) / WIDTH)[:, None]
        store_rows(dh + at, own, tokens - start, WIDTH, change + inverse[:, None] * dx, WIDTH, BLOCK_D)
    d, e = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_E)
    sums += part.to(tl.int64) * (2 * WIDTH * HIDDEN + HIDDEN + WIDTH)
    store_rows(sums, d, WIDTH, HIDDEN, sum_first, HIDDEN, BLOCK_E)
    sums += WIDTH * HIDDEN
    tl.store(sums + e, tl.sum(bias_first, 0) * 0.0625, mask=e < HIDDEN)
    sums += HIDDEN
    store_rows(sums, e, HIDDEN, WIDTH, sum_second, WIDTH, BLOCK_D)
    tl.store(sums + WIDTH * HIDDEN + d, tl.sum(bias_second, 0) * 0.0625, mask=d < WIDTH)
