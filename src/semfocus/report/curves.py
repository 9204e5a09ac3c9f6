"""Learning curves: per panel the training and held-out accuracy and the training loss, over the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from numpy.typing import NDArray

from ..lab.baselines import baselines
from ..lab.results import LEVEL, ArmResult, Results
from ..lab.stats import band
from .parts import Figure, Section, percent, shortened, slug
from .style import INK, MOST_ARMS, MUTED, ArmStyle, Entry, legend_of
from .svg import TITLE_AT, as_svg, drawing, plot

#: More points than pixels help nobody.
POINTS = 150
COLUMNS = {
    "train_accuracy": "training accuracy",
    "heldout_accuracy": "held-out accuracy",
    "train_loss": "training loss",
}
TEXT = """A line is the median over seeds, the band around it holds the middle half of them, and every seed is drawn
faintly. Dotted lines are what can be had without understanding; the dashed one is the level of convergence, {level}.
Point at a name to single it out; untick it to hide its line (the faint seeds, which are one image, are hidden too)."""


@dataclass(frozen=True, eq=False)
class Curve:
    """What is drawn of one arm: epochs, median and quartiles, and every seed (NaN where it has no value)."""

    label: str
    epochs: NDArray[np.int64]
    median: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    seeds: Mapping[int, NDArray[np.float64]]
    diverged: tuple[int, ...]


def section(results: Results, styles: Mapping[str, ArmStyle]) -> Section:
    parts = []
    for number, panel in enumerate(results.panels, 1):
        arms = results.in_panel(panel)
        drawn = COLUMNS if len(arms) <= MOST_ARMS else ()
        figures = [_figure(slug("curves", number, column, panel), arms, column, styles) for column in drawn]
        parts.append(Section(panel, _facts(arms), [figure for figure in figures if figure is not None]))
    return Section("Learning curves", TEXT.format(level=percent(LEVEL, 0)), parts)


def _facts(arms: Sequence[ArmResult]) -> str:
    """What a reader has to know of a panel: its size, and which seeds broke off."""
    config, runs = arms[0].config, sum(len(arm.runs) for arm in arms)
    size = f"{config.length} tokens, {config.model.blocks} blocks, {config.train.epochs} epochs"
    sentences = [f"{size}; {len(arms)} arms, {runs} runs."]
    if len(arms) > MOST_ARMS:
        sentences.append("So many arms are not drawn; they are in the tables.")
    diverged = [f"{arm.label}, seed {run.seed}" for arm in arms for run in arm.runs if run.status == "diverged"]
    if diverged:
        sentences.append(f"Diverged (marked with a cross): {'; '.join(diverged)}.")
    counts = {arm.label: len(arm.runs) - len(arm.over) for arm in arms}
    if any(counts.values()):
        short = ", ".join(f"{label} ({count})" for label, count in counts.items() if count)
        sentences.append(f"Runs that are not over: {short}.")
    return " ".join(sentences)


def curve_of(arm: ArmResult, column: str) -> Curve | None:
    """An arm's values, thinned; None before any of its runs has begun."""
    epochs, curves = arm.curves(column)
    if not curves:
        return None
    kept = np.unique(np.linspace(0, len(epochs) - 1, min(POINTS, len(epochs))).round().astype(int))
    seeds = {}
    for seed, values in curves.items():
        padded = np.full(len(epochs), np.nan)
        padded[: len(values)] = np.asarray(values, float)
        seeds[seed] = padded[kept]
    found = band({seed: values.tolist() for seed, values in seeds.items()})
    return Curve(
        label=arm.label,
        epochs=np.asarray(epochs)[kept],
        median=found.median,
        lower=found.lower,
        upper=found.upper,
        seeds=seeds,
        diverged=tuple(run.seed for run in arm.runs if run.status == "diverged"),
    )


def _figure(name: str, arms: Sequence[ArmResult], column: str, styles: Mapping[str, ArmStyle]) -> Figure | None:
    curves = [curve for arm in arms if (curve := curve_of(arm, column)) is not None]
    if not curves:
        return None
    legend = legend_of(arms, styles)
    with drawing(name):
        canvas, axes = plot(4.1, 2.75)
        canvas.subplots_adjust(left=0.125, right=0.962, top=0.885, bottom=0.14)
        for i, (curve, entry) in enumerate((c, e) for c in curves for e in legend if e.label == c.label):
            _draw(axes, curve, entry, i, len(curves))
        _frame(axes, arms, column, curves)
        svg = as_svg(canvas)
    columns, rows = _rows(curves)
    return Figure(name, "", svg, columns, rows, legend)


def _draw(axes: Axes, curve: Curve, entry: Entry, number: int, of: int) -> None:
    style = entry.style
    faint = "#808080" if style.colour == INK else style.colour  # pixels cannot follow the page's colour of text
    lines = [np.column_stack([curve.epochs, values]) for values in curve.seeds.values()]
    axes.add_collection(LineCollection(lines, colors=faint, linewidths=0.6, alpha=0.45 if of <= 6 else 0.2, zorder=-1))
    if len(curve.seeds) > 1:
        shade = 0.16 if of <= 6 else 0.05
        area = axes.fill_between(
            curve.epochs, curve.lower, curve.upper, color=style.colour, alpha=shade, lw=0, zorder=1.5
        )
        area.set_gid(f"{entry.key}-band")
    # Six markers a line, those of different arms at different epochs.
    step = max(len(curve.epochs) // 6, 1)
    (line,) = axes.plot(
        curve.epochs,
        curve.median,
        **style.line,
        markersize=4.2,
        markevery=((number * step) // max(of, 1) % step, step),
        zorder=3,
    )
    line.set_gid(entry.key)
    for seed in curve.diverged:
        _mark_divergence(axes, curve, seed, style)


def _mark_divergence(axes: Axes, curve: Curve, seed: int, style: ArmStyle) -> None:
    values = curve.seeds.get(seed)
    if values is not None and np.isfinite(values).any():
        last = int(np.flatnonzero(np.isfinite(values))[-1])
        axes.plot(
            curve.epochs[last], values[last], "X", color=style.colour, markersize=6, markeredgecolor=MUTED, zorder=4
        )


def _frame(axes: Axes, arms: Sequence[ArmResult], column: str, curves: Sequence[Curve]) -> None:
    axes.set_title(f"{shortened(arms[0].panel, 30)}, {COLUMNS[column]}", x=TITLE_AT)
    axes.set_xlabel("epoch", loc="right", labelpad=1)
    axes.set_xlim(0, arms[0].epochs)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    values = np.concatenate([v[np.isfinite(v)] for c in curves for v in (*c.seeds.values(), c.median)])
    if column.endswith("accuracy"):
        _accuracies(axes, baselines(arms[0].config), values)
    else:
        _losses(axes, values)


def _accuracies(axes: Axes, known: Mapping[str, float], values: NDArray[np.float64]) -> None:
    low = min([*known.values(), *values.tolist()])
    axes.set_ylim(max(low - 0.06, -0.02), 1.02)
    axes.yaxis.set_major_locator(MultipleLocator(0.1 if low > 0.4 else 0.2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value, 0)))
    axes.axhline(LEVEL, color=MUTED, lw=0.8, ls=(0, (4, 3)), zorder=2)
    for number, (name, value) in enumerate(known.items()):
        axes.axhline(value, color=MUTED, lw=0.8, ls=(0, (1, 2)), zorder=2)
        # Two lines close together: the upper one's name stands above it, the lower one's below.
        down = any(0 < other - value < 0.07 for other in known.values())
        offset, anchor = (-2, "top") if down else (2, "bottom")
        axes.annotate(
            f"{name}, {percent(value, 0)}",
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(-2, offset),
            textcoords="offset points",
            ha="right",
            va=anchor,
            fontsize=7,
            color=MUTED,
            zorder=5,
            gid=f"note-{number}",
        )


def _losses(axes: Axes, values: NDArray[np.float64]) -> None:
    """Logarithmic where the losses span more than a decade."""
    positive = values[values > 0]
    if positive.size and positive.max() > 10 * positive.min():
        axes.set_yscale("log")
        axes.set_ylim(max(float(positive.min()), 1e-6 * float(positive.max())) / 1.2, float(positive.max()) * 1.2)
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}".replace("e-0", "e-")))


def _rows(curves: Sequence[Curve]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    seeds = sorted({seed for curve in curves for seed in curve.seeds})
    columns = ("arm", "epoch", "median", "lower quartile", "upper quartile", *(f"seed {seed}" for seed in seeds))
    rows: list[tuple[object, ...]] = []
    for curve in curves:
        series = [curve.median, curve.lower, curve.upper, *(curve.seeds.get(seed) for seed in seeds)]
        for i, epoch in enumerate(curve.epochs):
            rows.append((curve.label, int(epoch), *(_number(values, i) for values in series)))
    return columns, rows


def _number(values: NDArray[np.float64] | None, i: int) -> float | None:
    return None if values is None or not np.isfinite(values[i]) else float(values[i])
