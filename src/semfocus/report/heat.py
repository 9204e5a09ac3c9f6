"""Pictures of surfaces: the same square for several models, side by side, on one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from .parts import Figure, shortened
from .style import MUTED
from .svg import as_svg, drawing, plain_log

Surface = tuple[str, NDArray[np.float64], NDArray[np.float64]]  # title, offsets (n,), values (n, n)


def heat_figure(name: str, caption: str, surfaces: Sequence[Surface]) -> Figure:
    """Values on squares, drawn as pixels with a common logarithmic scale."""
    values = np.concatenate([losses.ravel() for _, _, losses in surfaces])
    values = values[np.isfinite(values) & (values > 0)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.1, 1.0)
    norm = LogNorm(max(low, 1e-4 * high), high if high > low else 2 * low)
    rows: list[tuple[object, ...]] = []
    with drawing(name):
        canvas = Canvas(figsize=(2.3 * len(surfaces) + 0.7, 2.5))
        plots = np.atleast_1d(canvas.subplots(1, len(surfaces)))
        canvas.subplots_adjust(left=0.06, right=0.86, top=0.86, bottom=0.12, wspace=0.25)
        for axes, (title, offsets, losses) in zip(plots, surfaces, strict=True):
            edge = float(offsets[-1])
            shown = np.clip(losses, norm.vmin, norm.vmax)
            image = axes.imshow(
                shown.T,
                origin="lower",
                extent=(-edge, edge, -edge, edge),
                norm=norm,
                cmap="cividis",
                interpolation="nearest",
            )
            axes.plot(0, 0, "+", color="white", ms=5, mew=0.8)
            axes.set_title(shortened(title, 26))
            axes.grid(visible=False)
            axes.set_xticks((-edge, 0, edge))
            axes.set_yticks((-edge, 0, edge))
            rows += [
                (title, float(offsets[i]), float(offsets[j]), float(losses[i, j]))
                for i in range(len(offsets))
                for j in range(len(offsets))
            ]
        bar = canvas.colorbar(image, cax=canvas.add_axes((0.89, 0.12, 0.015, 0.74)))
        bar.outline.set_visible(False)
        plain_log(bar.ax.yaxis)
        bar.ax.tick_params(labelsize=7, labelcolor=MUTED)
        svg = as_svg(canvas)
    return Figure(name, caption, svg, ("model", "along the first direction", "along the second", "loss"), rows)
