"""What windows and blocks share: a width, and global tokens at the end of the sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .base import Pattern, View, ranks, require_int


@dataclass(frozen=True)
class Window(Pattern, ABC):
    """A pattern over ranks, laid over the positions that are not global."""

    input_dependent = False

    width: int
    global_tokens: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        require_int(self, "width", 1)
        require_int(self, "global_tokens", 0)

    @property
    def budget(self) -> int:
        return self.width + self.global_tokens

    @classmethod
    def examples(cls) -> list[Pattern]:
        return [cls(1), cls(3), cls(4), cls(64), cls(2, global_tokens=1), cls(3, global_tokens=2)]

    def select(self, view: View) -> Tensor:
        keys = torch.arange(view.k.shape[-2], device=view.k.device)
        first_global = view.k.shape[-2] - self.global_tokens
        local = view.visible & (keys < first_global)
        kept = local & self.inside(*ranks(local, view.positions))
        if not self.global_tokens:
            return kept
        is_global = (keys >= first_global) | (view.positions >= first_global)[:, None]  # (t, s)
        return kept | (view.visible & is_global)

    def inside(self, key: Tensor, query: Tensor, count: Tensor) -> Tensor:
        """Is the key of this rank in the window of the query of that rank, with ``count`` keys in the row?"""
        low, high = self.bounds(query, count)
        return (key >= low) & (key < high)

    @abstractmethod
    def bounds(self, query: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """The ranks [low, high) that a query of this rank keeps, with ``count`` keys in the row.

        Both must grow, or stay, with the rank of the query.
        """
