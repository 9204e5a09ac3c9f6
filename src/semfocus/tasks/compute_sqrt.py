"""Square root: context-sensitive."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from semfocus.tasks._binary_numbers import draw_nonzero, from_bits
from semfocus.tasks.base import IntArray, Task

# Numbers of more bits than this do not fit a signed 64-bit integer with room to spare, and are held as Python ints.
MACHINE_BITS = 62


@dataclass(frozen=True)
class ComputeSqrt(Task):
    """The whole part of the square root of a binary number.

    Tokens are the bits of a number, most significant first; with m bits it is uniform on 1 .. 2^m - 1. Targets are the
    bits of its root rounded down, most significant first, in half as many places (rounded up).

    The root of 12 is 3 and a bit:

    >>> ComputeSqrt().solve([1, 1, 0, 0])
    [1, 1]
    """

    vocabulary = 2
    num_classes = 2

    def output_length(self, length: int) -> int:
        return (length + 1) // 2

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        tokens = draw_nonzero(rng, np.ones((n, length), dtype=bool))
        number = np.zeros(n, dtype=np.int64 if length <= MACHINE_BITS else object)
        for bit in tokens.T:
            number = 2 * number + bit
        # Bit by bit from the top: a bit belongs to the root if the square stays within the number.
        root = np.zeros_like(number)
        targets = np.zeros((n, self.output_length(length)), dtype=np.int64)
        for column, place in enumerate(reversed(range(targets.shape[1]))):
            larger = root + (1 << place)
            fits = (larger * larger <= number).astype(bool)
            root = np.where(fits, larger, root)
            targets[:, column] = fits
        return tokens, targets

    def _solve(self, tokens: list[int]) -> list[int]:
        root = math.isqrt(from_bits(tokens[::-1]))
        return [int(bit) for bit in f"{root:0{self.output_length(len(tokens))}b}"]
