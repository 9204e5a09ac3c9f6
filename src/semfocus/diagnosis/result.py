"""What ``diagnose`` returns."""

from __future__ import annotations

import csv
import io
import textwrap
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..extras import needed
from ..training.files import write_atomic
from . import table, words
from .candidates import Candidates
from .evidence import Evidence
from .rows import Row


@dataclass(frozen=True)
class Diagnosis:
    """The numbers of every layer and head. ``print`` it for a description in words.

    ``rows``: per layer one row for all its heads together (``head`` None), then one per head. Columns:

    - ``queries`` that count; ``keys``: visible ones per query, mean.
    - ``entropy`` of full attention's weights in nats, and ``entropy_share`` of ln n, that of equal weights; means.
    - ``delta_s``: dispersion max z - min z over the visible keys, median; ``delta_h_K`` over the K best.
    - ``separation_K``: K-th best score minus the next, median of the queries that see more than K keys.
    - ``kept_mass_K``: share of full attention's weight on the K best keys, mean; ``if_uniform_K``: the same for equal
      weights; ``drops_K``: share of the queries that see more than K keys.
    - ``in_degree_K``: most queries that keep one key; ``beta_K`` the same over K.
    - ``xi_s``, ``xi_h_K``: bounds on the movement of weights per movement of scores (``semfocus.theory``), for
      movements that do not raise the dispersion or lower the separation, median;
      ``vacuous_s``, ``vacuous_K``: share of queries whose bound says nothing (``is_vacuous``); ``ratio_s``,
      ``ratio_K``: that movement measured under small noise on the scores, median.
    """

    model: str
    rows: list[Row]
    ks: tuple[int, ...]
    notes: tuple[str, ...] = ()
    candidates: Candidates = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence.read)

    @cached_property
    def layers(self) -> list[Row]:
        """The rows of whole layers."""
        return [row for row in self.rows if row["head"] is None]

    def words(self) -> str:
        """What was found, in sentences; each paragraph says whether it is measured or predicted."""
        return "\n\n".join(words.paragraphs(self))

    def __str__(self) -> str:
        return "\n\n".join(textwrap.fill(paragraph, table.WIDTH) for paragraph in words.paragraphs(self))

    def table(self, heads: bool = True) -> str:
        """The numbers as plain text, at most 100 columns wide."""
        return table.text(self, heads)

    def to_csv(self, path: str | Path) -> Path:
        """Every row with every column."""
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in self.rows)
        return _written(path, buffer.getvalue())

    def to_html(self, path: str | Path) -> Path:
        """One page that needs nothing beside it: figures, words and tables. Needs ``semfocus[lab]``."""
        with needed("to_html", "lab"):
            from .page import render
        return _written(path, render(self))


def _written(path: str | Path, text: str) -> Path:
    write_atomic(Path(path), text.encode())
    return Path(path)
