"""Who else is watching a call: compilers, traces and the transforms of ``torch.func``."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


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


def no_rules() -> str | None:
    """Why an ``autograd.Function`` that has a backward pass only and looks at numbers cannot serve, or None."""
    if torch.compiler.is_compiling():
        return None
    if forward_mode():
        return "it has no forward-mode derivative"
    if transformed():
        return "torch.func does not know its backward pass"
    if _traced():
        return "it looks at numbers, which a trace would take for constants"
    return None
