"""What may be said about learning speed: as much as has beaten a constant on held-out tasks, with its score."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .evidence import Candidate, Evidence

if TYPE_CHECKING:
    from .result import Diagnosis

ABSTAINS = (
    "So diagnose describes and does not recommend focus: what stands above is measured on this model, not a prediction "
    "of how it would learn. To know, train it both ways (semfocus.nn.focus)."
)


def prediction(found: Diagnosis) -> str:
    """One paragraph: a recommendation with the score of the prediction behind it, or why there is none."""
    evidence = found.evidence
    if not evidence.counts:
        tried = f" (only at size {evidence.size})" if evidence.size else ""
        return (
            "Learning speed (not predicted). No candidate has been scored at paper size"
            + tried
            + ", so no prediction of "
            f"learning speed has yet beaten a constant on held-out tasks. {ABSTAINS}"
        )
    better = [candidate for candidate in evidence.candidates if candidate.beats_a_constant]
    if not better:
        return f"Learning speed (not predicted). {_none_is_better(evidence)} {ABSTAINS}"
    usable = [candidate for candidate in better if candidate.name in found.candidates]
    if not usable:
        names = ", ".join(f"{candidate.name!r}" for candidate in better)
        return (
            f"Learning speed (not predicted). Of the candidates scored, {names} beat a constant on held-out tasks "
            f"({evidence.origin}), but attention alone does not tell their values. {ABSTAINS}"
        )
    best = max(usable, key=lambda candidate: candidate.skill)
    return f"Learning speed (predicted). {_recommendation(found, best)} {_score(best, evidence)}"


def _none_is_better(evidence: Evidence) -> str:
    if not evidence.candidates:
        return f"No candidate could be scored on held-out tasks ({evidence.origin})."
    best = max(evidence.candidates, key=lambda candidate: candidate.skill)
    return (
        f"None of {len(evidence.candidates)} candidates beat a constant on held-out tasks for certain; the best, "
        f"{best.name!r}, has skill {_skill(best)} on {best.cases} cases of {best.tasks} tasks ({evidence.origin})."
    )


def _recommendation(found: Diagnosis, candidate: Candidate) -> str:
    values = {k: value for k, value in found.candidates[candidate.name].items() if value is not None}
    known = {k: y for k, value in values.items() if (y := candidate.predicts(value)) is not None}
    if not known:
        shown = f"{min(values.values()):.3g} to {max(values.values()):.3g}" if values else "not known"
        return (
            f"No recommendation: {candidate.name!r} is {shown} here, outside what it was scored on "
            f"({candidate.low:.3g} to {candidate.high:.3g})."
        )
    k = max(known, key=lambda k: known[k])
    speed, error = math.exp(known[k]), math.exp(candidate.typical_error)
    predicted = f"by {candidate.name!r} ({values[k]:.3g}), with a typical error of a factor of {error:.2f}"
    if known[k] <= 0:
        return (
            f"Focus is not recommended: of k = {', '.join(map(str, known))} the best, {k}, is predicted to learn at "
            f"{speed:.2f} times the speed of full attention, {predicted}."
        )
    faster = f"It is predicted to learn {speed:.2f} times as fast as full attention"
    return f"Recommended: try TopK({k}). {faster}, {predicted}."


def _score(candidate: Candidate, evidence: Evidence) -> str:
    return (
        f"Score of this prediction: skill {_skill(candidate)} against a constant on held-out tasks, {candidate.cases} "
        f"cases of {candidate.tasks} tasks ({evidence.origin}). It was scored on small models measured before "
        "training: on a trained model, or one of another kind, it has not been tried."
    )


def _skill(candidate: Candidate) -> str:
    """
    >>> _skill(Candidate("x", 9, 3, 0.5, (-0.25, 0.75), 0.1, 0.0, 1.0, 0.0, 1.0))
    '+0.50 (interval -0.25 to +0.75)'
    """
    low, high = candidate.interval
    return f"{candidate.skill:+.2f} (interval {low:+.2f} to {high:+.2f})"
