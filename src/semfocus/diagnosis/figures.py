"""The figures of a diagnosis: kept mass against k, and one number per layer and head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from ..report.parts import Figure
from ..report.style import COLOURS, INK, MUTED, ArmStyle, Entry
from ..report.svg import as_svg, drawing, plot
from . import words
from .rows import Row

if TYPE_CHECKING:
    from .result import Diagnosis

HUES = [colour for family, colour in COLOURS.items() if family not in ("full", "top_k")]  # those mean the patterns
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
EQUAL = Entry("equal weights (mean over layers)", ArmStyle(MUTED, dash=(2, 2), weight=1.2))
FULL = Entry("full attention", ArmStyle(INK, marker="o"))
#: Numbers along an axis of k, at most.
TICKS = 8


def of_kept_mass(found: Diagnosis) -> list[Figure]:
    k = words.typical_k(found)
    title = f"weight on the {k} best keys, by head"
    return [kept_mass(found), by_layer(found, "kept-mass-by-head", title, {_top(k): f"kept_mass_{k}"}, share=True)]


def of_scores(found: Diagnosis) -> list[Figure]:
    k = words.typical_k(found)
    return [
        by_layer(found, "dispersion", "dispersion of the scores (median)", {FULL: "delta_s", _top(k): f"delta_h_{k}"}),
        by_layer(found, "entropy", "entropy, of that of equal weights", {FULL: "entropy_share"}, share=True),
        by_layer(found, "in-degree", "largest in-degree over k (beta)", {_top(k): f"beta_{k}"}),
    ]


def _top(k: int) -> Entry:
    return Entry(f"top-k({k})", ArmStyle(COLOURS["top_k"], marker="s"))


def kept_mass(found: Diagnosis) -> Figure:
    """One line per layer; dashed what equal weights would hold."""
    rows: list[tuple[object, ...]] = []
    legend = []
    with drawing("kept-mass"):
        canvas, axes = plot(3.7, 2.5)
        canvas.subplots_adjust(left=0.13, right=0.97, top=0.88, bottom=0.17)
        axes.axhline(words.ENOUGH, color=MUTED, lw=0.7)
        equal = [words.pooled(found, f"if_uniform_{k}") for k in found.ks]
        _line(axes, EQUAL, found.ks, equal)
        weight = 1.5 if len(found.layers) <= len(HUES) else 0.9
        for number, row in enumerate(found.layers):
            hue, marker = HUES[number % len(HUES)], MARKERS[number // len(HUES) % len(MARKERS)]
            entry = Entry(f"layer {row['layer']}", ArmStyle(hue, marker=marker, weight=weight))
            values = [row[f"kept_mass_{k}"] for k in found.ks]
            _line(axes, entry, found.ks, values)
            legend.append(entry)
            rows += [(row["layer"], row["name"], k, value) for k, value in zip(found.ks, values, strict=True)]
        axes.set_title("weight on the k best keys (mean)")
        axes.set_xlabel("k", loc="right", labelpad=0)
        _axis_of_k(axes, found.ks)
        _percent(axes)
        svg = as_svg(canvas)
    caption = f"The thin line is {100 * words.ENOUGH:.0f} %."
    return Figure("kept-mass", caption, svg, ("layer", "name", "k", "kept mass"), rows, (*legend, EQUAL))


def by_layer(found: Diagnosis, name: str, title: str, columns: dict[Entry, str], share: bool = False) -> Figure:
    """A dot per head, a line through the values of whole layers."""
    rows: list[tuple[object, ...]] = []
    with drawing(name):
        canvas, axes = plot(3.7, 2.5)
        canvas.subplots_adjust(left=0.13, right=0.97, top=0.88, bottom=0.17)
        for entry, column in columns.items():
            heads = [row for row in found.rows if row["head"] is not None and row[column] is not None]
            dots = axes.scatter(
                [row["layer"] + _aside(row, found) for row in heads],
                [row[column] for row in heads],
                s=13,
                color=entry.style.colour,
                marker=entry.style.marker,
                alpha=0.6,
                linewidths=0,
            )
            dots.set_gid(entry.key)
            line = Entry(entry.label, replace(entry.style, marker="", weight=1.2))
            _line(axes, line, [row["layer"] for row in found.layers], [row[column] for row in found.layers])
            rows += [(entry.label, row["layer"], row["name"], row["head"], row[column]) for row in found.rows]
        axes.set_title(title)
        axes.set_xlabel("layer", loc="right", labelpad=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlim(-0.5, len(found.layers) - 0.5)
        if share:
            _percent(axes)
        else:
            axes.set_ylim(bottom=0)
        svg = as_svg(canvas)
    caption = "Dots are heads, the first to the left; the line joins the layers, all heads together."
    return Figure(name, caption, svg, ("of", "layer", "name", "head", title), rows, tuple(columns))


def _aside(row: Row, found: Diagnosis) -> float:
    """Heads stand beside one another, from left to right."""
    heads = sum(other["layer"] == row["layer"] for other in found.rows) - 1
    place: float = 0.5 * (row["head"] + 0.5) / heads - 0.25
    return place


def _line(axes: Axes, entry: Entry, x: Sequence[float], y: Sequence[float | None]) -> None:
    style = entry.style
    known = [math.nan if value is None else value for value in y]
    (line,) = axes.plot(
        x, known, color=style.colour, ls=style.linestyle, lw=style.weight, marker=style.marker or None, markersize=3.5
    )
    line.set_gid(entry.key)


def _axis_of_k(axes: Axes, ks: Sequence[int]) -> None:
    if len(ks) > 1:
        axes.set_xscale("log", base=2)
    step = -(-len(ks) // TICKS)
    axes.set_xticks(list(ks[::step]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda k, _: f"{k:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _percent(axes: Axes) -> None:
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
