"""Claims about any other number that every seed has."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from ..results import Results
from ..stats import ALPHA, FEWEST_SEEDS, SignFlip, shown_mean
from .base import Claim, Line, Outcome, holm_with


@dataclass(frozen=True)
class Case:
    """A number per seed, in one panel. ``otherwise``: why no seed may have it although every run is over.

    ``impossible``: why the number, if there is one, says nothing; it is shown and not judged.
    """

    panel: str
    subject: str
    values: Callable[[Results], dict[int, float]] = field(compare=False)
    otherwise: str = ""
    impossible: str = ""


@dataclass(frozen=True)
class Below(Claim):
    """A number lies below a limit, in every case: its mean over seeds, by the sign-flip test of its distance to it."""

    cases: tuple[Case, ...]
    limit: float
    scale: Literal["plain", "ratio"] = "plain"  # "ratio": the values are logarithms, and shown as what they are of

    @property
    def refuted_by(self) -> str:
        limit = math.exp(self.limit) if self.scale == "ratio" else self.limit
        return f"One case in which the number certainly lies above {limit:g} (Holm over all cases)."

    def evidence(self, results: Results) -> list[Line]:
        found = [(case, case.values(results)) for case in self.cases]
        over = all(run.summary is not None for _, run in results.every_run())
        lines = [self._line(case, values, over) for case, values in found]
        tested = [i for i, (case, values) in enumerate(found) if len(values) >= FEWEST_SEEDS and not case.impossible]
        tests = [SignFlip.of(list(found[i][1].values())) for i in tested]
        never = sum(
            bool(case.impossible) or (line.outcome != "missing" and not values)
            for line, (case, values) in zip(lines, found, strict=True)
        )
        waiting = len(lines) - len(tested) - never
        adjusted = holm_with([test.two_sided(self.limit) for test in tests], waiting)
        for i, test, p in zip(tested, tests, adjusted, strict=True):
            limits = test.interval()
            assert limits is not None
            certain = p <= ALPHA and not limits[0] <= self.limit <= limits[1]
            outcome: Outcome = "undecided"
            if certain:
                outcome = "confirmed" if test.estimate < self.limit else "refuted"
            lines[i] = replace(lines[i], outcome=outcome, note=f"p = {p:.3g} after Holm, {len(found[i][1])} seeds")
        return lines

    def _line(self, case: Case, values: dict[int, float], over: bool) -> Line:
        if not values and case.impossible:
            return Line(case.panel, case.subject, "-", "impossible", case.impossible)
        if not values and over and case.otherwise:
            return Line(case.panel, case.subject, "-", "undecided", case.otherwise)
        if not values:
            return Line(case.panel, case.subject, "-", "missing", "not measured" if over else "its runs are not over")
        shown = shown_mean(values.values(), "{:.3g}", self.scale == "ratio")
        outcome: Outcome = "impossible" if case.impossible else "undecided"
        note = case.impossible or f"{len(values)} seeds"
        return Line(case.panel, case.subject, shown, outcome, note, seeds=len(values))
