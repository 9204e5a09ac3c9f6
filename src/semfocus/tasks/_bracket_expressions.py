"""Fully bracketed expressions over the digits modulo five: drawing them by the thousand, and evaluating one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semfocus.tasks.base import BoolArray, IntArray

MODULUS = 5
# The character of each id that expressions are drawn in.
CHARACTERS = "01234+-*()"
PLUS, MINUS, TIMES, OPEN, CLOSE = range(5, 10)
# Expressions up to this size hold one digit: d, -d, (d) and (-d).
LARGEST_LEAF = 4
# An operator and the brackets around its two operands.
FRAME = 3


@dataclass(frozen=True)
class _Level:
    """Expressions at one depth of nesting: in which row, from which column, of which size. All arrays are parallel."""

    row: IntArray
    start: IntArray
    size: IntArray

    def split(self, left: IntArray) -> _Level:
        """The operands of expressions with a binary operator, all left ones before all right ones."""
        right = self.size - FRAME - left
        return _Level(
            row=np.tile(self.row, 2),
            start=np.concatenate([self.start + 1, self.start + 2 + left]),
            size=np.concatenate([left, right]),
        )

    def where(self, chosen: BoolArray) -> _Level:
        return _Level(self.row[chosen], self.start[chosen], self.size[chosen])


def sample_expressions(
    rng: np.random.Generator, n: int, length: int, operators: Sequence[int]
) -> tuple[IntArray, IntArray]:
    """Rows of exactly ``length`` tokens and their values.

    An expression of up to four tokens holds one digit. A longer one is ``(left operator right)`` with the size of its
    left operand uniform over what leaves room for the right one. All rows are built together, one depth of nesting at
    a time.
    """
    # Digits everywhere, then the other characters over them: what remains visible is still uniform.
    tokens = rng.integers(0, MODULUS, (n, length))
    level = _Level(np.arange(n), np.zeros(n, dtype=np.int64), np.full(n, length))
    levels, signs = [], []
    while len(level.row):
        _write_brackets(tokens, level)
        branches = level.where(level.size > LARGEST_LEAF)
        left = rng.integers(1, branches.size - FRAME)
        sign = rng.choice(np.asarray(operators, dtype=np.int64), len(left))
        tokens[branches.row, branches.start + 1 + left] = sign
        levels.append(level)
        signs.append(sign)
        level = branches.split(left)
    values = np.zeros(0, dtype=np.int64)
    for level, sign in zip(reversed(levels), reversed(signs), strict=True):
        values = _values(tokens, level, sign, operands=values)
    return tokens, values


def _write_brackets(tokens: IntArray, level: _Level) -> None:
    """Brackets around all that have room for them, and the minus of ``-d`` and ``(-d)``."""
    bracketed = level.where(level.size >= FRAME)
    tokens[bracketed.row, bracketed.start] = OPEN
    tokens[bracketed.row, bracketed.start + bracketed.size - 1] = CLOSE
    negative = level.where(_is_negative(level.size))
    tokens[negative.row, negative.start + (negative.size == LARGEST_LEAF)] = MINUS


def _is_negative(size: IntArray) -> BoolArray:
    return np.isin(size, (2, LARGEST_LEAF))


def _values(tokens: IntArray, level: _Level, sign: IntArray, operands: IntArray) -> IntArray:
    leaves = level.size <= LARGEST_LEAF
    values = np.empty_like(level.size)
    # d, -d, (d), (-d): the digit is the middle one, the later of two.
    leaf = level.where(leaves)
    digit = tokens[leaf.row, leaf.start + leaf.size // 2]
    values[leaves] = np.where(_is_negative(leaf.size), -digit, digit) % MODULUS
    left, right = operands[: len(sign)], operands[len(sign) :]
    values[~leaves] = np.select([sign == PLUS, sign == MINUS], [left + right, left - right], left * right) % MODULUS
    return values


def evaluate(text: str) -> int:
    """The value, modulo five, of an expression in which each pair of brackets holds at most one binary operator.

    >>> evaluate("(3-(-1))")
    4
    """
    groups: list[list[int | str]] = [[]]  # What stands in the brackets open so far, outermost first.
    for position, character in enumerate(text):
        if character == "(":
            groups.append([])
        elif character == ")":
            if len(groups) == 1:
                raise ValueError(f"{text!r} closes a bracket at position {position} that was never opened")
            value = _flat_value(groups.pop(), text)
            groups[-1].append(value)
        else:
            groups[-1].append(int(character) if character.isdigit() else character)
    if len(groups) > 1:
        raise ValueError(f"{text!r} leaves {len(groups) - 1} brackets open")
    return _flat_value(groups[0], text)


def _flat_value(items: list[int | str], text: str) -> int:
    """The value of an operand, or of two with an operator between them."""
    value, rest = _operand(items, text)
    if rest:
        operator = rest[0]
        right, rest = _operand(rest[1:], text)
        if rest or operator not in ("+", "-", "*"):
            raise ValueError(f"{text!r} is no expression: one of +, -, * between two operands in brackets")
        value = {"+": value + right, "-": value - right, "*": value * right}[operator]
    return value % MODULUS


def _operand(items: list[int | str], text: str) -> tuple[int, list[int | str]]:
    """The first operand, with its sign if it has one, and what follows it."""
    negative = items[:1] == ["-"]
    items = items[1:] if negative else items
    if not items or not isinstance(items[0], int):
        raise ValueError(f"{text!r} is no expression: an operand is missing")
    return (-items[0] if negative else items[0]), items[1:]
