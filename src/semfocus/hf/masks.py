"""The mask function of our implementations, and how the attention function reads what it gets.

transformers passes whatever the mask function returns on to every layer. Three kinds of masks arrive there:

- *compact*, uint8 (b, 1, 1, s): causal, and the keys with 1 are visible; (1, 1, 1, 1) when there is no padding. We make
  it where transformers' own fused attention would be given no mask at all, so models do not look into it. It says
  without a look at its values that a fused causal kernel can serve.
- boolean (b, 1, t, s): True = may attend. Everything else we make, and what users pass themselves.
- float, added to the scores: what users or a few models make themselves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..reference import hiding
from .reach import check_reach, makes_masks


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **_options: Any,  # for other implementations' masks: dtype, local_size, skips
) -> Tensor:
    """What transformers calls once per forward pass. ``attention_mask`` is (b, s) there, True = not padding."""
    from transformers import masking_utils

    check_reach(config)
    padding_fits = attention_mask is None or attention_mask.shape[-1] == kv_length
    # Static caches give a tensor as offset, and more keys than there are tokens.
    ends_together = isinstance(q_offset, int) and kv_offset == 0 and q_offset + q_length == kv_length
    plain = mask_function if padding_fits and not use_vmap else None
    skip = allow_is_causal_skip and ends_together and q_length > 1 and not makes_masks(type(config))
    if plain is masking_utils.causal_mask_function and skip:
        ones = torch.ones(1, 1, 1, 1, dtype=torch.uint8, device=device)
        return ones if attention_mask is None else attention_mask[:, None, None].to(torch.uint8)
    if plain is masking_utils.bidirectional_mask_function:
        keys = torch.ones(1, 1, device=device, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        return keys[:, None, None].expand(batch_size, 1, q_length, kv_length)  # no memory for the queries' axis
    mask = masking_utils.sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        use_vmap=use_vmap,
        device=device,
    )
    assert isinstance(mask, Tensor)
    if q_length > 1 and not ends_together and not torch.compiler.is_compiling():
        _check_positions(mask, q_offset, kv_offset)
    return mask


def _check_positions(mask: Tensor, q_offset: int | Tensor, kv_offset: int) -> None:
    """Queries are taken to stand behind all keys but their own number.

    Under a causal mask nothing depends on it when there are unused keys behind them (a static cache being filled):
    those are invisible. Under any other mask the queries' positions would be wrong.
    """
    t, s = mask.shape[-2:]
    first = q_offset - kv_offset
    if int(first) + t == s:
        return
    ahead = torch.arange(s, device=mask.device) > torch.arange(t, device=mask.device)[:, None] + first
    if bool((mask & ahead).any()):
        raise ValueError(
            f"{t} queries stand among {s} keys of a static cache under a mask that is not causal; semfocus does not "
            "know their positions: use cache_implementation='dynamic'"
        )


class Visibility(NamedTuple):
    """What of the keys is visible, in the words of ``semfocus.attention``."""

    mask: Tensor | None  # bool or float, broadcastable to (b, h, t, s)
    is_causal: bool
    query_offset: int


def visibility(module: Any, mask: Tensor | None, is_causal: bool | None, t: int, s: int) -> Visibility:
    """Reads a mask for t queries and s keys. Where there is one, it is the truth, as in eager attention."""
    if mask is None:
        return _without_mask(module, is_causal if is_causal is not None else getattr(module, "is_causal", None), t, s)
    # Some models pass is_causal=False since there is a mask; what matters here is where the queries stand: behind all
    # other keys, or, if not causal, in the same sequence (or in another: then it means nothing).
    causal = bool(is_causal or getattr(module, "is_causal", False))
    offset = s - t if causal else 0
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        kind = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask in {type(module).__name__} is {kind}; semfocus needs a tensor (b, 1, t, s)")
    if mask.dtype == torch.uint8 and mask.shape[-2] == 1:
        no_padding = mask.shape[-1] == 1 and s > 1
        return Visibility(None if no_padding else mask.bool(), True, s - t)
    if mask.dtype == torch.bool:
        if causal and mask.shape[-2] == 1 and t > 1:
            raise ValueError(
                f"attention_mask has shape {tuple(mask.shape)} for {t} queries in {type(module).__name__}, which is "
                "causal; it does not say what each query may see: expand it to (b, 1, t, s)"
            )
        # One row for all queries, expanded: kernels can use that.
        return Visibility(mask[..., :1, :] if mask.stride(-2) == 0 else mask, False, offset)
    if mask.is_floating_point():
        return Visibility(hiding(mask), False, offset)
    raise ValueError(f"attention_mask is {mask.dtype}; it must be boolean (True = may attend) or floating-point")


def _without_mask(module: Any, causal: bool | None, t: int, s: int) -> Visibility:
    if causal is None:
        raise ValueError(
            f"{type(module).__name__} passes no mask and does not say whether it is causal (is_causal); "
            "semfocus does not guess: use another attn_implementation"
        )
    if causal and 1 < t != s:
        raise ValueError(
            f"{type(module).__name__} passes no mask for {t} queries and {s} keys, so their positions are not known; "
            "pass attention_mask"
        )
    return Visibility(None, causal and t > 1, s - t if causal else 0)
