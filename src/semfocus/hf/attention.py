"""The attention function that transformers' models call."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import functional, patterns
from .._checks import check_inputs
from ..patterns._positions import follows_positions
from ..patterns.base import Pattern
from .arguments import checked, weights_wanted
from .masks import Visibility, visibility

#: Where ``semfocus.nn.focus`` puts the pattern of an attention module.
PATTERN = "_semfocus_pattern"
#: Where it notes that a module's name says self attention.
SELF = "_semfocus_self"
#: Where a module keeps the pattern made from its config: (name, knobs, pattern).
MADE = "_semfocus_made"


def attention(
    module: nn.Module,
    query: Tensor,  # (b, h, t, d)
    key: Tensor,  # (b, h or fewer, s, d)
    value: Tensor,  # (b, h or fewer, s, e)
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    *,
    stem: str | None = None,  # the pattern's name; None: the module carries a pattern
    **given: Any,  # what else a model passes; all of it is looked at
) -> tuple[Tensor, Tensor | None]:
    """transformers' signature: output (b, t, h, e), and weights (b, h, t, s) if they are asked for."""
    arguments = checked(module, given)
    query, key, value = functional.in_autocasts_dtype(query, key, value)
    check_inputs(query, key, value, enable_gqa=True)
    t, s = query.shape[-2], key.shape[-2]
    if attention_mask is not None and getattr(module, "is_decoder", False) and is_self(module):
        is_causal = True  # not all decoders say so; the mask remains the truth, this tells where the queries stand
    seen = visibility(module, attention_mask, is_causal, t, s)
    _check_window(module, arguments.sliding_window, attention_mask, s)
    if arguments.position_bias is not None:
        seen = _biased(seen, arguments.position_bias)
    pattern = pattern_of(module, stem)
    _check_pattern(module, pattern, seen, t, s)
    problem = functional.problem_of(
        query, key, value, pattern, seen.mask, dropout, seen.is_causal, None, True, seen.query_offset, None
    )
    # Models compute their scales, some with tensors: these are not checked as a user's number is.
    scale = problem.scale if scaling is None else scaling
    problem = replace(problem, scale=scale, soft_cap=float(arguments.softcap or 0.0))
    with_weights = weights_wanted(module, arguments)
    out, weights = functional.attend(problem, with_weights=with_weights)
    return out.transpose(1, 2).contiguous(), weights if with_weights else None


def pattern_of(module: nn.Module, stem: str | None) -> Pattern:
    """The pattern a module carries, or the one its config describes."""
    carried = vars(module).get(PATTERN)
    if stem is None:
        if carried is None:
            raise ValueError(
                f"attn_implementation is 'semfocus', which semfocus.nn.focus sets, but {type(module).__name__} has no "
                "pattern; choose one by name, such as 'semfocus_top_k'"
            )
        return carried  # type: ignore[no-any-return]
    config = getattr(module, "config", None)
    knobs = getattr(config, "semfocus", None) or {}
    made = vars(module).get(MADE)
    if made is None or made[:2] != (stem, knobs):  # looking a pattern up takes longer than a small layer
        made = vars(module)[MADE] = (stem, copy.deepcopy(knobs), _made(stem, knobs, config))
    return made[2]


def _made(stem: str, knobs: Any, config: Any) -> Pattern:
    if not isinstance(knobs, dict):
        raise ValueError(f'config.semfocus is {knobs!r}; it must be a dict of knobs such as {{"k": 8}}')
    try:
        return patterns.get(stem, **knobs)
    except ValueError as error:
        raise ValueError(
            f"{type(config).__name__}.semfocus is {knobs!r} and attn_implementation 'semfocus_{stem}': {error}"
        ) from None


def is_self(module: nn.Module) -> bool:
    """Is it known to be self attention? In T5's family only that has a bias by distance."""
    return bool(vars(module).get(SELF) or getattr(module, "has_relative_attention_bias", False))


def is_cross(module: nn.Module) -> bool:
    """Do queries and keys come from different sequences, as far as the module tells?"""
    if is_self(module):
        return False
    if getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__:
        return True
    # The family of BART and T5 uses one class for all three kinds of attention.
    return bool(getattr(module, "is_decoder", False)) and getattr(module, "is_causal", None) is False


def _biased(seen: Visibility, bias: Tensor) -> Visibility:
    """T5's bias, added to the scores of the visible keys."""
    if seen.mask is None:
        return seen._replace(mask=bias)
    if seen.mask.dtype == torch.bool:
        return seen._replace(mask=torch.where(seen.mask, bias, -torch.inf))
    return seen._replace(mask=seen.mask + bias)


def _check_window(module: nn.Module, window: int | None, attention_mask: Tensor | None, keys: int) -> None:
    """Windows are in the masks that we make; a model that passes none has lost its window."""
    if window is not None and attention_mask is None and keys > window:
        raise ValueError(
            f"{type(module).__name__} has a sliding window of {window} but passes no mask that holds it; "
            "pass attention_mask"
        )


def _check_pattern(module: nn.Module, pattern: Pattern, seen: Visibility, t: int, s: int) -> None:
    check_global_tokens(pattern)
    one_sequence = seen.is_causal or seen.query_offset == s - t
    if follows_positions(pattern) and (is_cross(module) or not one_sequence):
        raise ValueError(
            f"{type(module).__name__} attends to another sequence ({t} queries, {s} keys), and {pattern.label} follows "
            "positions; semfocus.nn.focus(model, pattern) leaves such layers as they are"
        )


def check_global_tokens(pattern: Pattern) -> None:
    if pattern.global_tokens:
        raise ValueError(
            f"global_tokens is {pattern.global_tokens} in {pattern.label}; Hugging Face models have no extra tokens at "
            "the end of the sequence: use 0"
        )
