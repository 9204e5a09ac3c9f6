"""Gradients that cannot be differentiated again, and say so.

``torch.autograd.function.once_differentiable`` refuses only where the incoming gradient needs one itself; otherwise it
would hand out gradients without their part of the graph, and a second derivative would be wrong in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise NotImplementedError(
            "this implementation of attention has no second derivative; use implementation='reference' or 'chunked'"
        )


def once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """For the backward pass of an ``autograd.Function`` with one output."""

    @wraps(backward)
    def refusing(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            gradients = backward(ctx, d_out)
        if not torch.is_grad_enabled():
            return gradients
        sources = (d_out, *ctx.saved_tensors)
        refuse: Callable[..., Tensor] = _Refusal.apply
        return tuple(x if x is None else refuse(x, *sources) for x in gradients)

    return refusing
