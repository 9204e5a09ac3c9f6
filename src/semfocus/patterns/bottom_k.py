from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ._budgeted import Budgeted
from .base import View


@dataclass(frozen=True)
class BottomK(Budgeted):
    """The k keys of smallest score: a control for top-k."""

    input_dependent = True

    def priority(self, view: View) -> Tensor:
        return -view.scores
