from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ._windows import Window


@dataclass(frozen=True)
class BlockLocal(Window):
    """The keys of the block of ``width`` consecutive positions that holds the query.

    In ranks among the visible keys: rank // width equals the query's. The last block may be shorter.
    """

    fills_budget = False

    def bounds(self, query: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        low = query // self.width * self.width
        return low, low + self.width
