"""Answers of varying size in rows of one width: the answer, a terminator, and zeros for the rest."""

from __future__ import annotations

import numpy as np
import torch

from semfocus.tasks.base import IntArray

TERMINATOR = 2


def terminate(values: IntArray, sizes: IntArray, width: int) -> IntArray:
    """Keeps the first ``sizes[i]`` entries of row i, puts the terminator behind them and zeros up to ``width``."""
    rows, columns = values.shape
    targets = np.zeros((rows, width), dtype=np.int64)
    targets[:, :columns] = np.where(np.arange(columns) < sizes[:, None], values, 0)
    targets[np.arange(rows), sizes] = TERMINATOR
    return targets


def terminated(answer: list[int], width: int) -> list[int]:
    """The same for one row in plain Python."""
    return [*answer, TERMINATOR] + [0] * (width - len(answer) - 1)


def up_to_terminator(targets: torch.Tensor) -> torch.Tensor:
    """True up to and including the terminator, the part of a row that counts."""
    ended = (targets == TERMINATOR).cumsum(dim=-1)
    return (ended == 0) | (targets == TERMINATOR)
