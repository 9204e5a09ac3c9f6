"""Modular arithmetic without brackets: a regular language."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks.base import IntArray, Task

MODULUS = 5
PLUS, MINUS, TIMES = 5, 6, 7


@dataclass(frozen=True)
class ModularArithmetic(Task):
    """What is a sum of products modulo five?

    Tokens are the digits 0 to 4, 5 for ``+``, 6 for ``-`` and 7 for ``*``; id 8 is a blank that never occurs. Digits
    and operators alternate, all equally likely, and ``*`` binds tighter. Such an expression has an odd number of
    tokens: an even length gives one token fewer.

    3 - 2 * 4 is -5, which is 0 modulo 5:

    >>> ModularArithmetic().solve([3, 6, 2, 7, 4])
    [0]
    """

    vocabulary = 9
    num_classes = MODULUS

    def input_length(self, length: int) -> int:
        return length if length % 2 == 1 else length - 1

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        tokens = rng.integers(0, MODULUS, (n, self.input_length(length)))
        operators = rng.integers(PLUS, TIMES + 1, tokens[:, 1::2].shape)
        tokens[:, 1::2] = operators
        # From right to left: the expression read so far is `term` (still open to factors on its left) plus `rest`.
        term, rest = tokens[:, -1], np.zeros(n, dtype=np.int64)
        for digit, op in zip(tokens.T[-3::-2], operators.T[::-1], strict=True):
            rest = (rest + np.select([op == PLUS, op == MINUS], [term, -term], 0)) % MODULUS
            term = np.where(op == TIMES, digit * term, digit) % MODULUS
        return tokens, (term + rest) % MODULUS

    def _solve(self, tokens: list[int]) -> list[int]:
        for position, token in enumerate(tokens):
            if (token < MODULUS) != (position % 2 == 0) or token > TIMES:
                raise ValueError(f"tokens[{position}] is {token}; digits (0..4) and operators (5..7) must alternate")
        if len(tokens) % 2 == 0:
            raise ValueError(f"tokens ends with the operator {tokens[-1]}; a digit must follow it")
        terms = [tokens[0]]
        for op, digit in zip(tokens[1::2], tokens[2::2], strict=True):
            if op == TIMES:
                terms[-1] *= digit
            else:
                terms.append(digit if op == PLUS else -digit)
        return [sum(terms) % MODULUS]
