"""Operators as plain autograd functions, for eager code: to dispatch an operator takes longer than short rows do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


def unseen(*tensors: Tensor) -> bool:
    """Is nobody there, compiler, tracer or a tensor of another kind, that must see an operator?"""
    return not (
        torch.compiler.is_compiling()
        or is_in_torch_dispatch_mode()
        or torch._C._get_tracing_state() is not None
        or any(type(x) is not Tensor for x in tensors)
    )


def eager_form(
    forward: Callable[..., tuple[Tensor, ...]],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    differentiate: Callable[..., tuple[Any, ...]],
) -> Callable[..., Tensor]:
    """The first result of ``forward``, differentiable; the rest as ``register_autograd`` takes it."""

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            output = forward(*inputs)
            setup(ctx, inputs, output)
            return output[0]

        @staticmethod
        def backward(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
            return differentiate(ctx, d_out)

    return Eager.apply


def backward_form(plain: Callable[..., Any], operator: Callable[..., Any], d_out: Tensor) -> Callable[..., Any]:
    """A backward pass; as an operator where its own gradient is asked for too, which that refuses."""
    return plain if unseen(d_out) and not torch.is_grad_enabled() else operator
