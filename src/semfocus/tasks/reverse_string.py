"""Reverse string: deterministic context-free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks.base import IntArray, Task


@dataclass(frozen=True)
class ReverseString(Task):
    """A bit string, written backwards.

    Tokens are fair bits; there are as many targets as tokens.

    >>> ReverseString().solve([1, 0, 0, 0])
    [0, 0, 0, 1]
    """

    vocabulary = 2
    num_classes = 2

    def output_length(self, length: int) -> int:
        return length

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        bits = rng.integers(0, 2, (n, length))
        return bits, bits[:, ::-1]

    def _solve(self, tokens: list[int]) -> list[int]:
        remaining = list(tokens)
        return [remaining.pop() for _ in tokens]
