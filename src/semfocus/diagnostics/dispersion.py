from __future__ import annotations

import torch
from torch import Tensor

from .base import PerQuery, Rows


class Dispersion(PerQuery):
    """Semantic dispersion of a query: the largest kept score minus the smallest.

    delta_i = max_{j in S_i} z_ij - min_{j in S_i} z_ij

    Zero where all kept scores are equal. The kept set S_i is everything visible under full attention (delta_s), the k
    best keys under top-k (delta_h), a window under a fixed pattern (delta_r).
    """

    def values(self, rows: Rows) -> Tensor:
        top = rows.scores.masked_fill(~rows.kept, -torch.inf).amax(-1)
        return top - rows.scores.masked_fill(~rows.kept, torch.inf).amin(-1)
