"""A diagnosis as one self-contained page: figures first, then the words, then every number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..report.parts import Section, Table
from ..report.templates import environment, shared
from . import table, words
from .figures import of_kept_mass, of_scores
from .rows import Row

if TYPE_CHECKING:
    from .result import Diagnosis

GLOSSARY = """delta_s is the largest minus the smallest score over all visible keys of a query, delta_h the same over
its k best; the separation is the k-th best score minus the next. The in-degree is the largest number of queries that
keep one key, beta the same over k. xi_s and xi_h bound how far weights move per movement of the scores, at the median
query; they are called vacuous where for half of the queries or more they are no smaller than what holds for any
softmax: 1/2, and where top-k may exchange keys also 1 / separation. The ratio is that movement, measured under small
noise on the scores, at the median query."""


def render(found: Diagnosis) -> str:
    """The page's text: a function of the diagnosis alone."""
    sections = [
        Section("What would top-k keep?", "", of_kept_mass(found)),
        Section("How sharp is attention?", "", of_scores(found)),
        Section("In words", found.words()),
        Section("Numbers by layer", GLOSSARY, _tables(found, found.layers, "layers")),
        Section("Numbers by head", "", _tables(found, [row for row in found.rows if row["head"] is not None], "heads")),
    ]
    template = environment(Path(__file__).parent).get_template("diagnosis.html.jinja")
    return template.render(found=found, sections=sections, **shared(sections)).lstrip()


def _tables(found: Diagnosis, rows: Sequence[Row], name: str) -> list[Table]:
    folded = name == "heads"
    first = ("layer", "head") if folded else ("layer", "module", "attention", "queries")
    kept = Table(
        f"kept-mass-{name}",
        "Entropy, dispersion and kept mass for each k",
        (*first, "keys", "entropy", "of ln n", "delta_s", *(f"k = {k}" for k in found.ks)),
        [
            (
                *_first(row, folded),
                table.keys(row),
                table.number(row["entropy"]),
                words.percent(row["entropy_share"]),
                table.number(row["delta_s"]),
                *(words.percent(row[f"kept_mass_{k}"]) for k in found.ks),
            )
            for row in rows
        ],
        folded,
    )
    return [kept, *(_at(k, rows, name, k == words.typical_k(found)) for k in found.ks)]


def _first(row: Row, head: bool) -> tuple[object, ...]:
    if head:
        return row["layer"], row["head"]
    kind = f"{row['pattern']}{', cross' if row['cross'] else ''}"
    return row["layer"], row["name"], kind, f"{row['queries']:,}"


def _at(k: int, rows: Sequence[Row], name: str, described: bool) -> Table:
    columns = (
        "delta_h",
        "separation",
        "in-degree",
        "beta",
        "xi_s",
        "xi_h",
        "xi_h vacuous",
        "ratio full",
        "ratio top-k",
    )
    body = [
        (
            row["layer"],
            *(() if row["head"] is None else (row["head"],)),
            *table.details(row, k)[:-2],
            words.percent(row[f"vacuous_{k}"]),
            *table.details(row, k)[-2:],
        )
        for row in rows
    ]
    first = ("layer", "head") if name == "heads" else ("layer",)
    return Table(f"at-{k}-{name}", f"Top-k with k = {k}", (*first, *columns), body, name == "heads" or not described)
