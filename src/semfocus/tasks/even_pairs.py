"""Even pairs: a regular language that looks global but depends on the two ends alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from semfocus.tasks.base import IntArray, Task


@dataclass(frozen=True)
class EvenPairs(Task):
    """Do neighbouring tokens differ an odd number of times?

    Tokens are fair bits; the class is the number of neighbours 01 and 10, modulo 2. As every change of bit is undone
    by the next one, the class is also whether the first and the last token differ.

    Neighbours differ at 01 and at 10, twice, which is even:

    >>> EvenPairs().solve([0, 1, 1, 0])
    [0]
    """

    vocabulary = 2
    num_classes = 2

    def must_meet(self, length: int) -> list[tuple[int, int]]:
        return [(0, length - 1)]

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        bits = rng.integers(0, 2, (n, length))
        return bits, bits[:, 0] ^ bits[:, -1]

    def _solve(self, tokens: list[int]) -> list[int]:
        unequal = [pair for pair in pairwise(tokens) if pair[0] != pair[1]]
        return [len(unequal) % 2]
