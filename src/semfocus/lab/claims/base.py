"""What every claim has: evidence line by line, a rule, a verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from ...registry import suggestion
from ...training.strict import ConfigError
from ..results import Results, Split
from ..stats import Comparison, Verdict, holm

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
    seeds: int = 0  # on which it rests


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict and the evidence for it."""

    claim: Claim
    verdict: Verdict
    sentence: str
    lines: tuple[Line, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim(ABC):
    """A statement about a study's arms."""

    id: str
    statement: str
    paper: str = field(default="", kw_only=True)  # what the paper says of it
    #: Of outcomes of single comparisons, where "confirmed" would be taken for the claim's own.
    words: ClassVar[dict[Outcome, str]] = {}

    @property
    @abstractmethod
    def refuted_by(self) -> str:
        """The outcome that would refute it, in a sentence."""

    @abstractmethod
    def evidence(self, results: Results) -> list[Line]: ...

    def word(self, outcome: Outcome) -> str:
        return self.words.get(outcome, outcome)

    def rule(self, lines: Sequence[Line]) -> Verdict:
        """The verdict on the whole: all lines must be confirmed, and one certain opposite refutes."""
        found = {line.outcome for line in lines} - {"impossible"}
        if "refuted" in found:
            return "refuted"
        return "confirmed" if found == {"confirmed"} else "undecided"

    def judge(self, results: Results) -> Judged:
        lines = tuple(self.evidence(results))
        if results.question.size == "smoke":
            return Judged(self, "undecided", "Smoke size: it shows that everything runs, and decides nothing.", lines)
        counted = Counter(line.outcome for line in lines)
        counts = ", ".join(f"{n} {self.word(outcome)}" for outcome, n in counted.most_common()) or "nothing to compare"
        sentence = f"Of {len(lines)} comparisons: {counts}." if len(lines) != 1 else f"One comparison: {counts[2:]}."
        warnings = {w: None for line in lines if line.comparison is not None and (w := warning(line)) is not None}
        return Judged(self, self.rule(lines), sentence, lines, tuple(warnings))


def warning(line: Line) -> str | None:
    """What has to be said before a number that rests on many censored times."""
    assert line.comparison is not None
    return None if line.comparison.warning is None else f"{line.panel}: {line.comparison.warning}"


@dataclass(frozen=True)
class Contrast:
    """``b`` against ``a`` in one panel: what of them is compared, the claim says; ``split`` is for times alone."""

    panel: str
    a: str
    b: str
    split: Split = "train"

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise ConfigError(f"split is {self.split!r}; {suggestion(self.split, get_args(Split))}")


def not_over(panel: str, subject: str) -> Line:
    """The evidence of runs that are still to come."""
    return Line(panel, subject, "-", "missing", "its runs are not over")


def against(panels: Sequence[str], a: str, bs: Sequence[str], split: Split = "train") -> tuple[Contrast, ...]:
    """A contrast of every b with a in every panel."""
    return tuple(Contrast(panel, a, b, split) for panel in panels for b in bs)


def holm_with(p_values: Sequence[float], waiting: int) -> list[float]:
    """Holm's correction where so many more comparisons are to come.

    >>> holm_with([0.01, 0.5], 3)
    [0.05, 1.0]
    """
    return holm([*p_values, *[1.0] * waiting])[: len(p_values)]
