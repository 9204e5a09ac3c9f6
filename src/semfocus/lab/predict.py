"""Does a number measured early predict a speed-up? Rank correlation, and prediction of tasks that were left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from .stats import ALPHA

#: Fewer points have no rank correlation worth the name.
FEWEST_POINTS = 4
FEWEST_TASKS = 3
RESAMPLES = 2_000


@dataclass(frozen=True)
class Cell:
    """One point: a task, an arm, the candidate's value, and what it is to predict."""

    task: str
    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Score:
    """How well a candidate does."""

    correlation: float  # Spearman's
    interval: tuple[float, float] | None  # by resampling whole tasks; None below FEWEST_TASKS
    relative_error: float | None  # leave-one-task-out, squared error over that of the others' mean; below 1 is useful


def score(cells: Sequence[Cell]) -> Score | None:
    """None where there are too few points, or all are equal.

    >>> points = [Cell(task, "k", x + shift, 2.0 * (x + shift)) for shift, task in enumerate("abc") for x in (0.0, 0.3)]
    >>> found = score(points)
    >>> round(found.correlation, 6), found.relative_error < 1e-20
    (1.0, True)
    """
    correlation = spearman(cells)
    if len(cells) < FEWEST_POINTS or correlation is None:
        return None
    if len({cell.task for cell in cells}) < FEWEST_TASKS:
        return Score(correlation, None, None)
    return Score(correlation, _interval(cells), _relative_error(cells))


def spearman(cells: Sequence[Cell]) -> float | None:
    """Their rank correlation; None where all have equal values on one side."""
    x, y = [cell.x for cell in cells], [cell.y for cell in cells]
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(stats.spearmanr(x, y).statistic)


def _interval(cells: Sequence[Cell]) -> tuple[float, float] | None:
    """Tasks, not points, are the sample: points of one task share its data and its full attention."""
    rng = np.random.default_rng(0)
    by_task: dict[str, list[Cell]] = {}
    for cell in cells:
        by_task.setdefault(cell.task, []).append(cell)
    groups = list(by_task.values())
    drawn = []
    for _ in range(RESAMPLES):
        sample = [cell for i in rng.integers(0, len(groups), len(groups)) for cell in groups[i]]
        found = spearman(sample)
        if found is not None and math.isfinite(found):
            drawn.append(found)
    if len(drawn) < RESAMPLES // 2:
        return None
    low, high = np.quantile(drawn, [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def held_out_errors(cells: Sequence[Cell]) -> dict[str, tuple[float, float]]:
    """Per task the squared error of predicting it from the others: by a line through them, and by their mean."""
    errors = {}
    for task in dict.fromkeys(cell.task for cell in cells):
        rest = [cell for cell in cells if cell.task != task]
        x, y = np.array([cell.x for cell in rest]), np.array([cell.y for cell in rest])
        slope = float(np.polyfit(x, y, 1)[0]) if np.ptp(x) > 0 else 0.0
        left_out = [cell for cell in cells if cell.task == task]
        ours = sum((cell.y - (y.mean() + slope * (cell.x - x.mean()))) ** 2 for cell in left_out)
        errors[task] = (float(ours), float(sum((cell.y - y.mean()) ** 2 for cell in left_out)))
    return errors


def _relative_error(cells: Sequence[Cell]) -> float | None:
    ours, constant = (sum(errors) for errors in zip(*held_out_errors(cells).values(), strict=True))
    return float(ours / constant) if constant > 0 else None
