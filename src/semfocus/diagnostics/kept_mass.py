from __future__ import annotations

from torch import Tensor

from .base import PerQuery, Rows


class KeptMass(PerQuery):
    """Share of full attention's weight that the kept keys hold.

    m_i = sum_{j in S_i} softmax_{visible}(z_i)_j

    Near 1 the pattern changes little; k/n where the weights are equal.
    """

    def values(self, rows: Rows) -> Tensor:
        return rows.full_weights.masked_fill(~rows.kept, 0.0).sum(-1)
