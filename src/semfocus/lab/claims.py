"""Claims: statements that the runs of a study can confirm or refute, each with the rule by which it is judged.

The rules are fixed in code before anything runs. Every kind of claim says in ``refuted_by`` which outcome refutes it.
Below ``FEWEST_SEEDS`` seeds and at size "smoke" everything is undecided.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from .baselines import chance, shortcut
from .reach import reach
from .results import ArmResult, Results, Split
from .stats import ALPHA, FEWEST_SEEDS, Comparison, SignFlip, Verdict, compare, holm, verdict

#: Accuracies that differ by less count as equal: 2 points in 100.
MARGIN = 0.02
Outcome = Verdict | Literal["impossible", "missing"]


@dataclass(frozen=True)
class Line:
    """One row of evidence."""

    panel: str
    subject: str  # "top-k(5) against full"
    shown: str  # the number, with its interval
    outcome: Outcome
    note: str = ""  # censoring, adjusted p
    comparison: Comparison | None = None
    adjusted_p: float | None = None
    together: int = 1  # how many comparisons the correction is over


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict and the evidence for it."""

    claim: Claim
    verdict: Verdict
    sentence: str
    lines: tuple[Line, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contrast:
    """Does ``b`` reach the level in fewer epochs than ``a``, in one panel?"""

    panel: str
    a: str
    b: str
    split: Split = "train"


@dataclass(frozen=True)
class Claim(ABC):
    """A statement about a study's arms."""

    id: str
    statement: str
    paper: str = field(default="", kw_only=True)  # what the paper says of it

    @property
    @abstractmethod
    def refuted_by(self) -> str:
        """The outcome that would refute it, in a sentence."""

    @abstractmethod
    def evidence(self, results: Results) -> list[Line]: ...

    def rule(self, lines: Sequence[Line]) -> Verdict:
        """The verdict on the whole: all lines must be confirmed, and one certain opposite refutes."""
        found = {line.outcome for line in lines}
        if "refuted" in found:
            return "refuted"
        return "confirmed" if found == {"confirmed"} else "undecided"

    def judge(self, results: Results) -> Judged:
        lines = tuple(self.evidence(results))
        if results.question.size == "smoke":
            return Judged(self, "undecided", "Smoke size: it shows that everything runs, and decides nothing.", lines)
        counted = Counter(line.outcome for line in lines)
        counts = ", ".join(f"{n} {outcome}" for outcome, n in counted.most_common()) or "nothing to compare"
        sentence = f"Of {len(lines)} comparisons: {counts}." if len(lines) != 1 else f"One comparison: {counts[2:]}."
        warnings = {w: None for line in lines if line.comparison is not None and (w := warning(line)) is not None}
        return Judged(self, self.rule(lines), sentence, lines, tuple(warnings))


def warning(line: Line) -> str | None:
    """What has to be said before a number that rests on many censored times."""
    assert line.comparison is not None
    return None if line.comparison.warning is None else f"{line.panel}: {line.comparison.warning}"


def compared(results: Results, contrasts: Sequence[Contrast]) -> list[Line]:
    """Every contrast tested, with Holm's correction over all of them together. What is impossible is not tested.

    Those that have not run yet are counted too: a verdict must not fall when the study goes on.
    """
    lines = [_one(results, contrast) for contrast in contrasts]
    tested = [(i, c) for i, line in enumerate(lines) if (c := line.comparison) and line.outcome != "impossible"]
    waiting = sum(line.outcome == "missing" for line in lines)
    for (i, c), p in zip(tested, holm_with([c.p_two_sided for _, c in tested], waiting), strict=True):
        together = len(tested) + waiting
        lines[i] = replace(lines[i], outcome=verdict(c, p), note=_note(c, p), adjusted_p=p, together=together)
    return lines


def holm_with(p_values: Sequence[float], waiting: int) -> list[float]:
    """Holm's correction where so many more comparisons are to come.

    >>> holm_with([0.01, 0.5], 3)
    [0.05, 1.0]
    """
    return holm([*p_values, *[1.0] * waiting])[: len(p_values)]


def _one(results: Results, contrast: Contrast) -> Line:
    subject = f"{contrast.b} against {contrast.a}"
    if contrast.split == "heldout":
        subject += ", held-out"
    pair = [
        results.arm(contrast.panel, name) if results.has(contrast.panel, name) else None
        for name in (contrast.a, contrast.b)
    ]
    a, b = (None if arm is None else arm.times(contrast.split) for arm in pair)
    over = a is not None and b is not None and bool(set(a.times) & set(b.times))
    comparison = compare(a, b) if a is not None and b is not None and over else None
    shown = "-" if comparison is None else comparison.shown()
    unable = [arm.label for arm in pair if arm is not None and reach(arm.config).impossible]
    if unable:  # whichever of the two: what cannot be learnt at all is not slow
        note = f"{' and '.join(unable)} cannot bring together the tokens that decide the label"
        return Line(contrast.panel, subject, shown, "impossible", note, comparison)
    if comparison is None:
        return Line(contrast.panel, subject, shown, "missing", "its runs are not over")
    return Line(contrast.panel, subject, shown, "undecided", "", comparison)


def _note(c: Comparison, p: float) -> str:
    parts = [f"p = {p:.3g} after Holm", f"{c.b.name} first in {100 * c.share_faster:.0f} % of {len(c.seeds)} seeds"]
    if c.censored:
        a, b = c.restricted_means
        parts.append(f"restricted mean epochs {a:.1f} and {b:.1f}")
    return "; ".join(parts)


@dataclass(frozen=True)
class Faster(Claim):
    """b reaches 95 % in fewer epochs than a, in every contrast."""

    contrasts: tuple[Contrast, ...]

    @property
    def refuted_by(self) -> str:
        return "One contrast in which the second of the two is certainly slower (Holm over all contrasts)."

    def evidence(self, results: Results) -> list[Line]:
        return compared(results, self.contrasts)

    def rule(self, lines: Sequence[Line]) -> Verdict:
        """All must be confirmed; one certain opposite refutes; where nothing differs, nothing differs."""
        found = {line.outcome for line in lines} - {"impossible"}
        if "refuted" in found:
            return "refuted"
        for outcome in ("confirmed", "no difference"):
            if found == {outcome}:
                return outcome
        return "undecided"


@dataclass(frozen=True)
class NoConsistentBenefit(Claim):
    """No pattern of a family is faster than a on all tasks. The contrasts of one pattern share their ``b``."""

    contrasts: tuple[Contrast, ...]

    @property
    def refuted_by(self) -> str:
        return "A pattern that is certainly faster in each of its contrasts (those it cannot reach left out)."

    def evidence(self, results: Results) -> list[Line]:
        # Holm per pattern: the claim holds only if every pattern fails somewhere, and an "every" needs no correction.
        patterns = dict.fromkeys(contrast.b for contrast in self.contrasts)
        return [line for b in patterns for line in compared(results, [c for c in self.contrasts if c.b == b])]

    def rule(self, lines: Sequence[Line]) -> Verdict:
        """Confirmed if every pattern is certainly not faster somewhere. What is impossible is no evidence."""
        by_pattern: dict[str, set[Outcome]] = {}
        for line in lines:
            if line.outcome != "impossible":
                by_pattern.setdefault(line.subject, set()).add(line.outcome)
        if not by_pattern:
            return "undecided"
        if any(outcomes == {"confirmed"} for outcomes in by_pattern.values()):
            return "refuted"
        fails: set[Outcome] = {"refuted", "no difference"}
        return "confirmed" if all(fails & outcomes for outcomes in by_pattern.values()) else "undecided"


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
            return Line(contrast.panel, subject, "-", "missing", "its runs are not over")
        a, b = (results.arm(contrast.panel, name).last("heldout_accuracy") for name in (contrast.a, contrast.b))
        seeds = sorted(set(a) & set(b))
        if not seeds:
            arms = [results.arm(contrast.panel, name) for name in (contrast.a, contrast.b)]
            if all(len(arm.over) == len(arm.runs) for arm in arms):
                return Line(contrast.panel, subject, "-", "undecided", "no seed is left that did not diverge")
            return Line(contrast.panel, subject, "-", "missing", "its runs are not over")
        test = SignFlip.of([b[seed] - a[seed] for seed in seeds])
        shown, alone = f"{100 * test.estimate:+.1f} points", test.interval()
        # Several contrasts: each is judged by a wider interval (Bonferroni), so that all of them hold together.
        limits = test.interval(ALPHA / len(self.contrasts))
        if alone is not None and len(seeds) >= FEWEST_SEEDS:
            shown += f" ({_points(alone)})"
        if limits is None or len(seeds) < FEWEST_SEEDS:
            return Line(contrast.panel, subject, shown, "undecided", f"{len(seeds)} seeds cannot decide")
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
        return Line(contrast.panel, subject, shown, outcome, means)


@dataclass(frozen=True)
class Learns(Claim):
    """An arm fits its training set in every panel, and generalises exactly in the panels that are named.

    "Fits": at least 99 % of the training examples in every seed. "Generalises": the held-out accuracy of the last epoch
    lies above the best shortcut in every seed by more than the margin; "near chance": below it in every seed.
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
                lines.append(Line(panel, self.label, "-", "missing", "its runs are not over"))
                continue
            arm = results.arm(panel, self.label)
            lines += [self._fits(arm), self._held_out(arm)]
        return lines

    def _fits(self, arm: ArmResult) -> Line:
        best = arm.best("train_accuracy")
        sound = {run.seed for run in arm.over if run.status == "finished"}
        reached = sum(value >= 0.99 for seed, value in best.items() if seed in sound)
        shown = f"99 % of the training examples in {reached} of {len(arm.over)} seeds"
        return Line(arm.panel, f"{self.label} fits", shown, _all_or_none(reached, len(arm.over)))

    def _held_out(self, arm: ArmResult) -> Line:
        last = arm.last("heldout_accuracy")
        limit = max(chance(arm.config), shortcut(arm.config)) + MARGIN
        above = sum(value > limit for value in last.values())
        wanted, seeds = arm.panel in self.generalises, len(arm.over)  # a seed that diverged does neither
        shown = f"above {100 * limit:.1f} % in {above} of {seeds} seeds"
        subject = f"{self.label} {'generalises' if wanted else 'stays near chance'}"
        return Line(arm.panel, subject, shown, _all_or_none(above if wanted else len(last) - above, seeds))


@dataclass(frozen=True)
class Case:
    """A number per seed, in one panel. ``otherwise``: why no seed may have it although every run is over."""

    panel: str
    subject: str
    values: Callable[[Results], dict[int, float]] = field(compare=False)
    otherwise: str = ""


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
        tested = [i for i, (_, values) in enumerate(found) if len(values) >= FEWEST_SEEDS]
        tests = [SignFlip.of(list(found[i][1].values())) for i in tested]
        waiting = sum(
            line.outcome == "missing" or 0 < len(values) < FEWEST_SEEDS
            for line, (_, values) in zip(lines, found, strict=True)
        )
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
        if not values and over and case.otherwise:
            return Line(case.panel, case.subject, "-", "undecided", case.otherwise)
        if not values:
            return Line(case.panel, case.subject, "-", "missing", "not measured" if over else "its runs are not over")
        test = SignFlip.of(list(values.values()))
        shown, limits = self._shown(test.estimate), test.interval()
        if limits is not None:
            shown += f" ({self._shown(limits[0])} to {self._shown(limits[1])})"
        return Line(case.panel, case.subject, shown, "undecided", f"{len(values)} seeds")

    def _shown(self, value: float) -> str:
        return f"{math.exp(value) if self.scale == 'ratio' else value:.3g}"


def _points(limits: tuple[float, float]) -> str:
    return f"{100 * limits[0]:+.1f} to {100 * limits[1]:+.1f}"


def _percent(values: dict[int, float], seeds: Sequence[int]) -> str:
    return f"{100 * np.mean([values[seed] for seed in seeds]):.1f} %"


def _all_or_none(count: int, of: int) -> Verdict:
    if of < FEWEST_SEEDS:
        return "undecided"
    return "confirmed" if count == of else "refuted" if count == 0 else "undecided"


def against(panels: Sequence[str], a: str, bs: Sequence[str], split: Split = "train") -> tuple[Contrast, ...]:
    """A contrast of every b with a in every panel."""
    return tuple(Contrast(panel, a, b, split) for panel in panels for b in bs)
