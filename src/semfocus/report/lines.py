"""A plain line plot for studies: one line per arm over anything, the median thick and every seed faint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ..lab.results import ArmResult
from .parts import Figure, shortened
from .style import Entry, legend_of, styles_of
from .svg import LONGEST_TITLE, TITLE_AT, as_svg, drawing, plain_log, plot

Values = Sequence[Sequence[float | None]]  # one row per seed
#: Up to so many places are numbered one by one.
FEW_PLACES = 5


def line_figure(
    name: str,
    title: str,
    x_label: str,
    arms: Sequence[ArmResult],
    curves: Mapping[str, tuple[Sequence[float], Values]],
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> Figure | None:
    """``curves`` maps an arm's label to its places and, per seed, the values there; None where no arm has a value."""
    styles = styles_of(arms)
    rows: list[tuple[object, ...]] = []
    drawn = []
    with drawing(name):
        canvas, axes = plot(3.7, 2.4)
        canvas.subplots_adjust(left=0.15, right=0.97, top=0.88, bottom=0.18)
        for label, (places, values) in curves.items():
            table = np.array([[np.nan if v is None else v for v in row] for row in values], dtype=float)
            if table.size and not np.isnan(table).all():
                drawn.append(label)
                rows += _draw(axes, Entry(label, styles[label]), places, table)
        if not drawn:
            return None
        axes.set_title(shortened(title, LONGEST_TITLE), x=TITLE_AT)
        axes.set_xlabel(x_label, loc="right", labelpad=0)
        everywhere = sorted({x for label in drawn for x in curves[label][0]})
        if log_x:
            axes.set_xscale("log")
            plain_log(axes.xaxis)
        elif len(everywhere) <= FEW_PLACES:
            axes.set_xticks(everywhere)
        if log_y:
            axes.set_yscale("log")
            plain_log(axes.yaxis)
        svg = as_svg(canvas)
    legend = tuple(entry for entry in legend_of(arms, styles) if entry.label in drawn)
    return Figure(name, "", svg, ("arm", x_label, "median"), rows, legend)


def _draw(
    axes: Axes, entry: Entry, places: Sequence[float], table: NDArray[np.float64]
) -> list[tuple[str, float, float | None]]:
    """One arm, (seeds, places): every seed faint, the median, and the rows for its file."""
    style, key = entry.style, entry.key  # by the key the legend hides it
    for seed in table:
        axes.plot(places, seed, color=style.colour, lw=0.6, alpha=0.3, zorder=1, gid=f"{key}-seed")
    some = ~np.isnan(table).all(axis=0)
    middle = np.full(table.shape[1], np.nan)
    middle[some] = np.nanmedian(table[:, some], axis=0)
    axes.plot(places, middle, **style.line, markersize=3.5, gid=key)
    return [(entry.label, x, None if np.isnan(m) else float(m)) for x, m in zip(places, middle, strict=True)]
