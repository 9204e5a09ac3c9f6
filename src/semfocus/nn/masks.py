"""PyTorch's masks in ours: there a boolean True means "may not attend", here it means "may attend"."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..reference import hiding


def visible_keys(attn_mask: Tensor | None, key_padding_mask: Tensor | None, heads: int) -> Tensor | None:
    """One mask, broadcastable to (b, h, t, s): boolean (True = may attend), or float to be added to the scores.

    Takes ``attn_mask`` (t, s) or (b h, t, s) and ``key_padding_mask`` (b, s), each boolean or float. Large negative
    numbers hide as -inf does: to a pattern that chooses, a key that is only pushed down would be one to choose.

    >>> visible_keys(None, torch.tensor([[False, True]]), heads=1).tolist()
    [[[[True, False]]]]
    """
    masks = []
    if attn_mask is not None:
        rows = attn_mask[None, None] if attn_mask.ndim == 2 else attn_mask.unflatten(0, (-1, heads))  # type: ignore[no-untyped-call]
        masks.append(rows)
    if key_padding_mask is not None:
        masks.append(key_padding_mask[:, None, None])  # (b, 1, 1, s)
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        hidden = masks[0] | masks[-1]
        return ~hidden
    added = [_added(mask) for mask in masks]
    return added[0] if len(added) == 1 else added[0] + added[1]


def _added(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return hiding(mask)
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, -torch.inf)


def with_extra_keys(mask: Tensor | None, extra: int) -> Tensor | None:
    """The mask after ``extra`` keys that everybody sees were put behind the others."""
    if mask is None or not extra:
        return mask
    return F.pad(mask, (0, extra), value=mask.dtype == torch.bool)


def check_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, batch: int | None, heads: int, t: int, s: int
) -> None:
    """Refuses masks of the wrong type or shape. ``batch`` is None for inputs without a batch axis."""
    padding = (s,) if batch is None else (batch, s)
    per_head = (heads if batch is None else batch * heads, t, s)
    for name, mask, shapes in (
        ("attn_mask", attn_mask, [(t, s), per_head]),
        ("key_padding_mask", key_padding_mask, [padding]),
    ):
        if mask is None:
            continue
        if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
            kind = mask.dtype if isinstance(mask, Tensor) else repr(mask)
            raise ValueError(f"{name} is {kind}; it must be a boolean tensor (True = may not attend) or a float one")
        if tuple(mask.shape) not in shapes:
            wanted = " or ".join(map(str, shapes))
            raise ValueError(f"{name} has shape {tuple(mask.shape)}; it must be {wanted}")
