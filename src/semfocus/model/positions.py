"""Fixed sinusoidal positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._tracing import made_once


@made_once(32)
def sinusoidal(
    length: int, width: int, device: torch.device | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """(length, width): sin(p / 10000^(2i / width)) at column 2i, the cosine at 2i + 1.

    >>> sinusoidal(2, 2).round(decimals=4).tolist()
    [[0.0, 1.0], [0.8415, 0.5403]]

    The table is made once and shared: do not change it in place.
    """
    position = torch.arange(length, dtype=torch.float64, device=device)[:, None]
    even = torch.arange(0, width, 2, dtype=torch.float64, device=device)
    angle = position * torch.exp(-math.log(10000.0) * even / width)  # (length, ceil(width / 2))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :width].to(dtype)
