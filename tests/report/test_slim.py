"""Figures in fewer bytes: the same elements, names that hold together, and rules that a page has."""

import re
from xml.etree import ElementTree

import pytest

from semfocus.report.parts import Figure, Section
from semfocus.report.slim import SVG, XLINK, rules, slimmer
from semfocus.report.svg import as_svg, drawing, plot
from semfocus.report.templates import shared

SHOWN = ("path", "use", "text", "image", "rect")


def canvas(label):
    found, axes = plot(3, 2)
    for number in range(3):
        axes.plot([1, 2, 3], [number, 4, 2], marker="o", label=label)
    axes.plot([1, 2], [0, 3], zorder=-1)
    axes.set_title(label)
    axes.set_ylabel(label)
    axes.fill_between([1, 2], [0, 0], [1, 1]).set_gid("k01234567-band")
    return found


def elements(svg):
    return [element.tag.partition("}")[2] for element in ElementTree.fromstring(svg).iter()]


@pytest.fixture
def as_it_was(monkeypatch):
    """What a figure is before it is made slim."""
    monkeypatch.setattr("semfocus.report.svg.slimmer", lambda svg: svg)
    with drawing("x"):
        svg = as_svg(canvas("a label"))
    monkeypatch.undo()
    return svg


def test_everything_that_shows_is_still_there_in_its_order(as_it_was):
    slim = slimmer(as_it_was)
    assert len(slim) < 0.8 * len(as_it_was)
    assert [e for e in elements(slim) if e in SHOWN] == [e for e in elements(as_it_was) if e in SHOWN]
    assert re.findall(r"base64,[^\"]*", slim) == re.findall(r"base64,[^\"]*", as_it_was)


def test_names_that_are_referred_to_exist_and_no_others_do(as_it_was):
    slim = slimmer(as_it_was)
    names = re.findall(r' id="([^"]*)"', slim)
    used = set(re.findall(r'href="#([^"]*)"', slim)) | set(re.findall(r"url\(#([^)]*)\)", slim))
    assert used
    assert sorted(names) == sorted(used | {"k01234567-band"})


def test_styles_are_what_they_were(as_it_was):
    slim = slimmer(as_it_was)
    known = rules(slim)
    styles = [
        known[element.attrib["class"]] if "class" in element.attrib else element.get("style")
        for element in ElementTree.fromstring(slim).iter()
    ]
    before = [element.get("style") for element in ElementTree.fromstring(as_it_was).iter()]
    assert [style for style in styles if style] == [style for style in before if style]


def test_making_it_slim_again_changes_nothing(as_it_was):
    slim = slimmer(as_it_was)
    assert slimmer(slim) == slim


def test_words_in_a_figure_are_no_rules():
    label = "<style>.s01234567{fill: red}</style> -0 & 'x'"
    with drawing("x"):
        svg = as_svg(canvas(label))
    assert "s01234567" not in rules(svg)
    assert label in "".join(ElementTree.fromstring(svg).itertext())


def test_a_page_has_the_rules_of_all_its_figures():
    with drawing("x"):
        figures = [Figure(name, "", as_svg(canvas(name)), (), []) for name in ("one", "two")]
    found = shared([Section("", "", figures)])
    for text in found["drawn"].values():
        used = set(re.findall(r'class="(s[0-9a-f]{8})"', text))
        assert used
        assert all(f".plot .{name} {{" in found["css"] for name in used)
        assert "<style" not in text


def test_a_colour_is_no_name():
    """Of a hatch, say; and a link may lead out of the picture."""
    body = '<rect fill="#1f77b4" id="a"/><a xlink:href="#elsewhere"><use xlink:href="#a" fill="url(#none)"/></a>'
    slim = slimmer(f'<svg xmlns="{SVG}" xmlns:xlink="{XLINK}"><defs/>{body}</svg>')
    assert 'fill="#1f77b4" id="d0"' in slim
    assert 'href="#elsewhere"' in slim
    assert 'href="#d0" fill="url(#none)"' in slim
