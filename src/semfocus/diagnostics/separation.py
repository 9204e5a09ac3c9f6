from __future__ import annotations

import torch
from torch import Tensor

from .base import PerQuery, Rows


class Separation(PerQuery):
    """Semantic separation of a query: the smallest kept score minus the largest dropped one.

    Delta_i = min_{j in S_i} z_ij - max_{j visible, not in S_i} z_ij

    Infinite where nothing is dropped, 0 at a tie, negative where a pattern keeps worse keys than it drops.
    """

    def values(self, rows: Rows) -> Tensor:
        dropped = rows.visible & ~rows.kept
        worst_kept = rows.scores.masked_fill(~rows.kept, torch.inf).amin(-1)
        return worst_kept - rows.scores.masked_fill(~dropped, -torch.inf).amax(-1)
