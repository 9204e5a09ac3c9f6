from __future__ import annotations

from torch import Tensor

from .base import PerQuery, Rows


class EffectiveSupport(PerQuery):
    """How many keys a query attends to, counted by weight.

    n_i = 1 / sum_j a_ij^2

    From 1 (all weight on one key) to n (equal weights on n keys).
    """

    def values(self, rows: Rows) -> Tensor:
        return 1.0 / rows.weights.square().sum(-1)
