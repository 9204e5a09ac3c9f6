"""Exact top-k attention for long rows as a PyTorch operator: memory O(queries x k), no matrix of scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..reference import Problem
from . import long_launch
from .eager import backward_form, eager_form, unseen
from .launch import Options
from .short_rows import five_axes, lead_axes, no_second_derivative, options_of

Results = tuple[Tensor, Tensor, Tensor, Tensor]


def attend(problem: Problem) -> Tensor:
    """Output (..., h, t, d) of a problem that ``kernels.cannot`` lets through. Its memory is (..., t, h, d)."""
    mask, _, scales, _, _, budget, causal, offset, scale, _, _, exact = options_of(problem, tuple(problem.q.shape[:-2]))
    q, k, v = (five_axes(x) for x in (problem.q, problem.k, problem.v))
    inputs = (q, k, v, mask, scales, budget, causal, offset, scale, exact)
    out = _eager(*inputs) if unseen(q, k, v) else torch.ops.semfocus.attend_long(*inputs)[0]
    return lead_axes(out, problem.q)


def _long_options(mask: Tensor | None, scales: Tensor | None, *numbers: Any) -> Options:
    budget, causal, offset, scale, exact = numbers
    return Options(mask, None, scales, None, None, budget, causal, offset, scale, 0.0, 0, exact)


def _attend_plain(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scales: Tensor | None, budget: int, causal: bool, offset: int,
    scale: float, exact: bool,
) -> Results:  # fmt: skip
    """out, lse, and the kept keys with their weights."""
    return long_launch.forward(q, k, v, _long_options(mask, scales, budget, causal, offset, scale, exact))


_attend = torch.library.custom_op("semfocus::attend_long", _attend_plain, mutates_args=())


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Results:
    return long_launch.empty_results(q, options[2])


def _backward_plain(
    d_out: Tensor, out: Tensor, lse: Tensor, indices: Tensor, weights: Tensor, q: Tensor, k: Tensor, v: Tensor,
    mask: Tensor | None, scales: Tensor | None, budget: int, causal: bool, offset: int, scale: float, exact: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    options = _long_options(mask, scales, budget, causal, offset, scale, exact)
    long_launch.backward(d_out, q, k, v, out, lse, indices, weights, options, dq, dk, dv)
    return dq, dk, dv


_backward = torch.library.custom_op("semfocus::attend_long_backward", _backward_plain, mutates_args=())


@_backward.register_fake
def _(
    d_out: Tensor, out: Tensor, lse: Tensor, indices: Tensor, weights: Tensor, q: Tensor, k: Tensor, v: Tensor,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    return dq, dk, dv


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    ctx.save_for_backward(*output, *inputs[:5])
    ctx.options = inputs[5:]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_out: Tensor, *_: None) -> tuple[Any, ...]:
    backward = backward_form(_backward_plain, torch.ops.semfocus.attend_long_backward, d_out)
    return (*backward(d_out, *ctx.saved_tensors, *ctx.options), *[None] * 7)


_eager = eager_form(_attend_plain, _setup, _differentiate)
_attend.register_autograd(_differentiate, setup_context=_setup)
_backward.register_autograd(no_second_derivative)
