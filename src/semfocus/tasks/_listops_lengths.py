"""How long ListOps trees are: exact probabilities by dynamic programming, from the deepest nodes up.

A node is an operator with probability ``OPERATOR_PROBABILITY`` and else a digit; at the greatest depth it is a digit.
An operator has 2 .. ``max_args`` children, all counts equally likely. Digits have length 1, operators the length of
their children plus 2, for the operator itself and its closing bracket.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import comb

import numpy as np

from semfocus.tasks.base import FloatArray, IntArray

OPERATOR_PROBABILITY = 0.25
FEWEST_ARGUMENTS = 2
# The operator and its closing bracket.
FRAME = 2


@dataclass(frozen=True)
class OperatorTable:
    """The distribution of what is below an operator at one depth. Axes of size M run over lengths 0 .. M - 1.

    ``shapes`` (S, 2) lists the possible pairs of arguments and operators among them. ``joint[l, i]`` is the
    probability that the operator has shape i and length l. ``sums[k, t]`` is the probability that k operators one
    level below have t tokens.
    """

    shapes: IntArray
    joint: FloatArray
    sums: FloatArray


@dataclass(frozen=True)
class LengthTables:
    """``operators[i]`` describes operators at depth i + 1; ``root[l]`` is the probability that a tree has length l."""

    operators: tuple[OperatorTable, ...]
    root: FloatArray


@functools.lru_cache(maxsize=16)
def length_tables(size: int, max_depth: int, max_args: int) -> LengthTables:
    """The tables for lengths below ``size``."""
    operators: list[OperatorTable] = []
    length = np.zeros(size)  # Of an operator at the depth in hand; there is none at the greatest depth.
    for depth in reversed(range(1, max_depth)):
        chance = OPERATOR_PROBABILITY if depth + 1 < max_depth else 0.0
        table = _operator_table(length, chance, max_args)
        operators.append(table)
        length = table.joint.sum(axis=1)
    chance = OPERATOR_PROBABILITY if max_depth > 1 else 0.0
    root = chance * length
    root[1:2] += 1 - chance
    return LengthTables(tuple(reversed(operators)), root)


def _operator_table(below: FloatArray, chance: float, max_args: int) -> OperatorTable:
    """``below`` is the length distribution of operators one level deeper, ``chance`` that a child is one."""
    sums = _sums(below, max_args)
    shapes = [(a, k) for a in range(FEWEST_ARGUMENTS, max_args + 1) for k in range(a + 1)]
    joint = np.zeros((len(below), len(shapes)))
    for i, (arguments, operators) in enumerate(shapes):
        digits = arguments - operators
        weight = comb(arguments, operators) * chance**operators * (1 - chance) ** digits
        offset = FRAME + digits
        joint[offset:, i] = weight * sums[operators, : max(len(below) - offset, 0)]
    return OperatorTable(np.array(shapes), joint / (max_args - FEWEST_ARGUMENTS + 1), sums)


def _sums(distribution: FloatArray, most: int) -> FloatArray:
    """Row k is the distribution of the sum of k independent draws."""
    rows = np.zeros((most + 1, len(distribution)))
    rows[0, 0] = 1
    for k in range(1, most + 1):
        rows[k] = np.convolve(rows[k - 1], distribution)[: len(distribution)]
    return rows
