from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .base import Pattern


@dataclass(frozen=True)
class Full(Pattern):
    """All visible keys: ordinary attention."""

    input_dependent = False

    def keep(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        return visible
