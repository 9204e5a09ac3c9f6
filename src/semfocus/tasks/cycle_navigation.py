"""Cycle navigation: a regular language, counting modulo five."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks.base import IntArray, Task

CYCLE = 5


@dataclass(frozen=True)
class CycleNavigation(Task):
    """Where on a cycle of five does a walk end?

    Tokens are 0 (a step back), 1 (stay) and 2 (a step forward), each equally likely; the walk starts at position 0 and
    the class is the position after the last step.

    Forward to 1, back to 0, back to 4, stay:

    >>> CycleNavigation().solve([2, 0, 0, 1])
    [4]
    """

    vocabulary = 3
    num_classes = CYCLE

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        moves = rng.integers(0, 3, (n, length))
        # An id is its step plus one.
        return moves, (moves.sum(axis=1) - length) % CYCLE

    def _solve(self, tokens: list[int]) -> list[int]:
        position = 0
        for move in tokens:
            if move == 0:
                position = CYCLE - 1 if position == 0 else position - 1
            elif move == 2:
                position = 0 if position == CYCLE - 1 else position + 1
        return [position]
