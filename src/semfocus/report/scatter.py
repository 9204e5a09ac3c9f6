"""A scatter plot of points that belong to tasks, each task with a marker of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ..lab.predict import Cell
from .parts import Figure, shortened
from .style import ArmStyle, Entry
from .svg import as_svg, drawing, plot

#: Colours safe for colour-blind readers (Okabe and Ito), and as many markers.
LOOKS = (
    ("#0072b2", "o"),
    ("#d55e00", "s"),
    ("#009e73", "^"),
    ("#cc79a7", "D"),
    ("#e69f00", "v"),
    ("#56b4e9", "P"),
    ("#6b7078", "X"),
    ("#1a1a1a", "*"),
)


def scatter_figure(name: str, x_label: str, y_label: str, cells: Sequence[Cell]) -> Figure | None:
    """None without points."""
    if not cells:
        return None
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    legend = []
    with drawing(name):
        canvas, axes = plot(3.7, 2.5)
        canvas.subplots_adjust(left=0.15, right=0.97, top=0.89, bottom=0.18)
        for number, task in enumerate(tasks):
            colour, marker = LOOKS[number % len(LOOKS)]
            legend.append(Entry(task, ArmStyle(colour, marker=marker, weight=0.0)))
            points = [cell for cell in cells if cell.task == task]
            key = legend[-1].key
            axes.plot([p.x for p in points], [p.y for p in points], marker, color=colour, ms=5, alpha=0.85, gid=key)
            for point in points:
                place = (point.x, point.y)
                label = shortened(point.label, 12)
                note = axes.annotate(label, place, xytext=(4, 3), textcoords="offset points", fontsize=6.5, alpha=0.8)
                note.set_gid(f"{key}-label")
        axes.set_title(shortened(x_label, 46))
        axes.set_ylabel(y_label, loc="top")
        axes.margins(0.12)
        svg = as_svg(canvas)
    rows = [(cell.task, cell.label, cell.x, cell.y) for cell in cells]
    return Figure(name, "", svg, ("task", "arm", x_label, y_label), rows, tuple(legend))
