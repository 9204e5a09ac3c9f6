"""What the patterns that keep exactly k keys share; most differ only in what they rank the keys by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from .base import Pattern, View, keep_best, require_int


@dataclass(frozen=True)
class Counted(Pattern, ABC):
    """A pattern whose budget is its knob k."""

    k: int

    def __post_init__(self) -> None:
        require_int(self, "k", 1)

    @property
    def budget(self) -> int:
        return self.k

    @abstractmethod
    def select(self, view: View) -> Tensor:
        """As in ``Pattern``."""


@dataclass(frozen=True)
class Budgeted(Counted):
    """The k visible keys of highest ``priority``; ties keep the lowest index."""

    def select(self, view: View) -> Tensor:
        if self.k >= view.k.shape[-2]:
            return view.visible
        return keep_best(self.priority(view), view.visible, self.k)

    @abstractmethod
    def priority(self, view: View) -> Tensor:
        """(..., t, s): the larger, the sooner kept. Values at invisible keys do not matter."""
