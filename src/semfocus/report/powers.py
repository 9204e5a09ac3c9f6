"""Times against a size, both logarithmic: a power law is a straight line, and its exponent the slope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from ..lab.results import ArmResult
from .parts import Figure, shortened
from .style import Entry, legend_of, styles_of
from .svg import as_svg, drawing, plain_log, plot

#: Per seed and size: a time, or None where it never came.
Times = Mapping[int, Mapping[int, float | None]]
#: Marks of different arms stand side by side.
APART = 1.025


def power_figure(
    name: str, title: str, x_label: str, arms: Sequence[ArmResult], times: Mapping[str, Times], last: Mapping[int, int]
) -> Figure | None:
    """One line per label of ``times``; a time that never came is an open triangle at the ``last`` epoch of its size."""
    styles = styles_of(arms)
    legend = tuple(entry for entry in legend_of(arms, styles) if times.get(entry.label))
    if not legend:
        return None
    rows: list[tuple[object, ...]] = []
    with drawing(name):
        canvas, axes = plot(4.6, 3.1)
        canvas.subplots_adjust(left=0.1, right=0.96, top=0.9, bottom=0.16)
        for number, entry in enumerate(legend):
            rows += _draw(axes, entry, times[entry.label], last, APART ** (number - (len(legend) - 1) / 2))
        _frame(axes, title, x_label, sorted(last))
        svg = as_svg(canvas)
    return Figure(name, "", svg, ("arm", x_label, "seed", "epochs"), rows, legend)


def _draw(axes: Axes, entry: Entry, times: Times, last: Mapping[int, int], beside: float) -> list[tuple[object, ...]]:
    """One arm: every seed faint, the median, and how many never got there."""
    style, sizes = entry.style, sorted(last)
    # A time that never came is larger than any other; one that is not known yet is no time at all.
    table = np.array([[_number(times[seed], size) for size in sizes] for seed in times])  # (seeds, sizes)
    for seed in table:
        axes.plot(sizes, np.where(np.isfinite(seed), seed, np.nan), color=style.colour, lw=0.6, alpha=0.3, zorder=1)
    known = ~np.isnan(table).all(axis=0)
    middle = np.full(len(sizes), np.nan)
    middle[known] = np.nanquantile(table[:, known], 0.5, axis=0, method="inverted_cdf")
    drawn = np.where(np.isfinite(middle), middle, np.nan)
    (line,) = axes.plot(sizes, drawn, **(style.line | {"marker": style.marker or "."}), markersize=5, zorder=3)
    line.set_gid(entry.key)
    for size, never in zip(sizes, np.isposinf(table).sum(axis=0), strict=True):
        if never:
            axes.plot(size * beside, last[size], "^", color="none", mec=style.colour, ms=5, mew=0.9, zorder=4)
            axes.annotate(
                str(never),
                (size * beside, last[size]),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=style.colour,
            )
    return [(entry.label, size, seed, time) for seed, by_size in times.items() for size, time in by_size.items()]


def _number(by_size: Mapping[int, float | None], size: int) -> float:
    if size not in by_size:
        return np.nan
    time = by_size[size]
    return np.inf if time is None else time


def _frame(axes: Axes, title: str, x_label: str, sizes: Sequence[int]) -> None:
    axes.set_title(shortened(title, 60))
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_log(axes.yaxis)
    plain_log(axes.xaxis)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.set_xlabel(x_label, loc="right", labelpad=2)
    axes.set_xlim(sizes[0] / 1.08, sizes[-1] * 1.08)
    axes.margins(y=0.1)
