"""Fused attention as PyTorch operators, for eager code, ``torch.compile`` and CUDA graphs.

Two forms of the same: q, k and v apart, or side by side in one tensor as a fused projection leaves them. The second
reads them and writes their gradients where they lie.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..patterns._windows import Window
from ..patterns.top_k import TopK
from ..randomness import spread
from ..reference import Problem
from ..windows import intervals
from . import exact_products, launch
from .eager import backward_form, eager_form, unseen
from .launch import Options


def attend(problem: Problem) -> Tensor:
    """Output (..., h, t, d) of a problem that ``kernels.cannot`` lets through. Its memory is (..., t, h, d)."""
    lead = tuple(problem.q.shape[:-2])
    options = options_of(problem, lead)
    if problem.packed is not None:
        out = torch.ops.semfocus.attend_packed(problem.packed, *options)[0]
    else:
        q, k, v = (five_axes(x) for x in (problem.q, problem.k, problem.v))
        out = _eager(q, k, v, *options) if unseen(q, k, v) else torch.ops.semfocus.attend(q, k, v, *options)[0]
    return lead_axes(out, problem.q)


def lead_axes(out: Tensor, q: Tensor) -> Tensor:
    """(n0, n1, t, h, d) -> (..., h, t, d), with the leading axes of q."""
    result = out.transpose(2, 3)  # (n0, n1, h, t, d)
    # Not reshape(): compiled, its gradient would be a view of whatever memory the caller's gradient has.
    for _ in range(5 - q.ndim):
        result = result.squeeze(0)
    return result if q.ndim <= 5 else torch.unflatten(result, 0, q.shape[: q.ndim - 4])


def five_axes(x: Tensor) -> Tensor:
    """(..., h, t, d) -> (n0, n1, h, t, d)."""
    return x[(None,) * (5 - x.ndim)] if x.ndim <= 5 else x.flatten(0, x.ndim - 5)


def options_of(p: Problem, lead: tuple[int, ...]) -> tuple[Any, ...]:
    """What the operators take beside the tensors, in the order of ``Options``."""
    keys = p.k.shape[-2]
    window, reach, first_global = _window(p, lead) if isinstance(p.pattern, Window) else (None, None, keys)
    mask = None if p.mask is None else five_axes(p.mask.expand(*lead, 1, keys)).squeeze(3)  # (n0, n1, h, s)
    noise = spread(p.noise.fresh, lead).flatten().contiguous() if p.dropout_p > 0 else None
    scales = None
    if isinstance(p.scale, Tensor):  # flatten() alone may be a view without strides
        scales = p.scale.float().expand(*lead, 1, 1).flatten().contiguous()
    k = p.pattern.k if isinstance(p.pattern, TopK) else 0
    scale = 1.0 if isinstance(p.scale, Tensor) else float(p.scale)
    numbers = (k if k < keys else 0, p.is_causal, p.query_offset, scale, p.dropout_p, first_global)
    return mask, noise, scales, window, reach, *numbers, exact_products(p)


def _window(p: Problem, lead: tuple[int, ...]) -> tuple[Tensor, Tensor, int]:
    """Which keys each query has in its window, and which queries each key: int32 (2, n, t) and (2, n, s).

    n is 1 if nothing but positions decides.
    """
    found = intervals(p)
    both = ((found.begin, found.end), found.reach(p.k.shape[-2]))
    window, reach = (
        torch.stack([x[None] if x.ndim == 1 else x.expand(*lead, x.shape[-1]).flatten(0, -2) for x in pair])
        .to(torch.int32)
        .contiguous()
        for pair in both
    )
    return window, reach, found.first_global


def _apart(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(m, b, t, 3, h, d) -> three of (m, b, h, t, d), without copies."""
    q, k, v = qkv.permute(3, 0, 1, 4, 2, 5).unbind(0)
    return q, k, v


# --- q, k and v apart ---

Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _forward(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Results:
    """out, log-sum-exp, kept bits, dropout's bits, and halves of q, k, v with their units.

    All but the first two are empty if there is no need for them.
    """
    inputs, keys = launch.prepare(q, k, v, options.exact), k.shape[3]
    bits = launch.empty_bits(q, keys, options.dropout_p, options.window)
    launch.draw(bits, options.noise, q.shape[3], keys, options.offset, options.dropout_p)
    results = launch.forward(inputs, q.dtype, launch.with_bits(options, bits))
    return (*results, bits, *(inputs if inputs.halved else _nothing(q)))


def _fake(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Results:
    results = (
        *launch.empty_results(q, k, q.dtype, options.budget),
        launch.empty_bits(q, k.shape[3], options.dropout_p, options.window),
    )
    if not launch.is_halved(q, options.exact):
        return (*results, *_nothing(q))
    a, b, c = (x.new_empty(x.shape, dtype=torch.float16) for x in (q, k, v))
    return (*results, a, b, c, q.new_empty(q.shape[:3]), k.new_empty(k.shape[:3]), v.new_empty(v.shape[:3]))


def _nothing(x: Tensor) -> launch.Inputs:
    """Six tensors without elements; operators may not return the same one twice."""
    return launch.Inputs(*(x.new_empty(0) for _ in range(6)))


def _attend_plain(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, noise: Tensor | None, scales: Tensor | None,
    window: Tensor | None, reach: Tensor | None, budget: int, causal: bool, offset: int, scale: float,
    dropout_p: float, first_global: int, exact: bool,
) -> Results:  # fmt: skip
    return _forward(
        q,
        k,
        v,
        Options(mask, noise, scales, window, reach, budget, causal, offset, scale, dropout_p, first_global, exact),
    )


_attend = torch.library.custom_op("semfocus::attend", _attend_plain, mutates_args=())


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Results:
    return _fake(q, k, v, Options(*options))


def _backward_plain(
    d_out: Tensor, out: Tensor, lse: Tensor, words: Tensor, bits: Tensor, q: Tensor, k: Tensor, v: Tensor,
    q_units: Tensor, k_units: Tensor, v_units: Tensor, mask: Tensor | None, noise: Tensor | None, scales: Tensor | None,
    window: Tensor | None, reach: Tensor | None, budget: int, causal: bool, offset: int, scale: float,
    dropout_p: float, first_global: int, exact: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (x.new_empty(x.shape, dtype=out.dtype) for x in (q, k, v))
    options = Options(mask, noise, scales, window, reach, budget, causal, offset, scale, dropout_p, first_global, exact)
    inputs, options = launch.Inputs(q, k, v, q_units, k_units, v_units), launch.with_bits(options, bits)
    launch.backward(d_out, inputs, out, lse, words, options, dq, dk, dv)
    return dq, dk, dv


_attend_backward = torch.library.custom_op("semfocus::attend_backward", _backward_plain, mutates_args=())


@_attend_backward.register_fake
def _(
    d_out: Tensor, out: Tensor, lse: Tensor, words: Tensor, bits: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (x.new_empty(x.shape, dtype=out.dtype) for x in (q, k, v))
    return dq, dk, dv


# --- q, k and v in one tensor ---


@torch.library.custom_op("semfocus::attend_packed", mutates_args=())
def _attend_packed(
    qkv: Tensor, mask: Tensor | None, noise: Tensor | None, scales: Tensor | None, window: Tensor | None,
    reach: Tensor | None, budget: int, causal: bool, offset: int, scale: float, dropout_p: float, first_global: int,
    exact: bool,
) -> Results:  # fmt: skip
    return _forward(
        *_apart(qkv),
        Options(mask, noise, scales, window, reach, budget, causal, offset, scale, dropout_p, first_global, exact),
    )


@_attend_packed.register_fake
def _(qkv: Tensor, *options: Any) -> Results:
    return _fake(*_apart(qkv), Options(*options))


@torch.library.custom_op("semfocus::attend_packed_backward", mutates_args=())
def _attend_packed_backward(
    d_out: Tensor, out: Tensor, lse: Tensor, words: Tensor, bits: Tensor, q: Tensor, k: Tensor, v: Tensor,
    q_units: Tensor, k_units: Tensor, v_units: Tensor, mask: Tensor | None, noise: Tensor | None, scales: Tensor | None,
    window: Tensor | None, reach: Tensor | None, budget: int, causal: bool, offset: int, scale: float,
    dropout_p: float, first_global: int, exact: bool,
) -> Tensor:  # fmt: skip
    m, b, h, t, d = q.shape
    gradient = out.new_empty(m, b, t, 3, h, d)
    options = Options(mask, noise, scales, window, reach, budget, causal, offset, scale, dropout_p, first_global, exact)
    inputs = launch.Inputs(q, k, v, q_units, k_units, v_units)
    launch.backward(d_out, inputs, out, lse, words, launch.with_bits(options, bits), *_apart(gradient))
    return gradient


@_attend_packed_backward.register_fake
def _(d_out: Tensor, out: Tensor, *rest: Any) -> Tensor:
    m, b, t, h, d = out.shape
    return out.new_empty(m, b, t, 3, h, d)


# --- autograd ---


def _remember(ctx: Any, results: Results, inputs: tuple[Tensor, ...], options: tuple[Any, ...]) -> None:
    """Halves, where there are any, stand for the inputs."""
    halved = results[7].numel() > 0
    ctx.save_for_backward(*results[:4], *(results[4:7] if halved else inputs), *results[7:], *options[:5])
    ctx.packed_inputs, ctx.options = not halved and len(inputs) == 1, options[5:]
    ctx.set_materialize_grads(False)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    _remember(ctx, output, inputs[:3], inputs[3:])


def _setup_packed(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    _remember(ctx, output, inputs[:1], inputs[1:])


def _differentiate(ctx: Any, d_out: Tensor, *_: None) -> tuple[Any, ...]:
    backward = backward_form(_backward_plain, torch.ops.semfocus.attend_backward, d_out)
    return (*backward(d_out, *ctx.saved_tensors, *ctx.options), *[None] * 12)


def _differentiate_packed(ctx: Any, d_out: Tensor, *_: None) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    if ctx.packed_inputs:
        saved = (*saved[:4], *_apart(saved[4]), *saved[5:])
    gradient = torch.ops.semfocus.attend_packed_backward(d_out, *saved, *ctx.options)
    return (gradient, *[None] * 12)


def no_second_derivative(ctx: Any, *gradients: Tensor) -> None:
    raise NotImplementedError("the fused kernel has no second derivative; use implementation='reference'")


_eager = eager_form(_attend_plain, _setup, _differentiate)
_attend.register_autograd(_differentiate, setup_context=_setup)
_attend_packed.register_autograd(_differentiate_packed, setup_context=_setup_packed)
_attend_backward.register_autograd(no_second_derivative)
_attend_packed_backward.register_autograd(no_second_derivative)
