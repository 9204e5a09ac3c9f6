"""Between matplotlib and the page: drawing with one look, and SVG that can stand inside HTML.

A figure is kept as a plain SVG file. Inside a page its colours become the page's variables, so that it is legible on
white and on black, its ids get a prefix, so that two figures never share a clip path, and its rules are the page's.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path as Outline
from matplotlib.ticker import LogLocator, NullFormatter
from PIL import Image

from .paths import shorter
from .slim import slimmer
from .style import COLOURS, INK, MUTED, RULE, ArmStyle, Entry

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

#: Resolution of the layers that are drawn as pixels.
RASTER_DPI = 110
#: Colours of such a layer: faint lines need few, and the file shrinks to a third.
RASTER_COLOURS = 64
#: Below this z-order everything of an axes becomes one image.
RASTER_BELOW = 0.0

#: Titles begin above the numbers of the axis: some panels have long names.
TITLE_AT = -0.13
#: Letters of one that fit above a plot of the usual width.
LONGEST_TITLE = 48
#: Width and height of a legend's piece of line; ``parts.html.jinja`` draws a box of that size around it.
SWATCH = 30, 12

LOOK: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label may hold a dollar sign
    "axes.unicode_minus": False,
    "font.size": 8.5,
    "axes.titlesize": 9.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "grid.color": RULE,
    "text.color": INK,
    "axes.titlecolor": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
}
#: A logarithmic axis over a larger range than this is numbered at powers of ten alone.
WIDE = 300.0
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
#: Colours that follow the page, by what is written in the file.
VARIABLES = {INK: "currentColor", MUTED: f"var(--muted, {MUTED})", RULE: f"var(--rule, {RULE})"} | {
    colour: f"var(--{family.replace('_', '-')}, {colour})" for family, colour in COLOURS.items() if colour != INK
}


@contextmanager
def drawing(name: str) -> Iterator[None]:
    """The look of all figures. ``name`` makes generated ids the same in every build."""
    with matplotlib.rc_context({**LOOK, "svg.hashsalt": name}):
        yield


def plot(width: float, height: float) -> tuple[Canvas, Axes]:
    """One empty plot, in inches; its faintest layer is drawn as pixels."""
    canvas = Canvas(figsize=(width, height))
    axes = canvas.subplots()
    axes.set_rasterization_zorder(RASTER_BELOW)
    return canvas, axes


def plain_log(axis: Axis) -> None:
    """Numbers of a logarithmic axis: matplotlib would write powers in a notation that is switched off here."""
    low, high = axis.get_data_interval()
    wide = low > 0 and high / low > WIDE
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=8))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def as_svg(canvas: Canvas) -> str:
    """A canvas as SVG: transparent, text as text, one decimal."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the reader's fonts have it, or show that they have not
        canvas.savefig(buffer, format="svg", transparent=True, dpi=RASTER_DPI, metadata=NO_METADATA)
    text = re.sub(r"^.*?(?=<svg )", "", _printable(buffer.getvalue()), count=1, flags=re.DOTALL)
    text = re.sub(r' d="([^"]*)"', lambda found: f' d="{shorter(found[1])}"', text)
    text = re.sub(r"(?<=data:image/png;base64,)[^\"]*", lambda found: _fewer_colours(found[0]), text)
    # Measured in DejaVu Sans, the widest of all: what fits in it fits in the reader's font too.
    text = re.sub(r"font-family: [^;\"]*;", "font-family: sans-serif;", text)
    return slimmer(re.sub(r"\n *", "\n", text))


def _printable(text: str) -> str:
    """XML has no control characters, not even escaped."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "", text)


def _fewer_colours(png: str) -> str:
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
    buffer = io.BytesIO()
    image.quantize(RASTER_COLOURS, method=Image.Quantize.FASTOCTREE).save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def inline(svg: str, prefix: str, label: str) -> str:
    """An SVG file's text for use inside a page. ``prefix`` has to be unique there; its rules belong to the page."""
    text = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    text = re.sub(r' (xmlns(:xlink)?|version)="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'<g id="(k[0-9a-f]{8})(-\w+)?">', _classed, text)
    text = re.sub(r'<g id="note-\d+">', '<g class="note">', text)
    text = re.sub(r' id="([^"]*)"', rf' id="{prefix}-\1"', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    text = re.sub(r' style="([^"]*)"', lambda found: f' style="{themed(found[1])}"', text)
    text = re.sub(r'(<svg) width="([\d.]+)pt" height="[\d.]+pt"', r"\1", text, count=1)
    return text.replace("<svg ", f'<svg class="plot" role="img" aria-label={quoteattr(label)} ', 1)


def _classed(found: re.Match[str]) -> str:
    kind = (found[2] or "-line").strip("-")
    return f'<g class="arm {found[1]} {kind}">'


def themed(style: str) -> str:
    """Known colours become the page's variables.

    >>> themed("stroke: #0072b2")
    'stroke: var(--banded, #0072b2)'
    """
    return re.sub(r"#[0-9a-f]{6}", lambda found: VARIABLES.get(found[0], found[0]), style)


def swatch(style: ArmStyle) -> str:
    """A piece of an arm's line with its marker, as SVG elements around the middle of a box."""
    dash = f' stroke-dasharray="{" ".join(str(d * style.weight) for d in style.dash)}"' if style.dash else ""
    width, height = SWATCH
    line = (
        f'<path d="M 1 {height / 2} H {width - 1}" style="stroke: {style.colour}" stroke-width="{style.weight}"{dash}/>'
    )
    if not style.marker:
        return line
    marker = MarkerStyle(style.marker)
    outline = marker.get_path().transformed(marker.get_transform())
    fill = style.colour if marker.is_filled() else "none"
    paint = f'style="fill: {fill}; stroke: {style.colour}" stroke-width="0.25"'
    place = f"translate({width / 2} {height / 2}) scale(6 -6)"
    return f'{line}<path d="{_commands(outline)}" {paint} transform="{place}"/>'


def _commands(outline: Outline) -> str:
    letters = {
        Outline.MOVETO: "M",
        Outline.LINETO: "L",
        Outline.CURVE3: "Q",
        Outline.CURVE4: "C",
        Outline.CLOSEPOLY: "Z",
    }
    words = []
    for points, code in outline.iter_segments():
        values = "" if code == Outline.CLOSEPOLY else " ".join(f"{value:.2f}" for value in points)
        words.append(f"{letters[code]} {values}".strip())
    return " ".join(words)


def with_legend(svg: str, entries: Sequence[Entry]) -> str:
    """A file of its own needs a legend of its own: below the plot, in two columns."""
    found = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt" viewBox="0 0 [\d.]+ [\d.]+"', svg)
    if found is None or not entries:
        return svg
    width, height = float(found[1]), float(found[2])
    rows = -(-len(entries) // 2)
    taller = height + 14 * rows + 6
    box = f'width="{width:g}pt" height="{taller:g}pt" viewBox="0 0 {width:g} {taller:g}"'
    parts = []
    for i, entry in enumerate(entries):
        x, y = 10 + (i // rows) * width / 2, height + 14 * (i % rows)
        label = escape(_printable(entry.label))
        text = f'<text x="36" y="9" style="font-size: 8.5px; font-family: sans-serif">{label}</text>'
        parts.append(f'<g transform="translate({x:g} {y:g})">{swatch(entry.style)}{text}</g>')
    return svg.replace(found[0], box, 1).replace("</svg>", "\n".join(parts) + "\n</svg>")
