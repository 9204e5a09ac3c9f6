"""Duplicate string: context-sensitive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks.base import IntArray, Task


@dataclass(frozen=True)
class DuplicateString(Task):
    """A bit string, written twice.

    Tokens are fair bits; there are twice as many targets as tokens.

    >>> DuplicateString().solve([1, 0, 0])
    [1, 0, 0, 1, 0, 0]
    """

    vocabulary = 2
    num_classes = 2

    def output_length(self, length: int) -> int:
        return 2 * length

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        bits = rng.integers(0, 2, (n, length))
        return bits, np.tile(bits, (1, 2))

    def _solve(self, tokens: list[int]) -> list[int]:
        return [*tokens, *tokens]
