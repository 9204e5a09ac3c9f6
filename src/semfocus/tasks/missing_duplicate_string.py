"""Missing duplicate: context-sensitive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks.base import IntArray, Task

HIDDEN, BLANK = 2, 3


@dataclass(frozen=True)
class MissingDuplicateString(Task):
    """Which bit of a string written twice is hidden?

    Tokens are a string of fair bits and the same string again, with 2 in the place of one bit, all places being
    equally likely. A row of odd length ends with the blank 3. The class is the hidden bit: its twin half a row away
    or, as the ones of a doubled string are even in number, the parity of the visible ones.

    The second bit of 10 is missing from the first copy:

    >>> MissingDuplicateString().solve([1, 2, 1, 0])
    [0]
    """

    vocabulary = 4
    num_classes = 2
    minimum_length = 2

    def must_meet(self, length: int) -> list[tuple[int, int]]:
        half = length // 2
        return [(place, place + half) for place in range(half)]

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        half, rows = length // 2, np.arange(n)
        tokens = np.full((n, length), BLANK)
        tokens[:, : 2 * half] = np.tile(rng.integers(0, 2, (n, half)), (1, 2))
        place = rng.integers(0, 2 * half, n)
        targets = tokens[rows, place]
        tokens[rows, place] = HIDDEN
        return tokens, targets

    def _solve(self, tokens: list[int]) -> list[int]:
        if tokens == [1]:  # The benchmark's only row of length 1.
            return [1]
        half = len(tokens) // 2
        first, second, tail = tokens[:half], tokens[half : 2 * half], tokens[2 * half :]
        if tokens.count(HIDDEN) != 1 or tokens.count(BLANK) != len(tail) or tail not in ([], [BLANK]):
            raise ValueError(f"tokens is {tokens}; it needs one {HIDDEN} and, at odd lengths, a {BLANK} at its end")
        answer = -1
        for pair in zip(first, second, strict=True):
            if HIDDEN in pair:
                answer = min(pair)  # The other one: a bit is less than the placeholder.
            elif pair[0] != pair[1]:
                raise ValueError(f"tokens is {tokens}; its two halves must be the same string")
        return [answer]
