from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ._budgeted import Budgeted
from .base import Pattern, View, require_int


@dataclass(frozen=True)
class TopK(Budgeted):
    """The k keys of largest score, chosen per query and head.

    ``sinks`` of them, within k, are always the first visible keys.
    """

    input_dependent = True

    sinks: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self, "sinks", 0)
        if self.sinks > self.k:
            raise ValueError(f"sinks is {self.sinks}; it must be at most k, which is {self.k}")

    @classmethod
    def examples(cls) -> list[Pattern]:
        return [cls(1), cls(3), cls(64), cls(3, sinks=2)]

    def priority(self, view: View) -> Tensor:
        if not self.sinks:
            return view.scores
        is_sink = view.visible & (view.visible.cumsum(-1) <= self.sinks)
        return view.scores.masked_fill(is_sink, torch.inf)
