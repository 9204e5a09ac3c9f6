from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ._budgeted import Counted
from .base import View, ranks


@dataclass(frozen=True)
class Strided(Counted):
    """k keys at even distances, beginning with the query itself: a control for top-k.

    With rank r of the query and n visible keys it keeps the ranks (r + floor(j n / k)) mod n, j = 0 .. k - 1.
    """

    input_dependent = False

    def select(self, view: View) -> Tensor:
        key, query, count = ranks(view.visible, view.positions)
        count = count.clamp(min=1)
        steps = count.clamp(max=self.k)
        distance = (key - query) % count
        # The only j that can give this distance: the smallest with j n >= distance k.
        j = (distance * steps + count - 1) // count
        return view.visible & (j < steps) & (j * count // steps == distance)
