from __future__ import annotations

import torch
from torch import Tensor

from .base import PerQuery, Rows
from .separation import Separation


class TieRate(PerQuery):
    """Share of queries whose worst kept and best dropped keys have exactly equal scores.

    There the choice rests on the order of the keys alone. The mean is the rate.
    """

    def values(self, rows: Rows) -> Tensor:
        return (Separation().values(rows) == 0).to(torch.float64)
