"""Who else is watching a call: compilers, traces and the transforms of ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def made_once(most: int) -> Callable[[Callable[Arguments, Made]], Callable[Arguments, Made]]:
    """Keeps what a function of hashable arguments makes of tensors, for the ``most`` newest arguments.

    Tensors that are made while somebody watches are of his kind (fake, or part of his trace) and not kept; those made
    in inference mode could not be saved for a backward pass later, so they are made outside it.
    """

    def decorate(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
        kept = lru_cache(most)(torch.inference_mode(False)(make))

        @wraps(make)
        def once(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
            return make(*args, **kwargs) if numbers_are_hidden() else kept(*args, **kwargs)  # type: ignore[arg-type]

        return once

    return decorate


def transformed() -> bool:
    """Is this inside ``torch.func.grad``, ``jvp``, ``vmap`` or another of its kind?"""
    return torch._C._functorch.peek_interpreter_stack() is not None


def numbers_are_hidden() -> bool:
    """Would a look at a tensor's numbers fail, or make them into constants?"""
    return torch.compiler.is_compiling() or transformed() or _traced()


def _traced() -> bool:
    """By ``torch.jit.trace`` or ``make_fx``, or with fake tensors, which have shapes only."""
    modes = torch._C._TorchDispatchModeKey
    watched = any(torch._C._get_dispatch_mode(mode) is not None for mode in (modes.FAKE, modes.PROXY))
    return watched or torch._C._is_tracing()


def forward_mode() -> bool:
    """May tensors carry tangents?"""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def no_derivative_rules() -> str | None:
    """Why something with a plain backward pass alone cannot serve, or None."""
    if torch.compiler.is_compiling():
        return None
    if forward_mode():
        return "it has no forward-mode derivative"
    if transformed():
        return "torch.func does not know its backward pass"
    return None


def no_rules() -> str | None:
    """The same for what looks at numbers besides."""
    watched = not torch.compiler.is_compiling() and _traced()
    return no_derivative_rules() or ("it looks at numbers, which a trace would take for constants" if watched else None)
