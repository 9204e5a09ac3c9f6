"""When a curve first reaches a level, and when it stays there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LEVELS = (0.8, 0.9, 0.95, 0.99)
SUSTAINED = 5


def first_crossing(curve: Sequence[tuple[float, float | None]], level: float, sustained: int = 1) -> float | None:
    """The first epoch at which the value is at least ``level`` in ``sustained`` evaluations running; None if never.

    >>> first_crossing([(0, 0.5), (1, 0.96), (2, 0.9), (3, 0.97), (4, 0.98)], 0.95)
    1
    >>> first_crossing([(0, 0.5), (1, 0.96), (2, 0.9), (3, 0.97), (4, 0.98)], 0.95, sustained=2)
    3
    """
    for i in range(len(curve) - sustained + 1):
        if all(value is not None and value >= level for _, value in curve[i : i + sustained]):
            return curve[i][0]
    return None


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Convergence epochs, best and last values from the lines of ``metrics.jsonl``."""
    summary: dict[str, Any] = {}
    for split in ("train", "heldout"):
        curve = [(row["epoch"], row[f"{split}_accuracy"]) for row in rows]
        summary[f"{split}_convergence"] = {str(level): first_crossing(curve, level) for level in LEVELS}
        summary[f"{split}_sustained"] = {str(level): first_crossing(curve, level, SUSTAINED) for level in LEVELS}
        known = [(value, -epoch) for epoch, value in curve if value is not None]
        summary[f"best_{split}_accuracy"] = max(known)[0] if known else None
        summary[f"best_{split}_epoch"] = -max(known)[1] if known else None
        summary[f"last_{split}_accuracy"] = curve[-1][1] if curve else None
        summary[f"last_{split}_loss"] = rows[-1][f"{split}_loss"] if rows else None
    return summary
