from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._budgeted import Budgeted
from .base import View


@dataclass(frozen=True)
class SwappedTopK(Budgeted):
    """Top-k by the scores of the next example in the batch: as focused as top-k, on the wrong tokens.

    The batch is the axis before the heads. Keys the other example cannot see rank last. Alone in its batch (or without
    a batch axis) an example swaps with itself, which is top-k.
    """

    input_dependent = True
    batch_dependent = True

    def priority(self, view: View) -> Tensor:
        scores = view.scores.masked_fill(~view.visible, -torch.inf)
        return scores.roll(-1, dims=-4) if scores.ndim >= 4 else scores
