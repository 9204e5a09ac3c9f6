"""From tensors to kernel launches: strides, tile sizes and flags.

Here q is (n0, n1, h, t, d), k and v (n0, n1, h or fewer, s, d), with any strides but contiguous rows. Results are
written as (n0, n1, t, h, d), which is what a model's next matrix product wants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..randomness import dropout_numbers
from . import LONGEST_ROW
from .backward import backward_keys, backward_queries
from .dropout_bits import draw_bits
from .few_backward import WORDS, few_keys, few_queries
from .forward import full_forward, top_k_forward
from .half import to_half
from .integers import BITS, cdiv, padded
from .tile_sizes import FEW, few_tiles, tile, top_few_tile
from .tiles import DRAWN, ROWS
from .top_few import top_few_forward

#: From this many rows on a matrix is converted to halves by more than one program.
LONG_MATRIX = 4096
#: Up to this many kept keys the backward pass gathers them, if they are halves.
GATHERED_UP_TO = 8


@dataclass(frozen=True)
class Options:
    """A call's options. ``noise`` and ``scales`` have an entry per (n0, n1, h); ``budget`` 0 means all keys."""

    mask: Tensor | None  # bool (n0, n1, h, s)
    noise: Tensor | None
    scales: Tensor | None
    window: Tensor | None  # int32 (2, n0 * n1 * h or 1, t): the interval of keys of each query
    reach: Tensor | None  # int32 (2, n0 * n1 * h or 1, s): the interval of queries of each key
    budget: int
    causal: bool
    offset: int
    scale: float
    dropout_p: float
    first_global: int  # keys from here on are in every window
    exact: bool  # float32 products in full precision
    bits: Tensor | None = None  # int32 (n0, n1, h, words, padded t): dropout's choices, if they were drawn before

    def flags(self, x: Inputs) -> dict[str, Any]:
        width = x.q.shape[4]
        return {
            "WIDTH": width,
            "BLOCK_D": padded(width, 16),
            "CAUSAL": self.causal,
            "MASKED": self.mask is not None,
            "DROPOUT": 0 if self.dropout_p == 0 else 1 if self.bits is None else DRAWN.value,
            "SCALED": self.scales is not None,
            "HALVED": x.halved,
            "PRECISION": "ieee" if self.exact else "tf32",
        }

    def side_inputs(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mask, noise or bits, scales; ``q`` stands in for those that are absent, and is not read."""
        mask = q if self.mask is None else self.mask.view(torch.uint8)
        noise = self.noise if self.bits is None else self.bits
        return mask, q if noise is None else noise, q if self.scales is None else self.scales

    def intervals(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Begins and ends of the window and of the reach; ``q`` stands in."""
        window, reach = ((q, q) if x is None else (x[0], x[1]) for x in (self.window, self.reach))
        return *window, *reach

    @property
    def window_numbers(self) -> tuple[int, int]:
        """The first global key; and 1 if each lead has intervals of its own, else 0."""
        return self.first_global, int(self.window is not None and self.window.shape[1] > 1)

    @property
    def mask_strides(self) -> tuple[int, ...]:
        return (0, 0, 0, 0) if self.mask is None else self.mask.stride()

    def numbers(self) -> tuple[float, int, int, float]:
        """scale, offset, and ``randomness.dropout_numbers``."""
        return self.scale, self.offset, *dropout_numbers(self.dropout_p)

    def shrink(self, x: Inputs) -> float:
        """Keeps the gradient of the scores within float16, whatever the inputs.

        Entries of halves are below 2^15, so |ds| < 2 * width * 2^30 / (1 - p), and that times the result is < 2^15.
        """
        return 2.0 ** -(16 + math.ceil(math.log2(x.q.shape[4] / (1.0 - self.dropout_p)))) if x.halved else 1.0


def sizes(q: Tensor, k: Tensor) -> tuple[int, int, int, int, int]:
    """queries, keys, n1, heads, query heads per key head."""
    return q.shape[3], k.shape[3], q.shape[1], q.shape[2], q.shape[2] // k.shape[2]


def words_per_row(keys: int) -> int:
    return cdiv(keys, BITS)


def padded_rows(queries: int) -> int:
    step: int = ROWS.value
    return step // 2 if queries <= step // 2 else cdiv(queries, step) * step


def rows_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 x (n0, n1, h, t, d) as float16, contiguous, and the unit of each (n0, n1, h)."""
    if x.shape[3] > LONG_MATRIX:  # one program for each matrix would be too few
        exponent = torch.frexp(x.abs().amax((-2, -1), keepdim=True))[1].clamp(min=-111)
        half = torch.ldexp(x, 15 - exponent).half().contiguous()
        units = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent - 15)
        return half, units[..., 0, 0].contiguous()
    x = rows_contiguous(x)
    half, units = x.new_empty(x.shape, dtype=torch.float16), x.new_empty(x.shape[:3])
    flags = {
        "WIDTH": x.shape[4],
        "BLOCK_D": padded(x.shape[4], 16),
        "BLOCK_M": 128,
        "num_warps": 8,
    }
    to_half[(x.shape[:3].numel(),)](x, half, units, x.stride()[:4], x.shape[3], x.shape[1], x.shape[2], **flags)
    return half, units


def empty_bits(q: Tensor, keys: int, dropout_p: float, window: Tensor | None) -> Tensor:
    """For dropout's choices (n0, n1, h, words, padded t). None where few of them count, or where they would be many."""
    n0, n1, h, t, _ = q.shape
    wanted = dropout_p > 0 and window is None and keys <= LONGEST_ROW
    return q.new_empty((n0, n1, h, words_per_row(keys) if wanted else 0, padded_rows(t)), dtype=torch.int32)


def draw(bits: Tensor, noise: Tensor | None, queries: int, keys: int, offset: int, dropout_p: float) -> None:
    """Fills ``bits``, if there are any, from a key for each (n0, n1, h)."""
    if bits.numel() > 0:
        rows = min(128, bits.shape[4])
        grid = (bits.shape[:3].numel() * cdiv(bits.shape[4], rows),)
        limit, _ = dropout_numbers(dropout_p)
        draw_bits[grid](noise, bits, queries, keys, offset, limit, BLOCK_M=rows, num_warps=rows // 32)


def with_bits(options: Options, bits: Tensor) -> Options:
    return replace(options, bits=bits) if bits.numel() > 0 else options


class Halves(NamedTuple):
    """A tensor (n0, n1, h, t, d) as float16, and its units: one for each (n0, n1, h), or for UNIT_ROWS rows of each."""

    x: Tensor
    units: Tensor


class Inputs(NamedTuple):
    """What the kernels multiply: the caller's tensors, or halves of them with their units."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_units: Tensor
    k_units: Tensor
    v_units: Tensor

    @property
    def halved(self) -> bool:
        return self.q_units.numel() > 0


def is_halved(q: Tensor, exact: bool) -> bool:
    return q.dtype == torch.float32 and not exact


def prepare(q: Tensor, k: Tensor, v: Tensor, exact: bool) -> Inputs:
    if not is_halved(q, exact):
        none = q.new_empty(0)
        return Inputs(rows_contiguous(q), rows_contiguous(k), rows_contiguous(v), none, none, none)
    (q, q_units), (k, k_units), (v, v_units) = halves(q), halves(k), halves(v)
    return Inputs(q, k, v, q_units, k_units, v_units)


def empty_results(q: Tensor, k: Tensor, dtype: torch.dtype, budget: int) -> tuple[Tensor, Tensor, Tensor]:
    """out (n0, n1, t, h, d), log-sum-exp (n0, n1, h, t), kept bits (n0, n1, h, words, padded t; none for full)."""
    n0, n1, h, t, d = q.shape
    words = words_per_row(k.shape[3]) if budget else 0
    return (
        q.new_empty(n0, n1, t, h, d, dtype=dtype),
        q.new_empty(n0, n1, h, t, dtype=torch.float32),
        q.new_empty(n0, n1, h, words, padded_rows(t), dtype=torch.int32),
    )


def forward(x: Inputs, dtype: torch.dtype, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Output in ``dtype``, log-sum-exp and kept bits, as ``empty_results`` has them."""
    results = empty_results(x.q, x.k, dtype, options.budget)
    fill(x, options, *results)
    return results


def fill(x: Inputs, options: Options, out: Tensor, lse: Tensor, words: Tensor) -> None:
    """Writes the results; ``words`` only under top-k."""
    q, k, v, *units = x
    into = out.transpose(2, 3)  # (n0, n1, h, t, d)
    sides = (*options.side_inputs(q), *units)
    strides = (q.stride()[:4], k.stride()[:4], v.stride()[:4], into.stride()[:4], options.mask_strides)
    flags, counts = options.flags(x), sizes(q, k)
    queries, keys = counts[:2]
    problem, leads = (queries, keys, q.shape[4], options.exact), q.shape[:3].numel()
    if 0 < options.budget <= FEW:
        shape, levels = top_few_tile(*problem, options.budget, options.dropout_p > 0)
        top_few_forward[(cdiv(queries, shape.m) * leads,)](
            q, k, v, into, lse, words, *sides, *strides, *counts, *options.numbers(),
            K=options.budget, LEVELS=levels, **flags, **shape.schedule(),
        )  # fmt: skip
    elif options.budget:
        shape = tile("top_k_forward", *problem)
        top_k_forward[(cdiv(queries, shape.m) * leads,)](
            q, k, v, into, lse, words, *sides, *strides, *counts, words.shape[3], *options.numbers(),
            K=options.budget, TILES=cdiv(keys, shape.n), **flags, **shape.schedule(),
        )  # fmt: skip
    else:
        shape = tile("full_forward", *problem)
        full_forward[(cdiv(queries, shape.m) * leads,)](
            q, k, v, into, lse, *sides, *options.intervals(q)[:2], *strides, *counts, *options.numbers(),
            *options.window_numbers, WINDOW=options.window is not None, **flags, **shape.schedule(),
        )  # fmt: skip


def backward(
    d_out: Tensor | Halves, x: Inputs, out: Tensor, lse: Tensor, words: Tensor, options: Options,
    dq: Tensor | Halves, dk: Tensor | Halves, dv: Tensor | Halves,
) -> None:  # fmt: skip
    """Fills dq, dk and dv, which have the shapes of q, k and v and contiguous rows.

    out is (n0, n1, t, h, d), and so is d_out unless it is Halves. out may be in halves too: then it has v's units, and
    lacks dropout's factor.
    """
    q, k, v = map(rows_contiguous, (x.q, x.k, x.v))  # where they are no halves they are as the caller gave them
    x = x._replace(q=q, k=k, v=v)
    out = out.transpose(2, 3)  # (n0, n1, h, t, d)
    if not isinstance(d_out, Halves):
        d_out = d_out.transpose(2, 3)
        d_out = Halves(*halves(d_out)) if x.halved else Halves(rows_contiguous(d_out), x.q_units)
    # lse stands in for units
    dq, dk, dv = (each if isinstance(each, Halves) else Halves(each, lse) for each in (dq, dk, dv))
    drawn = options.dropout_p == 0 or options.bits is not None
    if x.halved and 0 < options.budget <= GATHERED_UP_TO and words.shape[3] <= WORDS.value and drawn:
        _few_backward(d_out, x, out, lse, words, options, dq, dk, dv)
    else:
        _tiled_backward(d_out, x, out, lse, words, options, dq, dk, dv)


def _tiled_backward(
    of_out: Halves, x: Inputs, out: Tensor, lse: Tensor, words: Tensor, options: Options,
    of_q: Halves, of_k: Halves, of_v: Halves,
) -> None:  # fmt: skip
    """``backward`` by products of tiles; ``of_out`` is like ``out`` (n0, n1, h, t, d)."""
    q, k, v, *units = x
    (d_out, d_out_units), (dq, dq_units), (dk, dk_units), (dv, dv_units) = of_out, of_q, of_k, of_v
    delta, levels = lse.new_empty(2, lse.shape[:3].numel(), padded_rows(q.shape[3]))
    draws = options.dropout_p > 0 and options.bits is None
    hashes = torch.empty_like(delta, dtype=torch.int32) if draws else delta  # a stand-in, not read
    sides = (words, *options.side_inputs(q), *units, d_out_units)
    flags, counts = options.flags(x), sizes(q, k)
    flags |= {"CHOSEN": options.budget > 0, "WINDOW": options.window is not None}
    intervals = options.intervals(q)
    queries, keys = counts[:2]
    strides = [y.stride()[:4] for y in (q, k, v, d_out)]
    numbers = (*counts, *options.numbers(), options.shrink(x), *options.window_numbers)
    shape = tile("backward_queries", queries, keys, q.shape[4], options.exact)
    backward_queries[(cdiv(queries, shape.m) * q.shape[:3].numel(),)](
        q, k, v, out, d_out, lse, *sides, *intervals[:2], dq, dq_units, delta, levels, hashes,
        *strides, out.stride()[:4], options.mask_strides, dq.stride()[:4],
        *numbers, **flags, **shape.schedule(),
    )  # fmt: skip
    shape = tile("backward_keys", queries, keys, q.shape[4], options.exact)
    backward_keys[(cdiv(keys, shape.n) * k.shape[:3].numel(),)](
        q, k, v, d_out, delta, levels, hashes, *sides, *intervals, dk, dk_units, dv, dv_units,
        *strides, options.mask_strides, dk.stride()[:4], dv.stride()[:4],
        *numbers, **flags, **shape.schedule(),
    )  # fmt: skip


def _few_backward(
    of_out: Halves, x: Inputs, out: Tensor, lse: Tensor, words: Tensor, options: Options,
    of_q: Halves, of_k: Halves, of_v: Halves,
) -> None:  # fmt: skip
    """The same where few keys of halves are kept, which are gathered."""
    q, k, v, q_units, k_units, v_units = x
    (d_out, d_out_units), (dq, dq_units), (dk, dk_units), (dv, dv_units) = of_out, of_q, of_k, of_v
    _, noise, scales = options.side_inputs(q)
    counts, flags = sizes(q, k), options.flags(x)
    queries, keys = counts[:2]
    scale, offset, _, factor = options.numbers()
    shrink = options.shrink(x)
    lists = q.new_empty((*q.shape[:3], options.budget, 3, padded_rows(queries)), dtype=torch.int16)
    common: dict[str, Any] = {"K": options.budget} | {name: flags[name] for name in ("SCALED", "WIDTH", "BLOCK_D")}
    of_queries, of_keys = few_tiles(q.shape[4])
    few_queries[(cdiv(queries, of_queries["BLOCK_M"]) * q.shape[:3].numel(),)](
        q, k, v, out, d_out, lse, words, noise, scales, q_units, k_units, v_units, d_out_units, dq, dq_units, lists,
        *[y.stride()[:4] for y in (q, k, v, d_out, out, dq)],
        *counts, scale, factor, shrink,
        DROPOUT=options.dropout_p > 0, **common, **of_queries,
    )  # fmt: skip
    few_keys[(cdiv(keys, of_keys["BLOCK_N"]) * k.shape[:3].numel(),)](
        q, d_out, lists.view(torch.int32), scales, q_units, v_units, d_out_units, dk, dk_units, dv, dv_units,
        *[y.stride()[:4] for y in (q, d_out, dk, dv)],
        *counts, scale, offset, factor, shrink,
        CAUSAL=flags["CAUSAL"], **common, **of_keys,
    )  # fmt: skip
