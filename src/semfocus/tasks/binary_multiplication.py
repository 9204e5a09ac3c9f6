"""Binary multiplication: context-sensitive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from semfocus.tasks._binary_numbers import OPERATOR, carry, draw_operands, split_operands, to_bits
from semfocus.tasks._terminator import terminate, terminated, up_to_terminator
from semfocus.tasks.base import IntArray, Task


@dataclass(frozen=True)
class BinaryMultiplication(Task):
    """The product of two binary numbers.

    Tokens are the bits of a number, the times sign 2, and the bits of another; bits come least significant first. The
    place of the sign is uniform, and each number is uniform on 1 .. 2^m - 1 for its m bits. Targets are the bits of
    the product without needless zeros, the terminator 2, and zeros up to the number of tokens.

    2 * 3 = 6, which is 011:

    >>> BinaryMultiplication().solve([0, 1, 2, 1, 1])
    [0, 1, 1, 2, 0]
    """

    vocabulary = 3
    num_classes = 3
    minimum_length = 3

    def output_length(self, length: int) -> int:
        return length

    def answer_mask(self, targets: torch.Tensor) -> torch.Tensor:
        return up_to_terminator(targets)

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        tokens, a, b = draw_operands(rng, n, length)
        columns = np.zeros_like(tokens)
        for shift in range(length):
            columns[:, shift:] += a[:, shift, None] * b[:, : length - shift]
        bits, size = carry(columns)
        return tokens, terminate(bits, size, self.output_length(length))

    def _solve(self, tokens: list[int]) -> list[int]:
        if len(tokens) < self.minimum_length and OPERATOR not in tokens:
            # Too short for two numbers: the benchmark fills the row with what fits before the terminator.
            return terminated([0] * (len(tokens) - 1), self.output_length(len(tokens)))
        a, b = split_operands(tokens)
        return terminated(to_bits(a * b), self.output_length(len(tokens)))
