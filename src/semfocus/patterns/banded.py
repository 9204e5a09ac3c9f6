from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ._windows import Window


@dataclass(frozen=True)
class Banded(Window):
    """The ``width`` keys around the query, the window shifted inwards at both ends.

    With ranks r of the query and n visible keys it keeps the ranks [lo, lo + width),
    lo = clamp(r - (width - 1) // 2, 0, max(n - width, 0)). Under causality: the last ``width`` keys.
    """

    def bounds(self, query: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        last = (count - self.width).clamp(min=0)
        low = (query - (self.width - 1) // 2).clamp(min=0).minimum(last)
        return low, low + self.width
