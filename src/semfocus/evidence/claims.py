"""A study's claims as plain rows: what is claimed, what the paper says, what was found here, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..lab.claims import Judged, in_short
from ..lab.missing import missing
from ..lab.results import Results
from ..training.environment import short
from .markdown import cell, in_a_cell, table
from .record import Record


@dataclass(frozen=True)
class Place:
    """Where a study's runs ran."""

    commits: tuple[str, ...]
    devices: tuple[str, ...]
    torch: tuple[str, ...]
    precisions: tuple[str, ...]

    @staticmethod
    def of(records: Iterable[Record]) -> Place:
        found = [record.environment for record in records]

        def words(name: str, shown: Callable[[str], str] = str) -> tuple[str, ...]:
            counted = Counter(shown(environment.get(name) or "unknown") for environment in found)
            return tuple(word for word, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0])))

        return Place(words("commit", short), words("device"), words("torch"), words("precision"))


@dataclass(frozen=True)
class ClaimRow:
    """One claim."""

    study: str
    name: str  # of the question: its size
    judged: Judged

    @property
    def id(self) -> str:
        return self.judged.claim.id

    @property
    def statement(self) -> str:
        return self.judged.claim.statement

    @property
    def paper(self) -> str:
        return self.judged.claim.paper or "not asked"

    @property
    def verdict(self) -> str:
        return self.judged.verdict

    @property
    def planned(self) -> int:
        """Comparisons."""
        return len(self.judged.lines)

    @property
    def missing(self) -> int:
        return sum(line.outcome == "missing" for line in self.judged.lines)

    @property
    def scope(self) -> str:
        """The size, and where the verdict comes from, if not from all of its comparisons."""
        lines, verdict = self.judged.lines, self.verdict
        found = [line for line in lines if line.outcome == verdict]
        if len(found) in (0, len(lines)):
            return self.name
        panels = []
        for panel in dict.fromkeys(line.panel for line in found):
            every = [line for line in lines if line.panel == panel and line.outcome != "missing"]
            arms = [line.subject.partition(" against ")[0] for line in every if line.outcome == verdict]
            panels.append(panel if len(arms) == len(every) else f"{panel} ({', '.join(arms)} alone)")
        return f"{self.name}; {', '.join(panels)}"

    @property
    def seeds(self) -> str:
        """On how many it rests."""
        return span(line.seeds for line in self.judged.lines if line.seeds)

    @property
    def ours(self) -> str:
        """The numbers with their intervals, as far as a cell holds them."""
        return in_a_cell(in_short(self.judged)) or self.judged.sentence

    def plain(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "statement": self.statement,
            "paper": self.paper,
            "verdict": self.verdict,
            "found": self.judged.sentence,
            "seeds": self.seeds,
            "refuted_by": self.judged.claim.refuted_by,
            "warnings": list(self.judged.warnings),
            "lines": [
                {
                    "panel": line.panel,
                    "subject": line.subject,
                    "shown": line.shown,
                    "outcome": line.outcome,
                    "note": line.note,
                }
                for line in self.judged.lines
            ],
        }


def span(counts: Iterable[int]) -> str:
    """
    >>> span([10, 5, 10]), span([3]), span([])
    ('5 to 10', '3', '0')
    """
    found = sorted(set(counts)) or [0]
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def claim_rows(results: Results, judged: Sequence[Judged]) -> list[ClaimRow]:
    question = results.question
    return [ClaimRow(question.study, question.name, one) for one in judged]


def lacking(results: Results, records: Iterable[Record]) -> list[str]:
    """What the evidence lacks, or has too much of."""
    sentences = missing(results)
    if not sentences and not results.manifest.complete:
        sentences.append("every run that was planned is over, but follow-up runs or measurements may be to come")
    named = {run.directory.run for _, run in results.every_run()}
    orphans = sum(record.run not in named for record in records)
    if orphans:
        sentences.append(f"{orphans} stored runs belong to no arm: they were planned with another config")
    return sentences


def as_json(results: Results, rows: Sequence[ClaimRow], place: Place, lacks: Sequence[str]) -> dict[str, Any]:
    """``claims.json``"""
    counts = results.statuses()
    return {
        "study": results.question.study,
        "name": results.question.name,
        "command": results.question.command,
        "runs": {status: counts[status] for status in sorted(counts)},
        "missing": list(lacks),
        "commits": list(place.commits),
        "hardware": list(place.devices),
        "torch": list(place.torch),
        "precision": list(place.precisions),
        "claims": [row.plain() for row in rows],
    }


def as_markdown(results: Results, rows: Sequence[ClaimRow], place: Place, lacks: Sequence[str]) -> str:
    """``claims.md``"""
    counts = results.statuses()
    over = counts["finished"] + counts["diverged"]
    texts = [
        f"# {results.question.study}, {results.question.name}: claims\n",
        f"{over} of {counts.total()} runs are over ({counts['diverged']} of them diverged). "
        f"Commit {', '.join(place.commits)}; {', '.join(place.devices)}; torch {', '.join(place.torch)}; "
        f"{', '.join(place.precisions)}. Asked by `{results.question.command}`.\n",
    ]
    if lacks:
        texts += ["Missing:\n", *(f"- {cell(sentence)}" for sentence in lacks), ""]
    columns = ("claim", "statement", "the paper", "ours (95 % intervals)", "verdict", "seeds", "commit", "hardware")
    where = (", ".join(place.commits), ", ".join(place.devices))
    texts.append(
        table(columns, [(r.id, r.statement, r.paper, r.ours, f"**{r.verdict}**", r.seeds, *where) for r in rows])
    )
    for row in rows:
        texts += [f"\n## {cell(row.id)}\n", f"Refuted by: {cell(row.judged.claim.refuted_by)}\n"]
        texts += [f"- {cell(text)}" for text in row.judged.warnings] + [""] * bool(row.judged.warnings)
        word = row.judged.claim.word
        lines = [(line.panel, line.subject, line.shown, word(line.outcome), line.note) for line in row.judged.lines]
        texts.append(
            table(("panel", "comparison", "result", "outcome", "note"), lines) if lines else "Nothing to compare."
        )
    return "\n".join(texts) + "\n"
