"""Convergence times drawn: every seed as a dot, and the share of seeds that have not converged yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from ..lab.results import LEVEL, ArmResult, Results, Split
from ..lab.stats import ConvergenceTimes
from .parts import Figure, Section, percent, shortened, slug
from .style import INK, MOST_ARMS, MUTED, ArmStyle, Entry, legend_of
from .svg import TITLE_AT, as_svg, drawing, plot

SPLITS = {"train": "Training", "heldout": "Held-out"}
#: Letters of a label beside an axis.
LONGEST = 26
GLANCE = """Each dot is one seed: the first epoch at which {level} of the examples are classified correctly. The bar is
the median, which stands on the right. Open triangles are seeds that did not get there within the epochs they had;
crosses are runs that diverged. The scale is logarithmic: equal distances are equal ratios."""
SURVIVAL = """The share of seeds that have not yet reached {level} (Kaplan-Meier). Lower and further left is faster.
Lines that coincide are drawn side by side."""


def glance(results: Results, styles: Mapping[str, ArmStyle]) -> Section:
    """Epochs to convergence, seed by seed."""
    figures = [
        figure
        for number, panel in enumerate(results.panels, 1)
        if (figure := _dots(slug("epochs", number, panel), panel, results.in_panel(panel), styles)) is not None
    ]
    return Section(
        f"Epochs to {percent(LEVEL, 0)} of the training examples", GLANCE.format(level=percent(LEVEL, 0)), figures
    )


def _dots(name: str, panel: str, arms: Sequence[ArmResult], styles: Mapping[str, ArmStyle]) -> Figure | None:
    times = [(arm, found) for arm in arms if (found := arm.times()) is not None]
    if not times or len(arms) > MOST_ARMS:
        return None
    rows: list[tuple[object, ...]] = []
    with drawing(name):
        inches = 0.75 + 0.21 * len(times)
        canvas, axes = plot(4.1, inches)
        longest = max(min(len(arm.label), LONGEST) for arm, _ in times)
        left = 0.03 + 0.0162 * longest
        canvas.subplots_adjust(left=left, right=0.865, top=1 - 0.3 / inches, bottom=0.34 / inches)
        for y, (_, found) in enumerate(times):
            rows += _dot_row(axes, y, found, styles[found.name])
        _dot_frame(axes, panel, times)
        svg = as_svg(canvas)
    return Figure(name, "", svg, ("arm", "seed", "epoch", "outcome"), rows)


def _dot_row(axes: Axes, y: int, times: ConvergenceTimes, style: ArmStyle) -> list[tuple[object, ...]]:
    """One arm: its dots, its median, and the rows for its file."""
    rows: list[tuple[object, ...]] = []
    shifts = np.linspace(-0.22, 0.22, len(times.seeds)) if len(times.seeds) > 1 else np.zeros(1)
    for shift, seed in zip(shifts, times.seeds, strict=True):
        epoch = times.converged(seed)
        outcome = "diverged" if seed in times.diverged else "converged" if epoch is not None else "beyond"
        x = times.last_epoch * 1.0 if epoch is None else max(epoch, times.resolution)
        marker = {"converged": "o", "beyond": ">", "diverged": "X"}[outcome]
        face = style.colour if outcome != "beyond" else "none"
        edge = style.colour if outcome != "diverged" else MUTED
        axes.plot(
            x, y + shift, marker, color=face, markeredgecolor=edge, markersize=4, mew=0.8, alpha=0.75, clip_on=False
        )
        rows.append((times.name, seed, epoch, outcome))
    median = times.median()
    if median is not None:
        x = max(median, times.resolution)
        axes.plot([x, x], [y - 0.36, y + 0.36], color=style.colour, lw=2.2, solid_capstyle="butt", zorder=4)
    beside = axes.get_yaxis_transform() + ScaledTranslation(9 / 72, 0, axes.figure.dpi_scale_trans)
    axes.text(1, y, times.shown(), transform=beside, va="center", color=INK)
    return rows


def _dot_frame(axes: Axes, panel: str, times: Sequence[tuple[ArmResult, ConvergenceTimes]]) -> None:
    first = times[0][1]
    axes.set_title(shortened(panel, 44))
    axes.set_xscale("log")
    earliest = max(min(min(found.restricted) for _, found in times), first.resolution)
    axes.set_xlim(min(earliest * 0.8, first.last_epoch / 2.2), first.last_epoch * 1.03)
    span = first.last_epoch / earliest
    steps = (1.0,) if span > 60 else (1.0, 2.0, 5.0) if span > 6 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("epoch", loc="right", labelpad=0)
    axes.set_ylim(len(times) - 0.4, -0.6)
    axes.set_yticks(range(len(times)), [shortened(arm.label, LONGEST) for arm, _ in times], color=INK)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)


def survival(results: Results, styles: Mapping[str, ArmStyle]) -> Section:
    """Kaplan-Meier curves, training and held-out."""
    parts: list[Section | Figure] = []
    for split in get_args(Split):
        figures = [
            figure
            for number, panel in enumerate(results.panels, 1)
            if (figure := _steps(slug("survival", number, split, panel), results.in_panel(panel), split, styles))
            is not None
        ]
        # One panel: its two figures side by side. Many: all of one kind together.
        parts += figures if len(results.panels) == 1 else [Section(f"{SPLITS[split]} examples", "", figures)]
    return Section("Not yet converged", SURVIVAL.format(level=percent(LEVEL, 0)), parts)


def _steps(name: str, arms: Sequence[ArmResult], split: Split, styles: Mapping[str, ArmStyle]) -> Figure | None:
    times = [found for arm in arms if (found := arm.times(split)) is not None]
    if not times or len(arms) > MOST_ARMS:
        return None
    legend = legend_of(arms, styles)
    entries = {entry.label: entry for entry in legend}
    rows: list[tuple[object, ...]] = []
    with drawing(name):
        canvas, axes = plot(4.1, 2.45)
        canvas.subplots_adjust(left=0.13, right=0.962, top=0.87, bottom=0.16)
        for i, found in enumerate(times):
            rows += _step(axes, found, entries[found.name], (i - (len(times) - 1) / 2) * min(0.9, 5 / len(times)))
        axes.set_title(f"{shortened(arms[0].panel, 30)}, {SPLITS[split].lower()} examples", x=TITLE_AT)
        axes.set_xlabel("epoch", loc="right", labelpad=1)
        axes.set_xlim(0, times[0].last_epoch)
        axes.set_ylim(-0.05, 1.05)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        svg = as_svg(canvas)
    return Figure(name, "", svg, ("arm", "epoch", "share not converged"), rows, legend)


def _step(axes: Axes, times: ConvergenceTimes, entry: Entry, points: float) -> list[tuple[object, ...]]:
    """One arm's curve, moved by a point or two so that coinciding lines can be seen."""
    curve, style = times.survival(), entry.style
    moved = axes.transData + ScaledTranslation(0, points / 72, axes.figure.dpi_scale_trans)
    (line,) = axes.step(
        curve.epochs, curve.surviving, where="post", **style.line, markersize=4, transform=moved, zorder=3
    )
    line.set_gid(entry.key)
    return [(times.name, epoch, share) for epoch, share in zip(curve.epochs, curve.surviving, strict=True)]
