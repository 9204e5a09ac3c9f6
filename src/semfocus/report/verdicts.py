"""The cards at the top of a page: each claim, its verdict, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from ..lab.claims import Judged, Piece, in_short
from ..lab.stats import seeds_needed

#: A sign beside the word: neither colour nor sign is needed to read a verdict.
SIGNS: dict[str, str] = {
    "confirmed": "✓",
    "refuted": "✗",
    "no difference": "=",
    "undecided": "?",
    "impossible": "∅",
    "missing": "…",
}
#: More lines of evidence than this are folded.
SHOWN_LINES = 4


@dataclass(frozen=True)
class Card:
    """One claim as it is shown."""

    judged: Judged
    anchor: str

    @property
    def folded(self) -> bool:
        return len(self.judged.lines) > SHOWN_LINES

    @property
    def short(self) -> list[Piece]:
        """The numbers, where the table of all is folded."""
        return in_short(self.judged) if self.folded else []

    @property
    def few_seeds(self) -> str:
        """Said where a claim is undecided because so few seeds cannot decide it."""
        tested = [line for line in self.judged.lines if line.comparison is not None and line.outcome != "impossible"]
        if self.judged.verdict != "undecided" or not tested:
            return ""
        have = min(len(line.comparison.seeds) for line in tested if line.comparison is not None)
        count = max(line.together for line in tested)
        need = seeds_needed(count)
        if have >= need:
            return ""
        together = "a comparison" if count == 1 else f"{count} comparisons together"
        return f"{have} seeds cannot decide {together}: at least {need} are needed."


def tone(outcome: str) -> str:
    """
    >>> tone("no difference")
    'no-difference'
    """
    return outcome.replace(" ", "-")


def cards(judged: list[Judged]) -> list[Card]:
    return [Card(one, f"claim-{number}") for number, one in enumerate(judged, 1)]
