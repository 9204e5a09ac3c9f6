from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from semfocus import Banded, Full, TopK, patterns
from semfocus.lab.results import ArmResult
from semfocus.lab.study import Arm, label_of
from semfocus.patterns.base import Pattern
from semfocus.report.style import COLOURS, DARK, Entry, style_of, styles_of
from semfocus.report.svg import inline, swatch, themed, with_legend
from semfocus.studies.convergence import Convergence
from semfocus.training import paper


def arm(pattern: Pattern, label: str = "", **model: float) -> ArmResult:
    config = paper("even_pairs", pattern, model=model)
    return ArmResult(Arm("even_pairs", label or label_of(pattern), config), ())


def test_arms_of_a_study_differ() -> None:
    arms = [ArmResult(arm, ()) for arm in Convergence().runs("paper") if arm.panel == "listops"]
    styles = styles_of(arms)
    assert len(set(styles.values())) == len(arms) == 16


def test_an_arm_looks_the_same_in_any_company() -> None:
    alone = styles_of([arm(TopK(9))])["top-k(9)"]
    assert styles_of([arm(Full()), arm(Banded(9)), arm(TopK(9))])["top-k(9)"] == alone
    assert alone == style_of(paper("parity_check", TopK(9)))


def test_arms_that_differ_in_nothing_visible_differ_in_style() -> None:
    arms = [arm(TopK(5), f"learning rate {number}") for number in range(60)]
    assert len(set(styles_of(arms).values())) == 60


def test_families_have_colours_of_their_own() -> None:
    colours = {
        name: style_of(paper("even_pairs", example)).colour for name in patterns.names() for example in [_one(name)]
    }
    assert len(set(colours.values())) == len(colours)
    assert DARK.keys() == COLOURS.keys() - {"full"}


def _one(name: str) -> Pattern:
    return type(patterns.get(name, **({} if name == "full" else _knobs(name)))).examples()[0]


def _knobs(name: str) -> dict[str, int]:
    return {"width": 5} if name in ("banded", "block_local") else {"k": 5}


def test_global_tokens_and_scale_are_visible() -> None:
    dashes = [style_of(paper("even_pairs", Banded(5, global_tokens=g))).dash for g in (0, 1, 2, 3, 7)]
    assert len(set(dashes)) == 5
    scaled = [style_of(paper("even_pairs", Full(), model={"attention_scale": s})) for s in (0.5, 1.0, 2.0, 4.0, 8.0)]
    assert all(a != b for a, b in pairwise(scaled))


@pytest.mark.parametrize("marker", ["", "o", "s", "^", "D", "v", "P", "x", "*", "<", ">", "p", "h", "+"])
def test_every_marker_has_a_swatch(marker: str) -> None:
    style = replace(style_of(paper("even_pairs", TopK(5))), marker=marker)
    assert swatch(style).count("<path") == (2 if marker else 1)
    assert "var(--top-k, #d55e00)" in themed(swatch(style))


def test_a_figure_inside_a_page_follows_its_colours_and_keeps_its_ids_apart() -> None:
    svg = (
        '<svg xmlns:xlink="x" width="20pt" height="10pt" viewBox="0 0 20 10" xmlns="y" version="1.1"><style>*</style>'
        '<g id="k01234567-band"><path id="a" style="stroke: #1a1c20; fill: #009e73" clip-path="url(#b)"/></g>'
        '<use xlink:href="#a"/></svg>'
    )
    assert inline(svg, "f3", 'a "label"') == (
        """<svg class="plot" role="img" aria-label='a "label"' viewBox="0 0 20 10">"""
        '<g class="arm k01234567 band"><path id="f3-a" style="stroke: currentColor; fill: var(--block-local, #009e73)" '
        'clip-path="url(#f3-b)"/></g><use href="#f3-a"/></svg>'
    )


def test_a_file_of_its_own_has_a_legend_of_its_own() -> None:
    entries = [Entry(label, style_of(paper("even_pairs", TopK(5)))) for label in ("a", "<b>", "c")]
    taller = with_legend('<svg width="20pt" height="10pt" viewBox="0 0 20 10"></svg>', entries)
    assert 'width="20pt" height="44pt" viewBox="0 0 20 44"' in taller
    assert "&lt;b&gt;</text>" in taller
