"""How an arm looks: the same in every figure of every study, and never like another arm of its page.

Colour says the family of the pattern, the marker its size, dashes its global tokens, weight the scale of its scores.
What these four leave equal (another learning rate, say) gets a marker and dashes of its own, chosen by its label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..lab.configs import Config
from ..lab.results import ArmResult

#: The colour of text: black in a file of its own, the page's own on a page.
INK = "#1a1c20"
MUTED = "#6b7078"
RULE = "#d5d8dd"

#: Families and their colours: Okabe and Ito's, which colour-blind readers can tell apart, then Tol's for rare ones.
COLOURS = {
    "full": INK,
    "banded": "#0072b2",
    "block_local": "#009e73",
    "top_k": "#d55e00",
    "bottom_k": "#e69f00",
    "random_k": "#cc79a7",
    "fixed_random": "#56b4e9",
    "strided": "#a89400",
    "swapped_top_k": "#882255",
    "positional_top_k": "#5b4bb5",
}
OTHER = "#8c8c3a"
#: On a dark page the same hues, lighter.
DARK = {
    "banded": "#5cb3ee",
    "block_local": "#33d1a0",
    "top_k": "#ff8b45",
    "bottom_k": "#f2b53a",
    "random_k": "#e59cc4",
    "fixed_random": "#9ad6f7",
    "strided": "#e6d84a",
    "swapped_top_k": "#e0669f",
    "positional_top_k": "#a79bff",
}

Dash = tuple[float, ...]
SOLID: Dash = ()
DASHES: dict[int, Dash] = {0: SOLID, 1: (5, 2), 2: (6, 2, 1.5, 2), 3: (1.3, 1.5)}
MANY_GLOBAL: Dash = (8, 2, 1.3, 1.5, 1.3, 1.5)
#: The smallest k or width that gets a marker. Budgets of 5, the paper's first, have none.
SIZES = ((48, "P"), (24, "D"), (12, "s"), (8, "o"), (5, ""), (3, "^"), (0, "v"))
SCALES = {2.0: "+", 4.0: "x", 8.0: "*"}
#: Panels with more arms (a grid of settings) are not drawn: nobody can tell so many lines apart.
MOST_ARMS = 40
MARKERS = ("", "o", "s", "^", "D", "v", "P", "x", "*", "<", ">", "p", "h", "+")


@dataclass(frozen=True)
class ArmStyle:
    """Colour, dashes (none: solid), marker (none: "") and weight of a line."""

    colour: str
    dash: Dash = SOLID
    marker: str = ""
    weight: float = 1.5

    @property
    def linestyle(self) -> tuple[int, Dash | None]:
        """As matplotlib takes it."""
        return (0, self.dash or None)

    @property
    def line(self) -> dict[str, Any]:
        """What matplotlib draws the line by."""
        return {
            "color": self.colour,
            "linestyle": self.linestyle,
            "linewidth": self.weight,
            "marker": self.marker or "none",
        }


@dataclass(frozen=True)
class Entry:
    """One line of a legend."""

    label: str
    style: ArmStyle

    @property
    def key(self) -> str:
        """A name for style sheets that holds nothing of the label itself."""
        return "k" + hashlib.sha256(self.label.encode()).hexdigest()[:8]


def style_of(config: Config) -> ArmStyle:
    """How a config looks by itself.

    >>> from semfocus import Banded, TopK
    >>> from semfocus.training import paper
    >>> style_of(paper("even_pairs", TopK(5)))
    ArmStyle(colour='#d55e00', dash=(), marker='', weight=1.5)
    >>> style_of(paper("even_pairs", Banded(9, global_tokens=1))).dash
    (5, 2)
    """
    pattern, scale = config.pattern, config.model.attention_scale
    size = getattr(pattern, "k", getattr(pattern, "width", None))
    marker = "" if size is None else next(mark for least, mark in SIZES if size >= least)
    if size is None and scale != 1.0:
        marker = SCALES.get(scale, "x")
    return ArmStyle(
        colour=COLOURS.get(pattern.name, OTHER),
        dash=DASHES.get(pattern.global_tokens, MANY_GLOBAL),
        marker=marker,
        weight=1.5 if scale == 1.0 else 2.4 if scale > 1.0 else 0.9,
    )


def styles_of(arms: Sequence[ArmResult]) -> dict[str, ArmStyle]:
    """The style of every label of a page, all different."""
    chosen: dict[str, ArmStyle] = {}
    for arm in arms:
        if arm.label not in chosen:
            chosen[arm.label] = _free(style_of(arm.arm.config), arm.label, set(chosen.values()))
    return chosen


def legend_of(arms: Sequence[ArmResult], styles: Mapping[str, ArmStyle]) -> tuple[Entry, ...]:
    """Each label once, in the order of the arms."""
    return tuple(Entry(label, styles[label]) for label in dict.fromkeys(arm.label for arm in arms))


def _free(wanted: ArmStyle, label: str, taken: set[ArmStyle]) -> ArmStyle:
    """The wanted style, or one of its colour that is free; where to look first depends on the label alone."""
    if wanted not in taken:
        return wanted
    start = int(hashlib.sha256(label.encode()).hexdigest(), 16) % len(MARKERS)
    markers = MARKERS[start:] + MARKERS[:start]
    dashes = dict.fromkeys((wanted.dash, *DASHES.values(), MANY_GLOBAL))
    weights = dict.fromkeys((wanted.weight, 1.5, 2.4, 0.9))
    colours = dict.fromkeys((wanted.colour, *COLOURS.values(), OTHER))
    for colour, weight, dash, marker in product(colours, weights, dashes, markers):
        style = replace(wanted, colour=colour, weight=weight, dash=dash, marker=marker)
        if style not in taken:
            return style
    raise ValueError(f"{len(taken)} arms on one page; there are no more styles to tell them apart")
