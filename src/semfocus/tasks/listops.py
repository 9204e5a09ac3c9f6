"""ListOps: nested operations on lists of digits, as in the Long Range Arena."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from semfocus.tasks._listops_lengths import FEWEST_ARGUMENTS, LengthTables, length_tables
from semfocus.tasks._listops_trees import CLOSE, DIGITS, MAX, MED, MIN, PAD, SM, sample_trees
from semfocus.tasks.base import FloatArray, IntArray, Task, Tokens, listed, whole_number

IDS = {**{str(digit): digit for digit in range(DIGITS)}, "[MIN": MIN, "[MAX": MAX, "[MED": MED, "[SM": SM, "]": CLOSE}
# Trees grown together; more at once only takes more memory.
BATCH = 1024


@dataclass(frozen=True, kw_only=True)
class ListOps(Task):
    """What is the value of a nested list operation?

    Tokens are the digits 0 to 9, 10 for ``[MIN``, 11 for ``[MAX``, 12 for ``[MED`` (the median, rounded down), 13 for
    ``[SM`` (the sum modulo ten) and 14 for the closing ``]``; 15 is padding. Trees follow the generator of the
    benchmark: a node is an operator with probability 1/4, above ``max_depth`` only, with 2 to ``max_args`` arguments,
    and only trees of more than ``min_length`` and fewer than ``max_length`` tokens count. Those are drawn directly,
    each with the probability it has among them, so none is thrown away. ``length`` in ``sample`` is the width that
    rows are padded to on the right, at least ``max_length - 1``.

    The median of 1 and 4 is 2.5, rounded down to 2, and the greater of 2 and 0 is 2:

    >>> task = ListOps()
    >>> task.solve(task.encode("[MAX [MED 1 4 ] 0 ]"))
    [2]
    """

    min_length: int = 500
    max_length: int = 600
    max_depth: int = 10
    max_args: int = 10

    name = "listops"
    vocabulary = PAD
    num_classes = DIGITS

    def __post_init__(self) -> None:
        least = {"min_length": 0, "max_length": 2, "max_depth": 1, "max_args": FEWEST_ARGUMENTS}
        for option, minimum in least.items():
            whole_number(option, getattr(self, option), minimum, self.name)
        if not self._length_weights().any():
            raise ValueError(
                f"min_length is {self.min_length} and max_length is {self.max_length}; no tree with max_depth "
                f"{self.max_depth} and max_args {self.max_args} has a length strictly between them"
            )

    @property
    def minimum_length(self) -> int:
        return self.max_length - 1

    @staticmethod
    def encode(source: str) -> list[int]:
        """Ids of an expression as text. Round brackets, which the benchmark's files have and do not need, are skipped.

        >>> ListOps.encode("( ( ( [SM 7 ) 5 ) ] )")
        [13, 7, 5, 14]
        """
        if not isinstance(source, str):
            raise ValueError(f"source is {source!r}; it must be text such as '[MAX 1 2 ]'")
        words = [word for word in source.split() if word not in ("(", ")")]
        for word in words:
            if word not in IDS:
                raise ValueError(f"source contains {word!r}; the tokens of listops are {' '.join(IDS)}")
        return [IDS[word] for word in words]

    def solve(self, tokens: Tokens) -> list[int]:
        """The value of one expression; padding at its end is ignored."""
        ids = listed(tokens)
        while ids and ids[-1] == PAD:
            ids.pop()
        return super().solve(ids)

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        tables, weights = self._tables(), self._length_weights()
        tokens, targets = np.empty((n, length), dtype=np.int64), np.empty(n, dtype=np.int64)
        for first in range(0, n, BATCH):
            rows = slice(first, min(first + BATCH, n))
            tokens[rows], targets[rows] = sample_trees(rng, rows.stop - first, length, weights, tables)
        return tokens, targets

    def _solve(self, tokens: list[int]) -> list[int]:
        open_lists: list[list[int]] = [[]]
        signs: list[int] = []
        for position, token in enumerate(tokens):
            if token < DIGITS:
                open_lists[-1].append(token)
            elif token != CLOSE:
                signs.append(token)
                open_lists.append([])
            elif not signs or not open_lists[-1]:
                raise ValueError(f"tokens[{position}] closes {'an empty list' if signs else 'a list never opened'}")
            else:
                value = _apply(signs.pop(), open_lists.pop())
                open_lists[-1].append(value)
        if signs or len(open_lists[0]) != 1:
            raise ValueError(f"tokens leaves {len(signs)} lists open and {len(open_lists[0])} values, not 0 and 1")
        return open_lists[0]

    def _tables(self) -> LengthTables:
        return length_tables(self.max_length, self.max_depth, self.max_args)

    def _length_weights(self) -> FloatArray:
        """Probabilities of the lengths that are allowed, zero for the others."""
        weights = self._tables().root.copy()
        weights[: self.min_length + 1] = 0
        return weights


def _apply(sign: int, arguments: list[int]) -> int:
    if sign == MED:
        return int(median(arguments))
    return {MIN: min(arguments), MAX: max(arguments), SM: sum(arguments) % DIGITS}[sign]
