"""The first half of a block in one kernel, for short sequences and one head: an example fits on chip as a whole.

    x = norm(h)    q, k, v = x W + b    w = softmax over the kept keys of scale q k^T
    out = h + dropout((dropout(w) v) Wo + bo)

Only h, the result and a bit per kept key touch memory; the backward kernel computes the rest again. Members may have
different patterns: each query keeps an interval of keys and the global ones, and of those the best k, if k is not 0; or
the keys that were chosen before, if k is negative.
"""

import triton
import triton.language as tl

from .best_keys import choose
from .mlp_half_tiles import key_of_site, normed, vector
from .tiles import LOG2_E, in_window, load_rows, mix, seen_keys, step_of, store_rows, survives

#: Where randomness enters, as in ``model.block``.
WEIGHTS, ATTENTION_OUT = tl.constexpr(0), tl.constexpr(1)


@triton.jit
def map_of(start, which, STRIDE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """(BLOCK_D, BLOCK_D): the ``which``-th of several square maps that lie side by side in rows of STRIDE."""
    return load_rows(start + which * WIDTH, tl.arange(0, BLOCK_D), WIDTH, STRIDE, WIDTH, BLOCK_D).to(tl.float16)


@triton.jit
def product(a, b):
    """In half precision, which has as many digits as TF32, accumulated in float32."""
    return tl.dot(a.to(tl.float16), b.to(tl.float16))


@triton.jit
def projected(x, w, b, which, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr):
    """(T, BLOCK_D): queries, keys or values."""
    return product(x, map_of(w, which, 3 * WIDTH, WIDTH, BLOCK_D)) + vector(b + which * WIDTH, WIDTH, BLOCK_D)[None, :]


@triton.jit
def seen_by(
    mask, begins, ends, tokens, first_global, WINDOW: tl.constexpr, MASKED: tl.constexpr, BLOCK_T: tl.constexpr
):
    """bool (T, T): the keys among which a query chooses."""
    rows, columns = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_T)
    result = seen_keys(columns, tokens, mask, 1, MASKED)[None, :] & (rows < tokens)[:, None]
    if WINDOW:
        begin = tl.load(begins + rows, mask=rows < tokens, other=0)
        end = tl.load(ends + rows, mask=rows < tokens, other=0)
        result = result & in_window(begin[:, None], end[:, None], columns[None, :], first_global)
    return result


@triton.jit
def best_of(scores, seen, k, BLOCK_T: tl.constexpr):
    """bool (T, T): the k best of the seen keys."""
    limit, last = choose((scores,), tl.max(scores, 1), k, 1, BLOCK_T, BLOCK_T)
    tied = (scores == limit[:, None]) & (tl.arange(0, BLOCK_T)[None, :] <= last[:, None])
    return seen & ((scores > limit[:, None]) | tied)


@triton.jit
def kept_by(words, at, rows, tokens, BLOCK_T: tl.constexpr):
    """bool (T, T): the bits of an example's rows, which begin with the row ``at``."""
    columns = tl.arange(0, BLOCK_T)
    word = tl.zeros((BLOCK_T, 1), tl.int32)
    for i in tl.static_range(BLOCK_T // 32):
        loaded = tl.load(words + (at + rows) * (BLOCK_T // 32) + i, mask=rows < tokens, other=0)
        word = tl.where((columns >= 32 * i)[None, :], loaded[:, None], word)
    return ((word >> (columns & 31)[None, :]) & 1) != 0


@triton.jit
def softmax(scores, kept):
    """(T, T): over the kept keys; a row without any is 0."""
    scores = tl.where(kept, scores, -float("inf"))
    peak = tl.max(scores, 1)
    peak = tl.where(peak == -float("inf"), 0.0, peak)
    weights = tl.exp2((scores - peak[:, None]) * LOG2_E)
    total = tl.sum(weights, 1)
    return weights * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]


@triton.jit
def keys_of(keys, member, example, tokens, BLOCK_T: tl.constexpr):
    """A key for each row: of its attention weights, and of its output."""
    rows = tl.arange(0, BLOCK_T)
    key = mix(key_of_site(keys, member, WEIGHTS) + step_of(example))
    key = mix(key + step_of(example * 0))  # the example's only head
    return mix(key + step_of(rows)), mix(key_of_site(keys, member, ATTENTION_OUT) + step_of(example * tokens + rows))


@triton.jit(do_not_specialize=["limit", "first_global"])
def half_forward(
    h, w, b, w_out, b_out, scales, keys, mask, begins, ends, budgets, chosen, out, words,
    w_stride, b_stride, w_out_stride, b_out_stride, examples, tokens, eps, limit, factor, first_global,
    CHOOSING: tl.constexpr, CHOSEN: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr, DROPOUT: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """A program takes one example of one member."""
    member = (tl.program_id(0) // examples).to(tl.int64)
    example = tl.program_id(0) % examples
    at = tl.program_id(0).to(tl.int64) * tokens
    rows, columns = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_T)
    tile = load_rows(h + at * WIDTH, rows, tokens, WIDTH, WIDTH, BLOCK_D)
    x, _inverse = normed(tile, eps, WIDTH, BLOCK_D)
    w += member * w_stride
    b += member * b_stride
    q = projected(x, w, b, 0, WIDTH, BLOCK_D)
    k = projected(x, w, b, 1, WIDTH, BLOCK_D)
    window = member * tokens
    kept = seen_by(mask + at, begins + window, ends + window, tokens, first_global, WINDOW, MASKED, BLOCK_T)
    scores = tl.where(
        kept, product(q, tl.trans(k)) * (tl.load(scales + member) * WIDTH**-0.5).to(tl.float32), -float("inf")
    )
    if CHOOSING:
        budget = tl.load(budgets + member)
        if budget > 0:
            kept = best_of(scores, kept, budget, BLOCK_T)
        if CHOSEN:  # noqa: SIM102 (decided when it is compiled)
            if budget < 0:
                kept = kept & kept_by(chosen, at, rows, tokens, BLOCK_T)
    bits = tl.reshape(tl.where(kept, (1 << (columns & 31))[None, :], 0), (BLOCK_T, BLOCK_T // 32, 32))
    store_rows(words + at * (BLOCK_T // 32), rows, tokens, BLOCK_T // 32, tl.sum(bits, 2), BLOCK_T // 32, BLOCK_T // 32)
    weights = softmax(scores, kept)
    if DROPOUT:
        weight_rows, out_rows = keys_of(keys, member, example, tokens, BLOCK_T)
        weights = tl.where(survives(weight_rows[:, None], columns[None, :], limit), weights * factor, 0.0)
    mixed = product(weights, projected(x, w, b, 2, WIDTH, BLOCK_D))
    y = product(mixed, map_of(w_out + member * w_out_stride, 0, WIDTH, WIDTH, BLOCK_D))
    y += vector(b_out + member * b_out_stride, WIDTH, BLOCK_D)[None, :]
    d = tl.arange(0, BLOCK_D)[None, :]
    if DROPOUT:
        y = tl.where(survives(out_rows[:, None], d, limit), y * factor, 0.0)
    store_rows(out + at * WIDTH, rows, tokens, WIDTH, tile + y, WIDTH, BLOCK_D)


@triton.jit
def unit_of(largest):
    """A power of two near the largest number: what is divided by it fits half precision."""
    exponent = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 1), 253)  # its inverse is one too
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["limit"])
def half_backward(
    h, d_out, w, b, w_out, scales, keys, words, dh, x_out, d_qkv, mixed_out, dy_out, d_biases,
    w_stride, b_stride, w_out_stride, examples, tokens, eps, limit, factor,
    DROPOUT: tl.constexpr, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """dh, and what the weights' gradients are products of: x, dqkv (t, 3 d), the mixed values, and dy = dropout(do).

    And the example's part of the biases' gradients: the sums of dqkv, then of dy (4 d,).
    """
    member = (tl.program_id(0) // examples).to(tl.int64)
    example = tl.program_id(0) % examples
    at = tl.program_id(0).to(tl.int64) * tokens
    w += member * w_stride
    b += member * b_stride
    w_out += member * w_out_stride
    d_biases += tl.program_id(0).to(tl.int64) * (4 * WIDTH)
    rows, columns, d = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    scale = (tl.load(scales + member) * WIDTH**-0.5).to(tl.float32)
    x = normed(load_rows(h + at * WIDTH, rows, tokens, WIDTH, WIDTH, BLOCK_D), eps, WIDTH, BLOCK_D)[0]
    store_rows(x_out + at * WIDTH, rows, tokens, WIDTH, x, WIDTH, BLOCK_D)
    x = x.to(tl.float16)
    q = projected(x, w, b, 0, WIDTH, BLOCK_D).to(tl.float16)
    k = projected(x, w, b, 1, WIDTH, BLOCK_D).to(tl.float16)
    v = projected(x, w, b, 2, WIDTH, BLOCK_D).to(tl.float16)
    kept = kept_by(words, at, rows, tokens, BLOCK_T)
    weights = softmax(product(q, tl.trans(k)) * scale, kept)
    change = load_rows(d_out + at * WIDTH, rows, tokens, WIDTH, WIDTH, BLOCK_D)
    unit = unit_of(tl.max(tl.max(tl.abs(change), 1), 0))
    dy, dropped = change * (1.0 / unit), weights
    if DROPOUT:
        weight_rows, out_rows = keys_of(keys, member, example, tokens, BLOCK_T)
        dy = tl.where(survives(out_rows[:, None], d[None, :], limit), dy * factor, 0.0)
        spared = survives(weight_rows[:, None], columns[None, :], limit)
        dropped = tl.where(spared, weights * factor, 0.0)
    store_rows(dy_out + at * WIDTH, rows, tokens, WIDTH, dy * unit, WIDTH, BLOCK_D)
    tl.store(d_biases + 3 * WIDTH + d, tl.sum(dy, 0) * unit, mask=d < WIDTH)
    store_rows(mixed_out + at * WIDTH, rows, tokens, WIDTH, product(dropped, v), WIDTH, BLOCK_D)
    d_mixed = product(dy, tl.trans(map_of(w_out, 0, WIDTH, WIDTH, BLOCK_D))).to(tl.float16)
    dv = product(tl.trans(dropped), d_mixed)
    d_weights = product(d_mixed, tl.trans(v))
    if DROPOUT:
        d_weights = tl.where(spared, d_weights * factor, 0.0)
    d_scores = (weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None]) * scale).to(tl.float16)
    d_qkv += at * (3 * WIDTH)
    store_rows(d_qkv + 2 * WIDTH, rows, tokens, 3 * WIDTH, dv * unit, WIDTH, BLOCK_D)
    tl.store(d_biases + 2 * WIDTH + d, tl.sum(dv, 0) * unit, mask=d < WIDTH)
    dx = product(dv, tl.trans(map_of(w, 2, 3 * WIDTH, WIDTH, BLOCK_D)))
    dq = product(d_scores, k)
    store_rows(d_qkv, rows, tokens, 3 * WIDTH, dq * unit, WIDTH, BLOCK_D)
    tl.store(d_biases + d, tl.sum(dq, 0) * unit, mask=d < WIDTH)
    dx += product(dq, tl.trans(map_of(w, 0, 3 * WIDTH, WIDTH, BLOCK_D)))
    dk = product(tl.trans(d_scores), q)
    store_rows(d_qkv + WIDTH, rows, tokens, 3 * WIDTH, dk * unit, WIDTH, BLOCK_D)
    tl.store(d_biases + WIDTH + d, tl.sum(dk, 0) * unit, mask=d < WIDTH)
    dx += product(dk, tl.trans(map_of(w, 1, 3 * WIDTH, WIDTH, BLOCK_D)))
    # Read again rather than kept: registers are scarce.
    exact, inverse = normed(load_rows(h + at * WIDTH, rows, tokens, WIDTH, WIDTH, BLOCK_D), eps, WIDTH, BLOCK_D)
    dx = dx - (tl.sum(dx, 1) / WIDTH)[:, None] - exact * (tl.sum(exact * dx, 1) / WIDTH)[:, None]
    result = load_rows(d_out + at * WIDTH, rows, tokens, WIDTH, WIDTH, BLOCK_D) + (inverse * unit)[:, None] * dx
    store_rows(dh + at * WIDTH, rows, tokens, WIDTH, result, WIDTH, BLOCK_D)
