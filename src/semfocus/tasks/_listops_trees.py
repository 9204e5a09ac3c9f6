"""Drawing ListOps trees of a given length, all at once and one depth at a time.

Going down, each operator knows its length and draws, given that, how many arguments it has, which of them are
operators and how long those are. Going up, each level is evaluated from the values of the one below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semfocus.tasks._listops_lengths import FRAME, LengthTables, OperatorTable
from semfocus.tasks.base import BoolArray, FloatArray, IntArray

DIGITS = 10
MIN, MAX, MED, SM, CLOSE, PAD = range(DIGITS, 16)


@dataclass(frozen=True)
class _Level:
    """The operators of one depth. Their arguments lie on an axis of A slots, the first ``arguments`` of them in use."""

    row: IntArray
    sign: IntArray
    arguments: IntArray
    starts: IntArray  # (operators, A): the column where each argument begins.
    nested: BoolArray  # (operators, A): is the argument an operator?


def sample_trees(
    rng: np.random.Generator, n: int, width: int, root: FloatArray, tables: LengthTables
) -> tuple[IntArray, IntArray]:
    """``n`` trees in rows of ``width`` tokens, padded on the right, and their values; ``root`` weighs their lengths."""
    length = _draw(rng, root[None], np.zeros(n, dtype=np.int64))
    # Digits everywhere, then the other tokens over them: what remains visible is still uniform.
    tokens = rng.integers(0, DIGITS, (n, width))
    tokens[np.arange(width) >= length[:, None]] = PAD
    levels = _grow(rng, tokens, length, tables)
    values = np.zeros(0, dtype=np.int64)
    for level in reversed(levels):
        values = _values(tokens, level, values)
    targets = tokens[:, 0].copy()  # Right where the whole tree is a digit.
    if levels:
        targets[levels[0].row] = values
    return tokens, targets


def _grow(rng: np.random.Generator, tokens: IntArray, length: IntArray, tables: LengthTables) -> list[_Level]:
    """Writes the operators and brackets of trees of these lengths, from the roots down."""
    row = np.flatnonzero(length > 1)
    start, size = np.zeros_like(row), length[row]
    levels: list[_Level] = []
    for table in tables.operators:
        if not len(row):
            break
        level, lengths = _grow_level(rng, tokens, table, row, start, size)
        levels.append(level)
        row = np.repeat(level.row, level.nested.sum(axis=1))
        start, size = level.starts[level.nested], lengths[level.nested]
    return levels


def _grow_level(
    rng: np.random.Generator, tokens: IntArray, table: OperatorTable, row: IntArray, start: IntArray, size: IntArray
) -> tuple[_Level, IntArray]:
    """Writes the operators that begin at ``start`` and draws the lengths of their arguments."""
    sizes, group = np.unique(size, return_inverse=True)
    arguments, operators = table.shapes[_draw(rng, table.joint[sizes], group)].T
    slots = int(table.shapes[:, 0].max())
    nested = _subsets(rng, arguments, operators, slots)
    lengths = (np.arange(slots) < arguments[:, None]).astype(np.int64)
    total = size - FRAME - (arguments - operators)
    lengths[nested] = _split(rng, table.sums, operators, total)
    starts = start[:, None] + 1 + np.cumsum(lengths, axis=1) - lengths
    sign = rng.integers(MIN, SM + 1, len(row))
    tokens[row, start] = sign
    tokens[row, start + size - 1] = CLOSE
    return _Level(row, sign, arguments, starts, nested), lengths


def _draw(rng: np.random.Generator, weights: FloatArray, group: IntArray) -> IntArray:
    """For each entry of ``group``, a column of that row of ``weights``, with probability proportional to its weight."""
    cumulative = np.cumsum(weights, axis=1)
    # In (0, total], and the answer is the first column to reach it; so a column without weight is never chosen.
    level = (1 - rng.random(len(group))) * cumulative[group, -1]
    low, high = np.zeros_like(group), np.full_like(group, weights.shape[1] - 1)
    while (low < high).any():
        middle = (low + high) // 2
        reached = cumulative[group, middle] >= level
        low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
    return low


def _subsets(rng: np.random.Generator, members: IntArray, chosen: IntArray, slots: int) -> BoolArray:
    """A uniform choice of ``chosen[i]`` of the first ``members[i]`` slots, for each i."""
    subset = np.zeros((len(members), slots), dtype=bool)
    wanted = chosen.copy()
    for slot in range(slots):
        left = np.maximum(members - slot, 0)
        subset[:, slot] = rng.random(len(members)) * left < wanted
        wanted -= subset[:, slot]
    return subset


def _split(rng: np.random.Generator, sums: FloatArray, parts: IntArray, total: IntArray) -> IntArray:
    """Lengths of ``parts[i]`` operators that make up ``total[i]``, one after the other for all i."""
    most = len(sums) - 1
    lengths = np.zeros((len(parts), most), dtype=np.int64)
    remaining = total.copy()
    for left in range(most, 1, -1):
        several = np.flatnonzero(parts >= left)
        if len(several):
            totals, group = np.unique(remaining[several], return_inverse=True)
            part = _draw(rng, _first_part(sums, left, totals), group)
            lengths[several, parts[several] - left] = part
            remaining[several] -= part
    some = np.flatnonzero(parts)
    lengths[some, parts[some] - 1] = remaining[some]
    return lengths[np.arange(most) < parts[:, None]]


def _first_part(sums: FloatArray, parts: int, totals: IntArray) -> FloatArray:
    """Weights (total, length) of the first of several operators having that length and the others the rest."""
    length = np.arange(totals.max() + 1)
    rest = totals[:, None] - length
    return np.where(rest >= 0, sums[1, length] * sums[parts - 1, rest], 0.0)


def _values(tokens: IntArray, level: _Level, nested: IntArray) -> IntArray:
    """The values of a level's operators, ``nested`` being those of the level below."""
    slots = np.arange(level.nested.shape[1])
    unused = slots >= level.arguments[:, None]
    arguments = tokens[level.row[:, None], np.where(unused, 0, level.starts)]
    arguments[level.nested] = nested
    arguments[unused] = DIGITS  # Sorts behind all values.
    total = np.where(unused, 0, arguments).sum(axis=1)
    arguments.sort(axis=1)
    each = np.arange(len(arguments))
    middle = arguments[each, (level.arguments - 1) // 2] + arguments[each, level.arguments // 2]
    return np.select(
        [level.sign == MIN, level.sign == MAX, level.sign == MED],
        [arguments[:, 0], arguments[each, level.arguments - 1], middle // 2],
        total % DIGITS,
    )
