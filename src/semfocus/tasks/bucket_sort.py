"""Bucket sort: context-sensitive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks.base import IntArray, Task

SYMBOLS = 5


@dataclass(frozen=True)
class BucketSort(Task):
    """The tokens in ascending order.

    Tokens are 0 to 4, each equally likely; there are as many targets as tokens.

    >>> BucketSort().solve([4, 2, 0, 2])
    [0, 2, 2, 4]
    """

    vocabulary = SYMBOLS
    num_classes = SYMBOLS

    def output_length(self, length: int) -> int:
        return length

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        symbols = rng.integers(0, SYMBOLS, (n, length))
        return symbols, np.sort(symbols, axis=1)

    def _solve(self, tokens: list[int]) -> list[int]:
        return [symbol for symbol in range(SYMBOLS) for token in tokens if token == symbol]
