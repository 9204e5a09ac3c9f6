"""Claims about accuracies: as good as another's, or above what can be had without understanding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..baselines import shortcut
from ..results import ArmResult, Results
from ..stats import ALPHA, FEWEST_SEEDS, SignFlip, Verdict
from .base import Claim, Contrast, Line, Outcome, not_over

#: Accuracies that differ by less count as equal: 2 points in 100.
MARGIN = 0.02
#: Share of the training examples from which on a seed fits them.
FITS = 0.99


@dataclass(frozen=True)
class AsAccurate(Claim):
    """b's held-out accuracy at the last epoch is not worse than a's by more than a margin, in every contrast."""

    contrasts: tuple[Contrast, ...]

    @property
    def refuted_by(self) -> str:
        return f"One contrast in which the second is certainly worse, and perhaps by more than {100 * MARGIN:g} points."

    def evidence(self, results: Results) -> list[Line]:
        return [self._one(results, contrast) for contrast in self.contrasts]

    def _one(self, results: Results, contrast: Contrast) -> Line:
        subject = f"{contrast.b} against {contrast.a}"
        if not all(results.has(contrast.panel, name) for name in (contrast.a, contrast.b)):
            return not_over(contrast.panel, subject)
        a, b = (results.arm(contrast.panel, name).last("heldout_accuracy") for name in (contrast.a, contrast.b))
        seeds = sorted(set(a) & set(b))
        if not seeds:
            arms = [results.arm(contrast.panel, name) for name in (contrast.a, contrast.b)]
            if all(len(arm.over) == len(arm.runs) for arm in arms):
                return Line(contrast.panel, subject, "-", "undecided", "no seed is left that did not diverge")
            return not_over(contrast.panel, subject)
        test = SignFlip.of([b[seed] - a[seed] for seed in seeds])
        shown, alone = f"{100 * test.estimate:+.1f} points", test.interval()
        # Several contrasts: each is judged by a wider interval (Bonferroni), so that all of them hold together.
        limits = test.interval(ALPHA / len(self.contrasts))
        if alone is not None and len(seeds) >= FEWEST_SEEDS:
            shown += f" ({_points(alone)})"
        if limits is None or len(seeds) < FEWEST_SEEDS:
            few = f"{len(seeds)} seeds cannot decide"
            return Line(contrast.panel, subject, shown, "undecided", few, seeds=len(seeds))
        low, high = limits
        outcome: Outcome = "confirmed" if low >= -MARGIN else "refuted" if high < 0 else "undecided"
        broken = results.arm(contrast.panel, contrast.b).statuses()["diverged"]
        if broken and outcome == "confirmed":  # they have no accuracy to compare, and are no success
            outcome = "undecided"
        means = f"means {_percent(a, seeds)} and {_percent(b, seeds)}, {len(seeds)} seeds"
        if len(self.contrasts) > 1:
            means += f"; judged by {_points(limits)}, which holds in all {len(self.contrasts)} comparisons together"
        if broken:
            means += f"; {broken} seeds of {contrast.b} diverged and are not among them"
        return Line(contrast.panel, subject, shown, outcome, means, seeds=len(seeds))


@dataclass(frozen=True)
class Learns(Claim):
    """An arm fits its training set in every panel, and generalises exactly in the panels that are named.

    "Fits": at least ``FITS`` of the training examples in every seed. "Generalises": the held-out accuracy of the last
    epoch lies above the best shortcut in every seed by more than the margin; "near chance": below it in every seed.
    """

    label: str
    panels: tuple[str, ...]
    generalises: tuple[str, ...]

    @property
    def refuted_by(self) -> str:
        return "A panel in which no seed fits, or in which every seed does the opposite of what is said of it."

    def evidence(self, results: Results) -> list[Line]:
        lines = []
        for panel in self.panels:
            if not results.has(panel, self.label) or not results.arm(panel, self.label).over:
                lines.append(not_over(panel, self.label))
                continue
            arm = results.arm(panel, self.label)
            lines += [self._fits(arm), self._held_out(arm)]
        return lines

    def _fits(self, arm: ArmResult) -> Line:
        best = arm.best("train_accuracy")
        sound = {run.seed for run in arm.finished}
        reached = sum(value >= FITS for seed, value in best.items() if seed in sound)
        seeds = len(arm.over)
        shown = f"{100 * FITS:g} % of the training examples in {reached} of {seeds} seeds"
        return Line(arm.panel, f"{self.label} fits", shown, _all_or_none(reached, seeds), seeds=seeds)

    def _held_out(self, arm: ArmResult) -> Line:
        last = arm.last("heldout_accuracy")
        limit = shortcut(arm.config) + MARGIN
        above = sum(value > limit for value in last.values())
        wanted, seeds = arm.panel in self.generalises, len(arm.over)  # a seed that diverged does neither
        shown = f"above {100 * limit:.1f} % in {above} of {seeds} seeds"
        subject = f"{self.label} {'generalises' if wanted else 'stays near chance'}"
        outcome = _all_or_none(above if wanted else len(last) - above, seeds)
        return Line(arm.panel, subject, shown, outcome, seeds=seeds)


def _points(limits: tuple[float, float]) -> str:
    return f"{100 * limits[0]:+.1f} to {100 * limits[1]:+.1f}"


def _percent(values: dict[int, float], seeds: Sequence[int]) -> str:
    return f"{100 * np.mean([values[seed] for seed in seeds]):.1f} %"


def _all_or_none(count: int, of: int) -> Verdict:
    if of < FEWEST_SEEDS:
        return "undecided"
    return "confirmed" if count == of else "refuted" if count == 0 else "undecided"
