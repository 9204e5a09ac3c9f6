"""Solve equation: deterministic context-free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks._bracket_expressions import CHARACTERS, MINUS, MODULUS, PLUS, evaluate, sample_expressions
from semfocus.tasks.base import IntArray, Task

EQUATION_CHARACTERS = "01234+-()x="
UNKNOWN, EQUALS = 9, 10
# Expressions are drawn with the ids of the bracket task, which has a sign more.
EQUATION_ID = np.array([EQUATION_CHARACTERS.find(character) for character in CHARACTERS])


@dataclass(frozen=True)
class SolveEquation(Task):
    """Which digit solves an equation modulo five?

    Tokens are the digits 0 to 4, 5 for ``+``, 6 for ``-``, 7 for ``(``, 8 for ``)``, 9 for ``x`` and 10 for ``=``: not
    the ids of the bracket task. The left side is a bracket expression without products in which one digit has become
    x; then come ``=`` and the value as one digit. The digit is the first one at or after a uniform position, going
    round, so one that follows many brackets and signs is hidden more often. As x counts once, plus or minus, the
    solution is unique.

    (1 - x) = 3 has the solution 3, since -2 is 3 modulo 5:

    >>> SolveEquation().solve([7, 1, 6, 9, 8, 10, 3])
    [3]
    """

    vocabulary = 11
    num_classes = MODULUS
    minimum_length = 3

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        size, rows = length - 2, np.arange(n)
        drawn, value = sample_expressions(rng, n, size, (PLUS, MINUS))
        around = (rng.integers(0, size, (n, 1)) + np.arange(size)) % size
        first_digit = (np.take_along_axis(drawn, around, axis=1) < MODULUS).argmax(axis=1)
        place = around[rows, first_digit]
        solution = drawn[rows, place]
        left = EQUATION_ID[drawn]
        left[rows, place] = UNKNOWN
        return np.column_stack([left, np.full(n, EQUALS), value]), solution

    def _solve(self, tokens: list[int]) -> list[int]:
        if tokens in ([0], [0, 0]):  # Too short for an equation: all that the benchmark has at these lengths.
            return [0]
        text = "".join(EQUATION_CHARACTERS[token] for token in tokens)
        left, equals, right = text.partition("=")
        if not equals or left.count("x") != 1 or right not in tuple("01234"):
            raise ValueError(f"{text!r} is no equation: an expression with one x, an =, and a digit")
        solutions = [x for x in range(MODULUS) if evaluate(left.replace("x", str(x))) == int(right)]
        assert len(solutions) == 1, "x has the coefficient 1 or -1"
        return solutions
