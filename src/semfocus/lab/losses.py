"""When a loss is reached, and which of two runs of one seed gets there first.

Two runs are compared at the loss that both reach: the larger of their two lowest values. So neither is favoured, and no
time is missing. What is compared is T, the tokens, seconds or epochs until then, told between evaluations by a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .results import ArmResult, Run

#: Losses that differ by less count as equal, in nats per token.
MARGIN = 0.01


def reached(rows: Sequence[Mapping[str, Any]], level: float, x: str, column: str = "heldout_loss") -> float | None:
    """Where the curve first comes down to the level; None if it never does. Nothing is told before the first step.

    >>> curve = [{"tokens": t, "heldout_loss": loss} for t, loss in ((0, 5.0), (10, 4.0), (20, 3.0))]
    >>> reached(curve, 3.5, "tokens"), reached(curve, 2.0, "tokens"), reached(curve, 4.9, "tokens")
    (15.0, None, 10.0)
    """
    known = [(float(row[x]), float(row[column])) for row in rows if row.get(column) is not None]
    earliest = known[1][0] if len(known) > 1 else 0.0
    for (x0, y0), (x1, y1) in pairwise(known):
        if y1 <= level:
            along = 1.0 if y0 <= y1 else (y0 - level) / (y0 - y1)
            return max(x0 + along * (x1 - x0), earliest)
    return None


def log_ratio(a: Run, b: Run, x: str, column: str = "heldout_loss") -> float | None:
    """log(T_b / T_a), below 0 where b is first; None where one of them is not over, or broke."""
    if a.status != "finished" or b.status != "finished":
        return None
    best = [min(row[column] for row in run.rows if row.get(column) is not None) for run in (a, b)]
    times = [reached(run.rows, max(best), x, column) for run in (a, b)]
    return None if not times[0] or not times[1] else math.log(times[1] / times[0])


def log_ratios(a: ArmResult, b: ArmResult, x: str, column: str = "heldout_loss") -> dict[int, float]:
    """Per seed that both have."""
    found = {run.seed: log_ratio(first, run, x, column) for first, run in a.paired(b)}
    return {seed: value for seed, value in found.items() if value is not None}


def lowest(arm: ArmResult) -> dict[int, float]:
    """The lowest held-out loss of each seed that did not break."""
    losses = {run.seed: [row.get("heldout_loss") for row in run.rows] for run in arm.finished}
    known = {seed: [loss for loss in values if loss is not None] for seed, values in losses.items()}
    return {seed: min(values) for seed, values in known.items() if values}


def differences(a: ArmResult, b: ArmResult) -> dict[int, float]:
    """b's lowest held-out loss minus a's, per seed."""
    ours, theirs = lowest(a), lowest(b)
    return {seed: theirs[seed] - ours[seed] for seed in ours if seed in theirs}
