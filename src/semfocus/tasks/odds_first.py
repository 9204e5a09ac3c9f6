"""Odds first: context-sensitive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks.base import IntArray, Task


@dataclass(frozen=True)
class OddsFirst(Task):
    """A bit string, its odd positions first and then its even ones.

    Tokens are fair bits and positions count from 0, so that the second, fourth, ... token come first, as in the code
    of the benchmark (its text has them the other way round).

    >>> OddsFirst().solve([0, 1, 0, 1, 0])
    [1, 1, 0, 0, 0]
    """

    vocabulary = 2
    num_classes = 2

    def output_length(self, length: int) -> int:
        return length

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        bits = rng.integers(0, 2, (n, length))
        return bits, np.concatenate([bits[:, 1::2], bits[:, 0::2]], axis=1)

    def _solve(self, tokens: list[int]) -> list[int]:
        odd = [bit for position, bit in enumerate(tokens) if position % 2 == 1]
        even = [bit for position, bit in enumerate(tokens) if position % 2 == 0]
        return odd + even
