"""The regions of (c1, c2) in which the theory's comparisons favour top-k, with measured points among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..theory import regions
from .parts import Figure
from .style import INK, MUTED
from .svg import as_svg, drawing, plain_log, plot

Point = tuple[str, float, float, float, float]  # task, delta_s, c1, c2, beta
DELTAS = (0.25, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
BETA = 4.0
C1 = np.linspace(0.005, 1.0, 200)
C2 = np.logspace(-5, 1, 200)


def region_figures(points: Sequence[Point]) -> list[Figure]:
    """One drawing for each comparison."""
    return [_region(number, name, points) for number, name in enumerate("WX")]


def _region(number: int, name: str, points: Sequence[Point]) -> Figure:
    rows: list[tuple[object, ...]] = []
    with drawing(f"region-{name}"):
        canvas, axes = plot(3.7, 2.9)
        canvas.subplots_adjust(left=0.21, right=0.93, top=0.89, bottom=0.16)
        for place, delta in enumerate(DELTAS):
            holds = regions(delta, BETA, C1[None, :], C2[:, None])[number]  # (c2, c1)
            edge = np.where(holds.any(1), C1[holds.shape[1] - 1 - holds[:, ::-1].argmax(1)], np.nan)
            shade = 0.25 + 0.75 * place / (len(DELTAS) - 1)
            axes.plot(edge, C2, color=INK, lw=1.1, alpha=shade)
            rows += [
                (f"delta_s = {delta:g}", float(x), float(y)) for x, y in zip(edge, C2, strict=True) if not np.isnan(x)
            ]
            start = int(np.argmax(~np.isnan(edge)))  # the lower end, where the lines are apart
            if not np.isnan(edge[start]):
                axes.annotate(
                    f"{delta:g}",
                    (edge[start], C2[start]),
                    xytext=(3, 3),
                    textcoords="offset points",
                    color=MUTED,
                    fontsize=7,
                )
        for task, delta_s, c1, c2, beta in points:
            axes.plot(c1, max(c2, C2[0]), "x", color="#d55e00", ms=3.5, mew=0.8, alpha=0.6)
            rows.append((f"{task}: delta_s = {delta_s:.4g}, beta = {beta:.4g}", c1, c2))
        axes.set_yscale("log")
        plain_log(axes.yaxis)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(C2[0], C2[-1])
        axes.set_xlabel("c1 = delta_h / delta_s", loc="right", labelpad=0)
        axes.set_ylabel("c2 = separation / delta_s", loc="top")
        axes.set_title(f"{name}-comparison: holds to the left of its line")
        svg = as_svg(canvas)
    return Figure(f"region-{name.lower()}", "", svg, ("what", "c1", "c2"), rows)
