"""What ``attention`` refuses, in one sentence that names the argument, its value and what would do."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from .patterns.base import Pattern, broadcasts
from .registry import suggestion

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
IMPLEMENTATIONS = ("auto", "reference", "chunked", "gathered", "windows", "sdpa", "fused")


def check_inputs(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or x.is_nested or x.layout != torch.strided or x.ndim < 3:
            raise ValueError(f"{name} is {_described(x)}; it must be a dense tensor (..., heads, length, width)")
        if x.dtype not in DTYPES:
            raise ValueError(f"{name} is {x.dtype}; use one of {', '.join(str(d) for d in DTYPES)}")
        if x.dtype != query.dtype or x.device != query.device or x.ndim != query.ndim:
            raise ValueError(f"{name} is {_described(x)}; it must match query, which is {_described(query)}")
    if key.shape[-1] != query.shape[-1] or query.shape[-1] == 0:
        raise ValueError(f"key has width {key.shape[-1]}; query has {query.shape[-1]}: they must be equal and not 0")
    if value.shape[:-1] != key.shape[:-1]:
        raise ValueError(f"value has shape {tuple(value.shape)}; all but its width must match key, {tuple(key.shape)}")
    _check_lead(query, key, enable_gqa)


def _check_lead(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    """The axes before (length, width): equal, but for the heads under grouped-query attention."""
    batch = slice(None, -3) if enable_gqa else slice(None, -2)
    if query.shape[batch] != key.shape[batch]:
        raise ValueError(
            f"key has shape {tuple(key.shape)}; all before its length must match query's {tuple(query.shape)}"
        )
    if enable_gqa and (key.shape[-3] == 0 or query.shape[-3] % key.shape[-3]):
        raise ValueError(f"key has {key.shape[-3]} heads; under enable_gqa they must divide query's {query.shape[-3]}")


def check_flags(**flags: object) -> None:
    """True, False, or a compiler's symbol for one of them."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_ | torch.SymBool):
            raise ValueError(f"{name} is {_described(value)}; it must be True or False{_if_mask(value)}")


def check_pattern(pattern: object, name: str = "pattern", hint: str = "") -> None:
    if not isinstance(pattern, Pattern):
        raise ValueError(f"{name} is {_described(pattern)}; it must be a semfocus.Pattern such as TopK(5){hint}")


def _if_mask(value: object) -> str:
    return " (a mask goes to attn_mask)" if isinstance(value, Tensor) else ""


def check_options(
    pattern: Pattern, dropout_p: float, scale: float | None, generator: torch.Generator | None, implementation: str
) -> None:
    check_pattern(pattern, hint=_if_mask(pattern))
    if not _is_number(dropout_p) or not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p is {dropout_p!r}; it must be a number in [0, 1]")
    if scale is not None and (not _is_number(scale) or not -math.inf < scale < math.inf):
        raise ValueError(f"scale is {scale!r}; it must be a finite number, or None for 1/sqrt(width)")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ValueError(f"generator is {generator!r}; it must be a torch.Generator or None")
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {implementation!r}; {suggestion(implementation, IMPLEMENTATIONS)}")


def _is_number(x: object) -> bool:
    """NumPy's scalars are numbers, too."""
    return isinstance(x, Real) and not isinstance(x, bool)


def check_mask(mask: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(f"attn_mask is {_described(mask)}; it must be a boolean or floating-point tensor")
    if mask.device != device:
        raise ValueError(f"attn_mask is on {mask.device}; query is on {device}")
    if not broadcasts(mask.shape, shape):
        raise ValueError(f"attn_mask has shape {tuple(mask.shape)}; it must be broadcastable to {shape}")


def not_over_keys(mask: Tensor | None) -> str | None:
    """Why a mask is not one over keys alone, or None if it is, or there is none: for implementations that need that."""
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        return f"attn_mask is {mask.dtype}; it knows boolean masks over keys only"
    if mask.ndim > 1 and mask.shape[-2] != 1:
        return f"attn_mask has shape {tuple(mask.shape)}; it knows masks over keys, (..., 1, s), only"
    return None


def _described(x: object) -> str:
    if not isinstance(x, Tensor):
        return repr(x) if isinstance(x, Real | str) or x is None else f"of type {type(x).__name__}"
    if x.is_nested or x.layout != torch.strided:
        return f"a {'nested' if x.is_nested else 'sparse'} tensor"
    return f"{x.dtype} {tuple(x.shape)} on {x.device}"
