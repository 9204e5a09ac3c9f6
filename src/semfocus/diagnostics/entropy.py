from __future__ import annotations

import torch
from torch import Tensor

from .base import PerQuery, Rows


class Entropy(PerQuery):
    """Entropy of a query's attention weights in nats.

    H_i = - sum_j a_ij ln a_ij

    From 0 (all weight on one key) to ln n (equal weights on n keys).
    """

    def values(self, rows: Rows) -> Tensor:
        entropy: Tensor = torch.special.entr(rows.weights).sum(-1)
        return entropy
