"""Modular arithmetic with brackets: deterministic context-free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks._bracket_expressions import CHARACTERS, MINUS, MODULUS, PLUS, TIMES, evaluate, sample_expressions
from semfocus.tasks.base import IntArray, Task


@dataclass(frozen=True, kw_only=True)
class ModularArithmeticBrackets(Task):
    """What is a nested expression modulo five?

    Tokens are the digits 0 to 4, 5 for ``+``, 6 for ``-``, 7 for ``*``, 8 for ``(`` and 9 for ``)``; id 10 is reserved
    and never occurs. Expressions of one to four tokens are ``d``, ``-d``, ``(d)`` and ``(-d)``; longer ones are
    ``(left operator right)``, the size of the left operand and the operator being uniform. Every operator has its own
    brackets, so there is no precedence. ``multiplication=False`` leaves out ``*``, and with it the
    tilt towards class 0.

    (2 - -1) is 3:

    >>> ModularArithmeticBrackets().solve([8, 2, 6, 6, 1, 9])
    [3]
    """

    multiplication: bool = True

    vocabulary = 11
    num_classes = MODULUS

    def __post_init__(self) -> None:
        if not isinstance(self.multiplication, bool):
            raise ValueError(f"multiplication is {self.multiplication!r}; it must be True or False")

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        operators = (PLUS, MINUS, TIMES) if self.multiplication else (PLUS, MINUS)
        return sample_expressions(rng, n, length, operators)

    def _solve(self, tokens: list[int]) -> list[int]:
        if not self.multiplication and TIMES in tokens:
            raise ValueError(f"tokens[{tokens.index(TIMES)}] is {TIMES} (*); this task is without multiplication")
        return [evaluate("".join((CHARACTERS + "x")[token] for token in tokens))]
