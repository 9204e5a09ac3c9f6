"""The first half of a block on examples that do not fit on chip as one PyTorch operator: kernels around attention's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..randomness import dropout_numbers
from . import launch
from .half import UNIT_ROWS
from .integers import cdiv, padded
from .launch import Inputs, Options
from .long_half_backward import after_backward, before_backward, facts_of_gradients, maps_backward
from .long_half_tiles import after_forward, before_forward, facts_of_members
from .mlp_half import by_member, no_second_derivative, parts_of

#: Tokens of a tile. The gradients of queries, keys and values have a unit for each tile.
BLOCK_M: int = UNIT_ROWS.value
#: How each kernel is launched: the fastest of those measured on an H200.
BEFORE_FORWARD = {"num_warps": 4, "num_stages": 3}
AFTER_FORWARD = {"num_warps": 4, "num_stages": 3}
FACTS_OF_GRADIENTS = {"num_warps": 8, "num_stages": 2, "BLOCK_M": 128}
AFTER_BACKWARD = {"num_warps": 4, "num_stages": 3}
BEFORE_BACKWARD = {"num_warps": 4, "num_stages": 4}
MAPS_BACKWARD = {"num_warps": 8, "num_stages": 3}

Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _heads(h: Tensor, w: Tensor) -> int:
    """All of the whole width: w is (m, d, 3 H d)."""
    return w.shape[-1] // (3 * h.shape[-1])


def _sizes(h: Tensor, heads: int) -> dict[str, int]:
    return {"HEADS": heads, "WIDTH": h.shape[-1], "BLOCK_D": padded(h.shape[-1], 16), "BLOCK_M": BLOCK_M}


def _runs(
    qkv: Tensor, units: Tensor, noise: Tensor, bits: Tensor, head_scales: Tensor, mask: Tensor | None,
    windows: Tensor | None, ends: list[int], budgets: list[int], windowed: list[int], first_global: int,
    dropout_p: float,
) -> Iterator[tuple[slice, Inputs, Options]]:  # fmt: skip
    """The members of each pattern, what attention's kernels multiply, and their options."""
    start = 0
    for i, stop in enumerate(ends):
        own = slice(start, stop)
        q, k, v = qkv[own].permute(3, 0, 1, 4, 2, 5).unbind(0)  # each (n, b, H, t, d)
        of_q, of_k, of_v = units[:, own].unbind(0)
        seen = None if mask is None else mask[own, :, None].expand(-1, -1, q.shape[2], -1)  # (n, b, H, t)
        window, reach = None, None
        if windowed[i]:
            assert windows is not None
            window, reach = windows[:2, i : i + 1], windows[2:, i : i + 1]
        options = Options(
            mask=seen, noise=noise[own] if dropout_p > 0 else None, scales=head_scales[own], window=window, reach=reach,
            budget=budgets[i], causal=False, offset=0, scale=1.0, dropout_p=dropout_p,
            first_global=first_global, exact=False,
        )  # fmt: skip
        if not windowed[i]:
            options = launch.with_bits(options, bits[own])
        yield own, Inputs(q, k, v, of_q, of_k, of_v), options
        start = stop


@torch.library.custom_op("semfocus::long_half", mutates_args=())
def long_half(
    h: Tensor, w: Tensor, b: Tensor, w_out: Tensor, b_out: Tensor, scales: Tensor, keys: Tensor, mask: Tensor | None,
    windows: Tensor | None, ends: list[int], budgets: list[int], windowed: list[int], first_global: int, eps: float,
    dropout_p: float,
) -> Results:  # fmt: skip
    """h (m, b, t, d), w (m, d, 3 H d), w_out (m, H d, d), scales and keys (m,), mask bool (m, b, t) or None.

    Members up to ``ends[i]`` have the i-th pattern: ``budgets[i]`` best keys, or all if it is 0, of ``windows[:, i]``
    int32 (4, runs, t), which are the intervals of each query and each key, if ``windowed[i]``.

    Returns the result, and for the backward pass: qkv in halves, their units, the maps in halves, attention's dropout
    keys and bits, its scales, its output in halves (in v's units, without dropout's factor), log-sum-exp, kept bits.
    """
    h = h.contiguous()
    w, b, w_out, b_out = (by_member(x) for x in (w, b, w_out, b_out))
    results = _empty(h, w, budgets, windowed, dropout_p)
    out, qkv, units, maps, noise, bits, head_scales, mixed, lse, words = results
    members, examples, tokens, _ = h.shape
    sizes, n = _sizes(h, _heads(h, w)), examples * tokens
    facts_of_members[(members * sizes["HEADS"],)](
        w, b, w_out, scales, keys, units, maps, noise, head_scales, w.stride(0), b.stride(0), w_out.stride(0),
        members, examples,
        HEADS=sizes["HEADS"], WIDTH=sizes["WIDTH"], BLOCK_D=sizes["BLOCK_D"], BLOCK_B=padded(examples, 16),
    )  # fmt: skip
    grid = (members * cdiv(n, BLOCK_M),)
    with _beside(h.device):  # one computes, the other waits for memory
        launch.draw(bits, noise, tokens, tokens, 0, dropout_p)
    before_forward[grid](h, maps, b, units, qkv, b.stride(0), members, examples, n, eps, **sizes, **BEFORE_FORWARD)
    _join(h.device)
    arguments = (qkv, units, noise, bits, head_scales, mask, windows, ends, budgets, windowed, first_global, dropout_p)
    for own, inputs, options in _runs(*arguments):
        launch.fill(inputs, options, mixed[own], lse[own], words[own])
    after_forward[grid](
        h, mixed, units, maps, b_out, keys, out, b_out.stride(0), members, examples, n, *dropout_numbers(dropout_p),
        DROPOUT=dropout_p > 0, **sizes, **AFTER_FORWARD,
    )  # fmt: skip
    return results


@lru_cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _beside(device: torch.device) -> AbstractContextManager[Any]:
    """What is launched inside runs beside what follows, until ``_join``."""
    if device.type != "cuda":
        return nullcontext()
    second = _second_stream(device)
    second.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(second)


def _join(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_second_stream(device))


def _empty(h: Tensor, w: Tensor, budgets: list[int], windowed: list[int], dropout_p: float) -> Results:
    m, b, t, d = h.shape
    heads = _heads(h, w)
    words = launch.words_per_row(t) if any(budgets) else 0
    drawn = launch.words_per_row(t) if dropout_p > 0 and not all(windowed) else 0
    return (
        h.new_empty((m, b, t, d)),
        h.new_empty((m, b, t, 3, heads, d), dtype=torch.float16),
        h.new_empty((3, m, b, heads)),
        h.new_empty((m, 4 * heads, d, d), dtype=torch.float16),
        h.new_empty((m, b, heads), dtype=torch.int32),
        h.new_empty((m, b, heads, drawn, launch.padded_rows(t)), dtype=torch.int32),
        h.new_empty((m, b, heads)),
        h.new_empty((m, b, t, heads, d), dtype=torch.float16),
        h.new_empty((m, b, heads, t)),
        h.new_empty((m, b, heads, words, launch.padded_rows(t)), dtype=torch.int32),
    )


@long_half.register_fake
def _(h: Tensor, w: Tensor, *rest: Any) -> Results:
    budgets, windowed, _, _, dropout_p = rest[8:]
    return _empty(h, w, budgets, windowed, dropout_p)


@torch.library.custom_op("semfocus::long_half_backward", mutates_args=())
def _backward(
    d_out: Tensor, h: Tensor, keys: Tensor, mask: Tensor | None, windows: Tensor | None, qkv: Tensor, units: Tensor,
    maps: Tensor, noise: Tensor, bits: Tensor, head_scales: Tensor, mixed: Tensor, lse: Tensor, words: Tensor,
    ends: list[int], budgets: list[int], windowed: list[int], first_global: int, eps: float, dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dh, and the gradients of the weights of each member in a row: w and b, w_out and b_out."""
    d_out, h = d_out.contiguous(), h.contiguous()
    members, examples, tokens, d = h.shape
    heads, tiles = mixed.shape[3], cdiv(tokens, BLOCK_M)
    sizes, (limit, factor) = _sizes(h, heads), dropout_numbers(dropout_p)
    dy, dh = torch.empty_like(h, dtype=torch.float16), torch.empty_like(h)
    y_units, mixed_units = h.new_empty((members, examples)), h.new_empty((members, examples, heads))
    facts_of_gradients[(members * examples,)](
        d_out, maps, keys, dy, y_units, mixed_units, examples, tokens, limit, factor,
        DROPOUT=dropout_p > 0, **{**sizes, **FACTS_OF_GRADIENTS},
    )  # fmt: skip
    parts, per_part = _parts(members * heads, examples * tiles)
    d_mixed, outer = torch.empty_like(mixed), h.new_empty((members, parts, heads * d * d + d))
    after_backward[(members * parts * heads,)](
        dy, y_units, mixed, units[2], maps, d_mixed, mixed_units, outer, examples, tokens, parts, per_part, factor,
        **sizes, **AFTER_BACKWARD,
    )  # fmt: skip
    d_qkv, qkv_units = torch.empty_like(qkv), h.new_empty((3, members, examples, heads, tiles))
    arguments = (qkv, units, noise, bits, head_scales, mask, windows, ends, budgets, windowed, first_global, dropout_p)
    for own, inputs, options in _runs(*arguments):
        gradients = zip(d_qkv[own].permute(3, 0, 1, 4, 2, 5), qkv_units[:, own], strict=True)
        into = (launch.Halves(*each) for each in gradients)
        d_own = launch.Halves(d_mixed[own].transpose(2, 3), mixed_units[own])
        launch.backward(d_own, inputs, mixed[own], lse[own], words[own], options, *into)
    before_backward[(members * examples * tiles,)](
        h, d_out, d_qkv, qkv_units, maps, dy, dh, members, examples, tokens, eps, **sizes, **BEFORE_BACKWARD
    )
    x = dy  # which is not needed any more
    inner = h.new_empty((members, parts, 3 * heads * (d * d + d)))
    maps_backward[(members * parts * heads,)](
        x, d_qkv, qkv_units, inner, members, examples, tokens, parts, per_part, **sizes, **MAPS_BACKWARD
    )
    return dh, inner.sum(1), outer.sum(1)


def _parts(programs: int, tiles: int) -> tuple[int, int]:
    """Into how many parts the tiles of each of some programs are cut, and tiles of a part."""
    parts, tokens = parts_of(programs, tiles * BLOCK_M, BLOCK_M)
    return parts, tokens // BLOCK_M


@_backward.register_fake
def _(d_out: Tensor, h: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    m, _, _, d = h.shape
    heads = rest[5].shape[1] // 4
    return h.new_empty(h.shape), h.new_empty((m, 3 * heads * (d * d + d))), h.new_empty((m, heads * d * d + d))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    h, _, _, _, _, _, keys, mask, windows, *ctx.options = inputs
    ctx.save_for_backward(h, keys, mask, windows, *output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_out: Tensor, *_: None) -> tuple[Any, ...]:
    dh, inner, outer = torch.ops.semfocus.long_half_backward(d_out, *ctx.saved_tensors, *ctx.options)
    members, d = dh.shape[0], dh.shape[-1]
    width = outer.shape[1] // d - 1  # of all heads
    dw, db = inner.split([3 * d * width, 3 * width], dim=1)
    dw_out, db_out = outer.split([d * width, d], dim=1)
    shaped = (dw.view(members, d, 3 * width), db[:, None], dw_out.view(members, width, d), db_out[:, None])
    return (dh, *shaped, *[None] * 10)


long_half.register_autograd(_differentiate, setup_context=_setup)
_backward.register_autograd(no_second_derivative)
