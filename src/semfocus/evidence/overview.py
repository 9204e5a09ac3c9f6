"""One figure of what the paper is about: how many times faster than full attention, task by task and seed by seed.

Each dot is a seed's ratio of epochs, the large mark their geometric mean, the bar its 95 % interval (of that comparison
alone). A triangle is a bound: some seeds of one side never got there, or were there before anybody looked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from ..lab.stats import NO_INTERVAL, Comparison
from ..lab.study import label_of
from ..patterns.banded import Banded
from ..patterns.block_local import BlockLocal
from ..patterns.full import Full
from ..patterns.top_k import TopK
from ..report.speed import comparison
from ..report.style import INK, MUTED, ArmStyle, style_of
from ..report.svg import as_svg, drawing
from .summary import Built, Summary, is_full_size

NAME = "overview.svg"
TITLE = "How many times faster than full attention"
STUDY = "convergence"
BASE = label_of(Full())
FOCUSED = label_of(TopK(5))
OTHERS = (label_of(Full(), 4.0), label_of(Banded(5)), label_of(BlockLocal(5)))
COLUMNS = 2
#: Inches: a row, what is above and below all rows, a column, and in it the labels and the plot; numbers take the rest.
ROW, ABOVE, BELOW = 0.16, 0.42, 0.4
WIDE, LABELS, PLOT = 4.8, 1.2, 2.2
#: Rows between two tasks.
GAP = 0.4
LIMITS = (0.2, 50.0)
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Row:
    """One comparison with full attention."""

    label: str
    found: Comparison
    style: ArmStyle
    tuned: bool = False
    impossible: bool = False

    def shown(self) -> str:
        """What stands beside it.

        >>> from semfocus.lab.stats import ConvergenceTimes, compare
        >>> never, late = (ConvergenceTimes("full", {0: t, 1: 8}, last_epoch=9) for t in (None, 4))
        >>> Row("full x 4", compare(never, late), ArmStyle("black")).shown()
        'at least 1.50 (2 seeds)'
        >>> Row("full x 4", compare(never, never), ArmStyle("black")).shown()
        'never there: 1 of 2 seeds'
        """
        found = self.found
        if self.impossible:
            return "cannot see enough"
        if found.bound == "not interpretable" and found.b.censored_count:
            return f"never there: {found.b.censored_count} of {len(found.seeds)} seeds"
        return found.shown().partition(" (there at")[0].replace(NO_INTERVAL, f" ({len(found.seeds)} seeds)")


def overview(summary: Summary) -> str | None:
    """The figure as SVG; None where the study has not run at the paper's size."""
    tasks = dict(_tasks(summary))
    if not tasks:
        return None
    share = -(-len(tasks) // COLUMNS)
    names = list(tasks)
    columns = [{name: tasks[name] for name in names[i : i + share]} for i in range(0, len(names), share)]
    lines = max(sum(len(rows) + 1 + GAP for rows in column.values()) for column in columns)
    width, height = WIDE * len(columns), ABOVE + ROW * lines + BELOW
    with drawing("overview"):
        canvas = Canvas(figsize=(width, height))
        for number, column in enumerate(columns):
            left = (number * WIDE + LABELS) / width
            axes = canvas.add_axes((left, BELOW / height, PLOT / width, ROW * lines / height))
            _column(axes, column, lines)
        canvas.text(0.12 / width, 1 - 0.2 / height, TITLE, weight="bold", size=10.5, va="center")
        # Text in ink needs paper, and who shows the file may have a dark page.
        return as_svg(canvas).replace("<defs>", '<rect width="100%" height="100%" fill="white"/>\n<defs>', 1)


def _tasks(summary: Summary) -> Iterator[tuple[str, list[Row]]]:
    for one in summary.built:
        if one.study == STUDY and is_full_size(one):
            for panel in one.results.panels:
                if rows := list(_rows(summary, one, panel)):
                    yield panel, rows


def _rows(summary: Summary, one: Built, panel: str) -> Iterator[Row]:
    arms = {arm.label: arm for arm in one.results.in_panel(panel)}
    for label in (FOCUSED, *OTHERS):
        if label in arms and BASE in arms and (found := comparison(arms[BASE], arms[label])) is not None:
            yield Row(label, found, style_of(arms[label].config), impossible=arms[label].impossible)
        tuned = summary.race(panel, "learning rate and scale tuned") if label == FOCUSED else None
        if tuned is not None and tuned.mean is not None:
            yield Row("both tuned", tuned.mean, style_of(tuned.b.config), tuned=True)


def _column(axes: Axes, tasks: dict[str, list[Row]], lines: float) -> None:
    y, ticks = 0.0, {}
    sides = axes.get_yaxis_transform()
    beside = sides + ScaledTranslation(7 / 72, 0, axes.figure.dpi_scale_trans)
    for task, rows in tasks.items():
        axes.text(0.12 / PLOT - LABELS / PLOT, y, task, transform=sides, va="center", weight="bold")
        for row in rows:
            y += 1
            _draw(axes, y, row)
            ticks[y] = row.label
            axes.text(1, y, row.shown(), transform=beside, va="center", color=INK if _is_drawn(row) else MUTED)
        y += 1 + GAP
    axes.axvline(1, color=MUTED, lw=1, zorder=1)
    axes.set_xscale("log")
    axes.set_xlim(*LIMITS)
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("times as fast", loc="right", labelpad=1)
    axes.set_ylim(lines - 0.4, -0.6)
    axes.set_yticks(list(ticks), list(ticks.values()), color=INK)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def _is_drawn(row: Row) -> bool:
    return not row.impossible and row.found.bound != "not interpretable"


def _draw(axes: Axes, y: float, row: Row) -> None:
    if not _is_drawn(row):
        return
    found, colour = row.found, row.style.colour
    seeds = _within(found.ratios)
    shifts = np.linspace(-0.25, 0.25, len(seeds)) if len(seeds) > 1 else np.zeros(1)
    axes.plot(seeds, y + shifts, "o", color=colour, ms=2.2, mew=0, alpha=0.35, zorder=2)
    if found.interval is not None:
        low, high = found.valid_limits  # 0 and infinity where censoring leaves no limit: the bar ends at the bound
        bar = _within([low or found.ratio, high if math.isfinite(high) else found.ratio])
        axes.plot(bar, [y, y], color=colour, lw=1.6, solid_capstyle="butt", zorder=3)
    mark = {"at least": ">", "at most": "<"}.get(found.bound, "D" if row.tuned else "o")
    face = "white" if row.tuned else colour
    axes.plot(_within([found.ratio]), [y], mark, color=face, markeredgecolor=colour, ms=4.6, mew=1.1, zorder=4)


def _within(values: Sequence[float]) -> list[float]:
    return [min(max(value, LIMITS[0]), LIMITS[1]) for value in values]
