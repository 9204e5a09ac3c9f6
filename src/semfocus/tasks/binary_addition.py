"""Binary addition: context-sensitive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from semfocus.tasks._binary_numbers import OPERATOR, carry, draw_operands, from_bits, split_operands, to_bits
from semfocus.tasks._terminator import terminate, terminated, up_to_terminator
from semfocus.tasks.base import IntArray, Task


@dataclass(frozen=True)
class BinaryAddition(Task):
    """The sum of two binary numbers.

    Tokens are the bits of a number, the plus sign 2, and the bits of another; bits come least significant first. The
    place of the sign is uniform, and each number is uniform on 1 .. 2^m - 1 for its m bits. Targets are the bits of
    the sum without needless zeros, the terminator 2, and zeros up to one more than the number of tokens.

    1 + 3 = 4, which is 001:

    >>> BinaryAddition().solve([1, 0, 2, 1, 1])
    [0, 0, 1, 2, 0, 0]
    """

    vocabulary = 3
    num_classes = 3
    minimum_length = 3

    def output_length(self, length: int) -> int:
        return length + 1

    def answer_mask(self, targets: torch.Tensor) -> torch.Tensor:
        return up_to_terminator(targets)

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        tokens, a, b = draw_operands(rng, n, length)
        bits, size = carry(a + b)
        return tokens, terminate(bits, size, self.output_length(length))

    def _solve(self, tokens: list[int]) -> list[int]:
        # Rows too short for two numbers hold a single one, which is the answer.
        lone = len(tokens) < self.minimum_length and OPERATOR not in tokens
        total = from_bits(tokens) if lone else sum(split_operands(tokens))
        return terminated(to_bits(total), self.output_length(len(tokens)))
