from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ._budgeted import Budgeted
from .base import View


@dataclass(frozen=True)
class PositionalTopK(Budgeted):
    """Top-k of the batch's mean score: one choice for all examples, so it follows position alone.

    The mean at each query and key runs over the examples that see that key. The batch is the axis before the heads.
    """

    input_dependent = True
    batch_dependent = True

    def priority(self, view: View) -> Tensor:
        if view.scores.ndim < 4:
            return view.scores
        seen = view.visible.expand(view.scores.shape)
        total = view.scores.masked_fill(~seen, 0.0).sum(-4, keepdim=True)
        return total / seen.sum(-4, keepdim=True).clamp(min=1)
