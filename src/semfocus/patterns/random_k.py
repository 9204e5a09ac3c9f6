from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..randomness import absorb, spread
from ._budgeted import Budgeted
from .base import View, query_places


@dataclass(frozen=True)
class RandomK(Budgeted):
    """k keys drawn anew each time, without replacement: a control for top-k."""

    input_dependent = False
    random = True

    def priority(self, view: View) -> Tensor:
        key = view.visible.cumsum(-1) - 1  # the rank of each
        query = query_places(view.visible, view.positions)
        rows = absorb(spread(view.noise.fresh, view.lead)[..., None, None], query)  # (..., t, 1)
        return absorb(rows, key)  # (..., t, s)
