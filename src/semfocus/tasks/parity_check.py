"""Parity: a regular language in which every token matters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks.base import IntArray, Task


@dataclass(frozen=True)
class ParityCheck(Task):
    """Is the number of ones odd?

    Tokens are fair bits; the class is 0 for an even number of ones and 1 for an odd one. No proper subset of the tokens
    says anything about the answer.

    >>> ParityCheck().solve([1, 0, 1, 1])
    [1]
    """

    vocabulary = 2
    num_classes = 2

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        bits = rng.integers(0, 2, (n, length))
        return bits, bits.sum(axis=1) % 2

    def _solve(self, tokens: list[int]) -> list[int]:
        odd = False
        for bit in tokens:
            odd = not odd if bit == 1 else odd
        return [int(odd)]
