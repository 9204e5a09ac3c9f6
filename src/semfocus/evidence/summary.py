"""What the README says of all studies together.

The order is fixed: each claim as the paper judges it, then best scale and learning rate against best, then on the
clock. Where the paper's explanation fails, that stands before everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..lab.claims import Line, listed
from ..lab.results import Results
from ..lab.stats import ALPHA, Comparison
from ..lab.study import Study
from .claims import ClaimRow, Place, span
from .cost import Cost
from .markdown import NOTE, in_a_cell, table
from .speed import HERE, TUNED, Kind, Race, shown

Group = Literal["explanation", "paper", "best", "clock", "more"]
TITLES: dict[Group, str] = {
    "explanation": "The paper's explanation",
    "paper": "Each claim as the paper judges it",
    "best": "Best scale and learning rate against best, and other controls",
    "clock": "On the clock",
    "more": "Beyond the paper",
}
BY_STUDY: dict[str, Group] = {
    "convergence": "paper",
    "activations": "paper",
    "ablations": "paper",
    "language_model": "paper",
    "controls": "best",
    "fair": "best",
    "dispersion": "explanation",
    "loss_surface": "explanation",
    "mechanism": "explanation",
    "budget": "more",
    "selection_stability": "more",
    "plateau": "more",
    "twins": "more",
}
BY_CLAIM: dict[tuple[str, str], Group] = {
    ("convergence", "C1, rival"): "best",
    ("language_model", "best against best"): "best",
    ("language_model", "less time"): "clock",
}
#: Verdicts with which the explanation (a smaller dispersion, hence a smoother loss, hence speed) fails. The W- and
#: X-comparison are not among them (``MIXED``).
FAILS = {
    ("dispersion", "C5, dispersion"): "refuted",
    ("loss_surface", "C5, steepness"): "refuted",
    ("mechanism", "lowering helps"): "refuted",
    ("mechanism", "raising helps"): "confirmed",
}
#: What the paper itself reports to hold on some tasks and not on others: no verdict on all of them agrees or disagrees.
MIXED = {("dispersion", "C5, W"), ("dispersion", "C5, X")}
#: Verdicts with which a cheap rival does what top-k does: without it beside them, top-k's speed-ups say little.
RIVALS = {
    ("convergence", "C1, rival"): "refuted",
    ("fair", "C1, tuned"): "refuted",
    ("language_model", "best against best"): "refuted",
}
#: The paper trained no decoders: no size of theirs stands for a larger one of the paper's.
BEYOND_THE_PAPER = {"language_model"}
NOT_RUN = "not run yet"
#: By how much a ratio of the times of two steps may be off: equal work was timed up to 4 % apart.
TIMING = 1.05
ON_THE_CLOCK = "(full over top-k, epochs x a step alone)"
#: A folder's files, as the index names them.
FILES = {"claims": "claims.md", "speed": "speed.md", "runs": "runs.csv", "page": "index.html"}
SIZES = ("paper", "ptb", "small", "quick", "smoke")  # the largest first


@dataclass(frozen=True)
class Built:
    """One folder of results, judged."""

    name: str
    results: Results
    claims: Sequence[ClaimRow]
    races: Sequence[Race]
    cost: Cost
    place: Place
    lacks: Sequence[str]
    paper_sizes: Sequence[str] = Study.paper_sizes  # of its study

    @property
    def study(self) -> str:
        return self.results.question.study

    @property
    def rank(self) -> tuple[int, int, str]:
        size = self.results.question.size
        known = list(BY_STUDY)
        return (
            SIZES.index(size) if size in SIZES else len(SIZES),
            known.index(self.study) if self.study in known else len(known),
            self.name,
        )


@dataclass(frozen=True)
class Summary:
    """All folders together."""

    built: Sequence[Built] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        object.__setattr__(self, "built", tuple(sorted(self.built, key=lambda one: one.rank)))

    def readme(self) -> str:
        """The body of the README's marked section. Smaller sizes of our own studies are in the index alone."""
        large = [one for one in self.built if is_full_size(one) or one.study not in BY_STUDY]
        parts = [*self._failures(), self.speeds(), *self._claims(large, "results/")]
        more = "Smaller sizes, and where everything is: [results/README.md](results/README.md)."
        return "\n\n".join([part for part in parts if part] + [more, self._rest()])

    def index(self) -> str:
        """``results/README.md``: every claim of every folder."""
        links = [
            (
                f"{one.study}, {one.results.question.name}",
                f"{one.cost.over} of {one.cost.planned}",
                ", ".join(f"[{name}]({one.name}/{file})" for name, file in FILES.items()),
            )
            for one in self.built
        ]
        parts = [
            "# Results",
            NOTE,
            "A folder holds one study at one size. The pages (`index.html`) are to be opened in a browser.",
            table(("study", "runs over", "files"), links),
            *self._failures(),
            self.speeds(),
            *self._claims(self.built),
            self._rest(),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _failures(self) -> list[str]:
        """What stands before everything else: that the explanation fails, that a rival does as much."""
        parts = []
        if failed := self._failed():
            said = "; ".join(f"“{row.statement}” is {row.verdict} ({row.study}, {row.scope})" for row in failed)
            parts.append(f"**The paper's explanation fails here:** {said}.")
        beaten = [row for row in self.rows() if RIVALS.get((row.study, row.id)) == row.verdict]
        if beaten:
            said = "<br>".join(f"“{row.statement}” is {row.verdict} ({row.study}, {row.scope})." for row in beaten)
            parts.append(f"**A cheaper rival is as fast or faster:** {said}")
        return parts

    def _failed(self) -> list[ClaimRow]:
        return [row for row in self.rows() if FAILS.get((row.study, row.id)) == row.verdict]

    def _claims(self, of: Sequence[Built], results: str = "") -> list[str]:
        """A table for each group, with links to folders in ``results``; the explanation's first where it fails."""
        order: list[Group] = ["paper", "best", "clock"]
        order = [*(["explanation", *order] if self._failed() else [*order, "explanation"]), "more"]
        every = [row for one in of for row in one.claims]
        parts = []
        for group in order:
            rows = [_cells(row, results) for row in every if group_of(row) == group]
            rows += self._clock_rows(of, results) if group == "clock" else []
            if rows:
                columns = ("claim", "the paper", "ours (95 % intervals)", "verdict")
                parts.append(f"**{TITLES[group]}**\n\n{table(columns, rows)}")
        return parts

    def rows(self) -> list[ClaimRow]:
        return [row for one in self.built for row in one.claims]

    def _clock_rows(self, of: Sequence[Built], results: str) -> list[tuple[str, ...]]:
        """One row per folder with timed races of panels that no row before it has.

        It is not a claim of the study's, but is corrected as one: over all comparisons that are planned.
        """
        rows: list[tuple[str, ...]] = []
        told: set[tuple[str, str]] = set()
        for one in of:
            every = [(race, race.clock) for race in one.races if race.clock is not None and race.kind != "best scale"]
            for kind in dict.fromkeys(race.kind for race, _ in every):
                timed = [(race, clock) for race, clock in every if race.kind == kind]
                here = {(kind, race.panel) for race, _ in timed}
                if here <= told:
                    continue
                told |= here
                verdict = _clock_verdict([clock for _, clock in timed], _planned(one, kind))
                lines = [Line(race.panel, "", clock.shown(), "undecided", seeds=race.seeds) for race, clock in timed]
                rows.append(
                    (
                        f"Top-k(5) needs less time than full attention, {kind} {ON_THE_CLOCK}",
                        "not asked",
                        in_a_cell(listed(lines)),
                        _verdict(
                            verdict,
                            span(race.seeds for race, _ in timed),
                            f"[{one.study}, {one.results.question.name}]({results}{one.name}/speed.md)",
                        ),
                    )
                )
        return rows

    def speeds(self) -> str:
        """Full attention over top-k(5), task by task: medians over seeds."""
        panels = list(dict.fromkeys(race.panel for one in self.built for race in one.races if "," not in race.panel))
        rows = []
        for panel in panels:
            plain = self.race(panel, "as the paper trains") or self.race(panel, HERE)
            here = f" ({HERE})" if plain and plain.kind == HERE else ""
            scaled, tuned = self.race(panel, "best scale"), self.race(panel, "learning rate and scale tuned")
            names = f" ({scaled.a.label} against {scaled.b.label})" if scaled else ""
            rows.append(
                (
                    panel,
                    *((shown(plain.median) + here, plain.seeds) if plain else (NOT_RUN, 0)),
                    f"{shown(scaled.median)}{names}" if scaled else NOT_RUN,
                    shown(tuned.median) if tuned else NOT_RUN,
                    (shown(plain.clock) if plain.clock else "not timed") if plain else NOT_RUN,
                )
            )
        if not rows:
            return ""
        columns = (
            "task",
            "full / top-k(5)",
            "seeds",
            "best scale against best",
            "learning rate and scale tuned",
            "on the clock",
        )
        text = (
            "Epochs to 95 % of the training examples, full attention over top-k(5): the median over seeds with its "
            "95 % interval (on the clock: ratio of geometric means). Above 1 top-k is faster. Each interval is of its "
            "task alone; verdicts rest on geometric means and on all comparisons of a claim together. A best scale was "
            "chosen on the seeds it is shown for, which flatters both sides; tuned settings were chosen on other seeds."
        )
        return f"**Convergence ratios, task by task.** {text}\n\n{table(columns, rows)}"

    def race(self, panel: str, kind: Kind) -> Race | None:
        """Of the study that tried most arms, convergence before others.

        What has run at the paper's size is compared at that size alone: a row of a table mixes no sizes.
        """
        every = [
            (is_full_size(one), race) for one in self.built for race in one.races if race.panel == panel and race.seeds
        ]
        size = any(full for full, _ in every)
        found = [race for full, race in every if full == size and race.kind == kind]
        return max(found, key=lambda race: race.tried, default=None)

    def _rest(self) -> str:
        known = {one.study for one in self.built}
        waiting = [study for study in BY_STUDY if study not in known]
        whole = {one.study for one in self.built if is_full_size(one)}
        smaller = [one for one in self.built if one.study not in whole]
        partly = [
            f"{one.study}, {one.results.question.name} ({one.cost.over} of {one.cost.planned} runs are over)"
            for one in self.built
            if one.cost.over < one.cost.planned
        ]
        sentences = [f"Partly run: {'; '.join(partly)}."] if partly else []
        if smaller:
            names = "; ".join(f"{one.study}, {one.results.question.name}" for one in smaller)
            sentences.append(f"Not at the paper's size yet: {names}.")
        sentences += [f"Not run yet: {', '.join(waiting)}."] if waiting else []
        places = dict.fromkeys(
            f"{one.study}, {one.results.question.name}: commit {', '.join(one.place.commits)} on "
            f"{', '.join(one.place.devices)}"
            for one in self.built
        )
        sentences += [f"Where: {'; '.join(places)}."] if places else []
        return "\n".join(sentences)


def is_full_size(one: Built) -> bool:
    """Is it the paper's size, or has what it asks none?"""
    return one.results.question.size in one.paper_sizes or one.study in BEYOND_THE_PAPER


def _cells(row: ClaimRow, results: str) -> tuple[str, ...]:
    where = f"[{row.study}, {row.name}]({results}{row.study}-{row.name}/claims.md)"
    verdict = _verdict(row.verdict, row.seeds, where, f" ({row.missing} of {row.planned} to come)" * (row.missing > 0))
    return f"{row.id}: {row.statement}", row.paper, row.ours, verdict


def _verdict(verdict: str, seeds: str, where: str, to_come: str = "") -> str:
    return f"**{verdict}**{to_come}<br>{seeds} seeds; {where}"


def group_of(row: ClaimRow) -> Group:
    return BY_CLAIM.get((row.study, row.id)) or BY_STUDY.get(row.study, "more")


def _planned(one: Built, kind: Kind) -> int:
    """How many comparisons of a kind a study will have made when all of it has run."""
    if one.study == TUNED:  # what is compared has panels only when the tuning is over
        return len({panel.partition(", ")[0] for panel in one.results.panels})
    return sum(race.kind == kind for race in one.races)


def _clock_verdict(found: Sequence[Comparison], planned: int) -> str:
    """Confirmed where every interval lies above 1, refuted where one lies below, by limits that censoring leaves valid.

    "Every" means of all that are planned, and "one of them" is judged by wider intervals (Bonferroni). Unlike epochs,
    times are not cut at the same point on both sides: an epoch of one costs more than of the other. A verdict must not
    hang on the last percent of a step's time.
    """
    if any(clock.limits_at(ALPHA / planned)[1] * TIMING < 1 for clock in found):
        return "refuted"
    every = len(found) == planned and all(clock.valid_limits[0] > TIMING for clock in found)
    return "confirmed" if every else "undecided"
