"""A scatter plot of points in groups (tasks, mostly), each group with a marker of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from ..lab.predict import Cell
from .parts import Figure, shortened
from .style import ArmStyle, Entry
from .svg import LONGEST_TITLE, as_svg, drawing, plain_log, plot

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


#: Size of the points' labels; and where they may stand, in points of type from their own, best first.
FONT = 6.5
OFFSETS = ((4, 3), (-4, 3), (4, -8), (-4, -8), (4, 9), (-4, 9), (4, -14), (-4, -14))
#: On a logarithmic axis that has to show 0, everything below this is linear.
LINEAR_BELOW = 0.05


def scatter_figure(
    name: str,
    x_label: str,
    y_label: str,
    cells: Sequence[Cell],
    *,
    title: str = "",
    size: tuple[float, float] = (3.7, 2.5),
    log: bool = False,
) -> Figure | None:
    """None without points. With ``log`` both axes are logarithmic, and x may be 0."""
    if not cells:
        return None
    legend = []
    with drawing(name):
        canvas, axes = plot(*size)
        canvas.subplots_adjust(left=0.15, right=0.97, top=0.89, bottom=0.18)
        for number, task in enumerate(dict.fromkeys(cell.task for cell in cells)):
            colour, marker = LOOKS[number % len(LOOKS)]
            legend.append(Entry(task, ArmStyle(colour, marker=marker, weight=0.0)))
            points = [cell for cell in cells if cell.task == task]
            key = legend[-1].key
            axes.plot([p.x for p in points], [p.y for p in points], marker, color=colour, ms=5, alpha=0.85, gid=key)
        if log:
            axes.set_xscale("symlog", linthresh=LINEAR_BELOW)
            axes.set_yscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            plain_log(axes.yaxis)
        else:
            axes.locator_params(axis="x", nbins=6)
        axes.margins(0.12)
        _name_points(axes, canvas.dpi, cells, {entry.label: entry.key for entry in legend})
        axes.set_title(shortened(title or x_label, LONGEST_TITLE))
        if title:
            axes.set_xlabel(x_label, loc="right", labelpad=0)
        axes.set_ylabel(y_label, loc="top")
        svg = as_svg(canvas)
    rows = [(cell.task, cell.label, cell.x, cell.y) for cell in cells]
    return Figure(name, "", svg, ("task", "arm", x_label, y_label), rows, tuple(legend))


def _name_points(axes: Axes, dpi: float, cells: Sequence[Cell], keys: Mapping[str, str]) -> None:
    """A label beside each point, where it covers fewest other labels and points and stays inside the plot."""
    axes.autoscale_view()  # settles where points are
    pixels = dpi / 72  # to a point of type
    places = axes.transData.transform([(cell.x, cell.y) for cell in cells])
    taken = [Bbox.from_extents(x - 3, y - 3, x + 3, y + 3) for x, y in places]
    for cell, (x, y) in zip(cells, places, strict=True):
        label = shortened(cell.label, 20)
        width, height = 0.6 * FONT * len(label) * pixels, FONT * pixels
        tried: list[tuple[float, int, Bbox]] = []
        for right, above in OFFSETS:
            left = x + right * pixels - (width if right < 0 else 0)
            box = Bbox.from_bounds(left, y + above * pixels, width, height)
            outside = max(box.x1 - axes.bbox.x1, axes.bbox.x0 - box.x0, 0)
            tried.append((box.count_overlaps(taken) + outside, len(tried), box))
        _, chosen, box = min(tried, key=lambda one: one[:2])
        taken.append(box)
        right, above = OFFSETS[chosen]
        note = axes.annotate(
            label, (cell.x, cell.y), xytext=(right, above), textcoords="offset points",
            ha="left" if right > 0 else "right", fontsize=FONT, alpha=0.8,
        )  # fmt: skip
        note.set_gid(f"{keys[cell.task]}-label")  # the legend hides it with its points
