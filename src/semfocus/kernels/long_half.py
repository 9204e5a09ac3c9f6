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
from .integers import cdiv, padded
from .launch import Inputs, Options
from .long_half_tiles import after_backward, after_forward, before_backward, before_forward, facts_of_members
from .mlp_half import by_member, no_second_derivative, parts_of

#: Tokens of a tile.
BLOCK_M = 64
#: How each kernel is launched: the fastest of those measured on an H200. The last one has more sums of gradients to
#: hold, so its tiles are smaller.
FORWARD = {"num_warps": 4, "num_stages": 1}
AFTER_BACKWARD = {"num_warps": 8, "num_stages": 1, "maxnreg": 128}
BEFORE_BACKWARD = {"BLOCK_M": 32, "num_warps": 4, "num_stages": 2}

Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _heads(h: Tensor, w: Tensor) -> int:
    """All of the whole width: w is (m, d, 3 H d)."""
    return w.shape[-1] // (3 * h.shape[-1])


def _sizes(h: Tensor, w: Tensor) -> dict[str, int]:
    return {"HEADS": _heads(h, w), "WIDTH": h.shape[-1], "BLOCK_D": padded(h.shape[-1], 16), "BLOCK_M": BLOCK_M}


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

    Returns the result, and for the backward pass qkv in halves, their units, attention's dropout keys and bits, its
    scales, output, log-sum-exp and kept bits.
    """
    h = h.contiguous()
    w, b, w_out, b_out = (by_member(x) for x in (w, b, w_out, b_out))
    results = out, qkv, units, noise, bits, head_scales, mixed, lse, words = _empty(h, w, budgets, windowed, dropout_p)
    members, examples, tokens, _ = h.shape
    flags, n = {**_sizes(h, w), **FORWARD}, examples * tokens
    facts_of_members[(members * flags["HEADS"],)](
        w, b, scales, keys, units, noise, head_scales, w.stride(0), b.stride(0), members, examples,
        HEADS=flags["HEADS"], WIDTH=flags["WIDTH"], BLOCK_D=flags["BLOCK_D"], BLOCK_B=padded(examples, 16),
    )  # fmt: skip
    grid = (members * cdiv(n, BLOCK_M),)
    with _beside(h.device):  # one computes, the other waits for memory
        launch.draw(bits, noise, tokens, tokens, 0, dropout_p)
    before_forward[grid](h, w, b, units, qkv, w.stride(0), b.stride(0), members, examples, n, eps, **flags)
    _join(h.device)
    arguments = (qkv, units, noise, bits, head_scales, mask, windows, ends, budgets, windowed, first_global, dropout_p)
    for own, inputs, options in _runs(*arguments):
        launch.fill(inputs, options, mixed[own], lse[own], words[own])
    after_forward[grid](
        h, mixed, w_out, b_out, keys, out, w_out.stride(0), b_out.stride(0), n, *dropout_numbers(dropout_p),
        DROPOUT=dropout_p > 0, **flags,
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
        h.new_empty((m, b, heads), dtype=torch.int32),
        h.new_empty((m, b, heads, drawn, launch.padded_rows(t)), dtype=torch.int32),
        h.new_empty((m, b, heads)),
        h.new_empty((m, b, t, heads, d)),
        h.new_empty((m, b, heads, t)),
        h.new_empty((m, b, heads, words, launch.padded_rows(t)), dtype=torch.int32),
    )


@long_half.register_fake
def _(h: Tensor, w: Tensor, *rest: Any) -> Results:
    budgets, windowed, _, _, dropout_p = rest[8:]
    return _empty(h, w, budgets, windowed, dropout_p)


@torch.library.custom_op("semfocus::long_half_backward", mutates_args=())
def _backward(
    d_out: Tensor, h: Tensor, w: Tensor, w_out: Tensor, keys: Tensor, mask: Tensor | None, windows: Tensor | None,
    qkv: Tensor, units: Tensor, noise: Tensor, bits: Tensor, head_scales: Tensor, mixed: Tensor, lse: Tensor,
    words: Tensor, ends: list[int], budgets: list[int], windowed: list[int], first_global: int, eps: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dh, and the gradients of the weights of each member in a row: w and b, w_out and b_out."""
    d_out, h = d_out.contiguous(), h.contiguous()
    w, w_out = by_member(w), by_member(w_out)
    members, examples, tokens, d = h.shape
    sizes, n = _sizes(h, w), examples * tokens
    heads = sizes["HEADS"]
    parts, per_part = parts_of(members * heads, n, BLOCK_M)
    dh, d_mixed, d_qkv = torch.empty_like(h), torch.empty_like(mixed), torch.empty_like(qkv, dtype=h.dtype)
    outer = h.new_empty((members, parts, heads * d * d + d))
    after_backward[(members * parts * heads,)](
        d_out, mixed, w_out, keys, d_mixed, outer, w_out.stride(0), n, parts, per_part, *dropout_numbers(dropout_p),
        DROPOUT=dropout_p > 0, **sizes, **AFTER_BACKWARD,
    )  # fmt: skip
    arguments = (qkv, units, noise, bits, head_scales, mask, windows, ends, budgets, windowed, first_global, dropout_p)
    for own, inputs, options in _runs(*arguments):
        into = d_qkv[own].permute(3, 0, 1, 4, 2, 5).unbind(0)
        launch.backward(d_mixed[own], inputs, mixed[own], lse[own], words[own], options, *into)
    parts, per_part = parts_of(members, n, BEFORE_BACKWARD["BLOCK_M"])
    inner = h.new_empty((members, parts, 3 * heads * (d * d + d)))
    for head in range(heads):
        before_backward[(members * parts,)](
            h, d_out, d_qkv, w, dh, inner, w.stride(0), n, parts, per_part, eps, head,
            FIRST=head == 0, LAST=head == heads - 1, **{**sizes, **BEFORE_BACKWARD},
        )  # fmt: skip
    return dh, inner.sum(1), outer.sum(1)


@_backward.register_fake
def _(d_out: Tensor, h: Tensor, w: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    m, _, _, d = h.shape
    heads = _heads(h, w)
    return h.new_empty(h.shape), h.new_empty((m, 3 * heads * (d * d + d))), h.new_empty((m, heads * d * d + d))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    h, w, _, w_out, _, _, keys, mask, windows, *ctx.options = inputs
    ctx.save_for_backward(h, w, w_out, keys, mask, windows, *output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_out: Tensor, *_: None) -> tuple[Any, ...]:
    dh, inner, outer = torch.ops.semfocus.long_half_backward(d_out, *ctx.saved_tensors, *ctx.options)
    members, d = dh.shape[0], dh.shape[-1]
    width = _heads(dh, ctx.saved_tensors[1]) * d  # of all heads
    dw, db = inner.split([3 * d * width, 3 * width], dim=1)
    dw_out, db_out = outer.split([d * width, d], dim=1)
    shaped = (dw.view(members, d, 3 * width), db[:, None], dw_out.view(members, width, d), db_out[:, None])
    return (dh, *shaped, *[None] * 10)


long_half.register_autograd(_differentiate, setup_context=_setup)
_backward.register_autograd(no_second_derivative)
