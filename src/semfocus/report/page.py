"""One HTML file per question: the verdicts first, then what they rest on. It needs no network and nothing beside it.

Next to the page lies a folder of its name with every figure as SVG and every figure's and table's numbers as CSV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..lab.claims import Judged
from ..lab.missing import changed, missing
from ..lab.results import Results
from ..lab.store import safe
from ..lab.study import Study, listed
from ..training.files import write_atomic
from . import accuracy, curves, index, record, speed, times
from .parts import Cell, Figure, Section, Table, leaves, paragraphs
from .style import styles_of
from .svg import with_legend
from .templates import environment, shared
from .verdicts import SIGNS, cards

__all__ = ["Answer", "Cell", "Figure", "Section", "Table", "answer", "build"]

BESIDE = (
    "Every figure lies beside this page as SVG, and the numbers of every figure and table as CSV, in the folder {}."
)


@dataclass(frozen=True)
class Answer:
    """A study's claims, judged, and everything its page shows."""

    study: Study
    results: Results
    judged: Sequence[Judged]
    sections: Sequence[Section]

    @property
    def figures(self) -> list[Figure]:
        return [part for part in leaves(self.sections) if isinstance(part, Figure)]

    def page(self, beside: str = "") -> str:
        """The page's text; ``beside`` says what lies beside it."""
        return render(self.study, self.results, self.judged, self.sections, beside)


def judged_claims(study: Study, results: Results) -> list[Judged]:
    """A study's claims, whether it is finished or not."""
    return [claim.judge(results) for claim in study.claims(results)]


def answer(study: Study, results: Results, known: Sequence[Judged] | None = None) -> Answer:
    """Everything that a page shows; ``known`` are the study's claims where they were judged before."""
    found = judged_claims(study, results) if known is None else known
    own = listed(study, "sections", study.sections(results), Section)
    return Answer(study, results, found, [*own, *study.standard_sections(results, found)])


def build(study: Study, results: Results) -> Path:
    """Writes a study's page into its folder, and beside it what an index says of it; returns where the page lies."""
    found = answer(study, results)
    path = results.store.page_path(results.question.name)
    _write_parts(found.sections, path.with_suffix(""))
    write_atomic(path, found.page().encode())
    index.write_entry(study, results, found.judged, path.with_suffix(""))
    return path


def standard_sections(results: Results, judged: Sequence[Judged]) -> list[Section]:
    """What the pages of classifiers have."""
    return [*shown(results, judged), *recorded(results)]


def shown(results: Results, judged: Sequence[Judged]) -> list[Section]:
    """How the arms did, side by side."""
    styles = styles_of(results.arms)
    return [
        times.glance(results, styles),
        curves.section(results, styles),
        times.survival(results, styles),
        speed.section(results, judged),
        accuracy.section(results),
        accuracy.reaches(results),
    ]


def recorded(results: Results) -> list[Section]:
    """What was run, where and how."""
    return [record.runs(results), record.configuration(results), record.environments(results), record.methods()]


def _write_parts(sections: Sequence[Section], folder: Path) -> None:
    names: set[str] = set()
    for part in leaves(sections):
        if part.name in names:
            raise ValueError(f"two figures or tables of a page are called {part.name!r}")
        names.add(part.name)
        write_atomic(folder / f"{safe(part.name)}.csv", part.csv().encode())
        if isinstance(part, Figure):
            write_figure(part, folder)


def write_figure(figure: Figure, folder: Path) -> Path:
    """A figure as a file of its own, with its legend inside."""
    path = folder / f"{safe(figure.name)}.svg"
    write_atomic(path, with_legend(figure.svg, figure.legend).encode())
    return path


def render(
    study: Study, results: Results, judged: Sequence[Judged], sections: Sequence[Section], beside: str = ""
) -> str:
    """The page's text: a function of what the store holds, so that building it again changes nothing."""
    title, *question = paragraphs(study.question) or [study.name]
    page = (
        environment()
        .get_template("page.html.jinja")
        .render(
            study=study,
            results=results,
            asked=results.question,
            size=study.sizes.get(results.question.size),
            title=title,
            question=question,
            cards=cards(list(judged)),
            signs=SIGNS,
            sections=[section for section in sections if section.parts or section.text],
            statuses=results.statuses(),
            missing=missing(results),
            changed=changed(results),
            beside=beside or BESIDE.format(results.question.name),
            **shared(sections),
        )
    )
    return page.lstrip()
