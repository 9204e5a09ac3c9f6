"""Claims about convergence times, compared seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ..reach import why_impossible
from ..results import Results
from ..stats import ALPHA, EQUIVALENT, Comparison, Verdict, compare, verdict
from .base import Claim, Contrast, Line, Outcome, holm_with, not_over


def compared(results: Results, contrasts: Sequence[Contrast]) -> list[Line]:
    """Every contrast tested, with Holm's correction over all of them together. What is impossible is not tested.

    Those that have not run yet are counted too: a verdict must not fall when the study goes on.
    """
    lines = [_one(results, contrast) for contrast in contrasts]
    tested = [(i, c) for i, line in enumerate(lines) if (c := line.comparison) and line.outcome != "impossible"]
    waiting = sum(line.outcome == "missing" for line in lines)
    together = len(tested) + waiting
    for (i, c), p in zip(tested, holm_with([c.p_two_sided for _, c in tested], waiting), strict=True):
        lines[i] = replace(lines[i], outcome=verdict(c, p), note=_note(c, p), adjusted_p=p, together=together)
    return lines


def _one(results: Results, contrast: Contrast) -> Line:
    subject = f"{contrast.b} against {contrast.a}"
    if contrast.split == "heldout":
        subject += ", held-out"
    pair = [
        results.arm(contrast.panel, name) if results.has(contrast.panel, name) else None
        for name in (contrast.a, contrast.b)
    ]
    a, b = (None if arm is None else arm.times(contrast.split) for arm in pair)
    comparison = None
    if a is not None and b is not None and set(a.times) & set(b.times):
        comparison = compare(a, b)
    shown, seeds = ("-", 0) if comparison is None else (comparison.shown(), len(comparison.seeds))
    unable = [arm.label for arm in pair if arm is not None and arm.impossible]
    if unable:  # whichever of the two: what cannot be learnt at all is not slow
        return Line(contrast.panel, subject, shown, "impossible", why_impossible(unable), comparison, seeds=seeds)
    if comparison is None:
        return not_over(contrast.panel, subject)
    return Line(contrast.panel, subject, shown, "undecided", "", comparison, seeds=seeds)


def _note(c: Comparison, p: float) -> str:
    parts = [f"p = {p:.3g} after Holm", f"{c.b.name} first in {c.first_shown()} seeds"]
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
        """As of every claim; and where nothing differs, nothing differs."""
        found = {line.outcome for line in lines} - {"impossible"}
        return "no difference" if found == {"no difference"} else super().rule(lines)


@dataclass(frozen=True)
class NoConsistentBenefit(Claim):
    """No pattern of a family is faster than a on all tasks. The contrasts of one pattern share their ``b``."""

    contrasts: tuple[Contrast, ...]
    words: ClassVar[dict[Outcome, str]] = {"confirmed": "faster", "refuted": "slower"}

    @property
    def refuted_by(self) -> str:
        return (
            "A pattern that is certainly faster in each of its contrasts (those it cannot reach left out), "
            "also after correction over the patterns."
        )

    def evidence(self, results: Results) -> list[Line]:
        # Corrected per pattern: the claim holds only if every pattern fails somewhere. The "somewhere" needs a
        # correction over its tasks, the "every" needs none.
        patterns = dict.fromkeys(contrast.b for contrast in self.contrasts)
        lines = [line for b in patterns for line in compared(results, [c for c in self.contrasts if c.b == b])]
        return [replace(line, outcome="undecided") if _equal_by_chance(line) else line for line in lines]

    def rule(self, lines: Sequence[Line]) -> Verdict:
        """Confirmed if every pattern is certainly not faster somewhere. What is impossible is no evidence.

        Refuted if one is faster everywhere. "Everywhere" needs no correction over its tasks (the largest p counts), but
        "one of them" needs Bonferroni's over the patterns.
        """
        by_pattern: dict[str, list[Line]] = {}
        for line in lines:
            if line.outcome != "impossible":
                by_pattern.setdefault(line.subject, []).append(line)
        if not by_pattern:
            return "undecided"
        for found in by_pattern.values():
            largest = max((line.comparison.p_two_sided if line.comparison else 1.0) for line in found)
            if {line.outcome for line in found} == {"confirmed"} and len(by_pattern) * largest <= ALPHA:
                return "refuted"
        fails: set[Outcome] = {"refuted", "no difference"}
        fail = [fails & {line.outcome for line in found} for found in by_pattern.values()]
        return "confirmed" if all(fail) else "undecided"


def _equal_by_chance(line: Line) -> bool:
    """Whether "no difference" would not hold beside the other tasks of its pattern (Bonferroni)."""
    if line.outcome != "no difference" or line.comparison is None:
        return False
    low, high = line.comparison.limits_at(ALPHA / line.together)
    return not (EQUIVALENT[0] <= low and high <= EQUIVALENT[1])
