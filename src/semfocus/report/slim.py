"""SVG without what nobody sees: much of what matplotlib writes is names, nesting and repetition."""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from itertools import count
from xml.etree import ElementTree

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
#: Names by which a page finds an arm's line or band, and words inside a plot.
MEANT = re.compile(r"k[0-9a-f]{8}(-\w+)?|note-\d+")
IN_A_VALUE = re.compile(r"(?<=url\(#)[^)]+")
IN_A_LINK = re.compile(r"(?<=^#).+")
#: A style that stands once costs less where it is.
REPEATED = 2

ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", XLINK)


def slimmer(svg: str) -> str:
    """The same picture in fewer bytes.

    Names that nothing refers to and groups that say nothing go, names get short, places one decimal. A style that
    stands more than once becomes a rule, named after what it says: so the figures of a page share their rules.

    >>> dot = '<use x="1.2345" style="fill: red"/>'
    >>> print(slimmer(f'<svg xmlns="{SVG}"><defs/>\\n<g id="line2d_1"><g>{dot}{dot}</g></g></svg>'))
    <svg xmlns="http://www.w3.org/2000/svg"><defs><style>.sb6dd6e24{fill: red}</style></defs>
    <use x="1.2" class="sb6dd6e24"/><use x="1.2" class="sb6dd6e24"/></svg>
    """
    root = ElementTree.fromstring(svg)
    _rename(root)
    for element in root.iter():
        _round(element)
    _unwrap(root)
    _share_styles(root)
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def rules(svg: str) -> dict[str, str]:
    """A slim figure's rules by their names.

    >>> rules("<style>.sb6dd6e24{fill: red}</style>")
    {'sb6dd6e24': 'fill: red'}
    """
    sheets = "".join(re.findall(r"<style[^>]*>(.*?)</style>", svg, flags=re.DOTALL))
    return dict(re.findall(r"\.(s[0-9a-f]{8})\{([^}]*)\}", sheets))


def _rename(root: ElementTree.Element) -> None:
    values = [item for element in root.iter() for item in element.attrib.items()]
    used = {name for key, value in values for name in _reference(key).findall(value)}
    number = count()
    short = {e.get("id"): f"d{next(number)}" for e in root.iter() if e.get("id") in used}
    for element in root.iter():
        name = element.get("id", "")
        if name in short:
            element.set("id", short[name])
        elif not MEANT.fullmatch(name):
            element.attrib.pop("id", None)
        for key, value in element.attrib.items():
            element.set(key, _reference(key).sub(lambda found: short.get(found[0], found[0]), value))


def _reference(key: str) -> re.Pattern[str]:
    """Names that an attribute refers to. Only in a link does a # begin one: in others it begins a colour."""
    return IN_A_LINK if key.rpartition("}")[2] == "href" else IN_A_VALUE


def _round(element: ElementTree.Element) -> None:
    for key in {"x", "y"} & set(element.attrib):
        element.set(key, _tenth(element.attrib[key]))
    turned = element.get("transform", "")
    if turned.startswith("rotate(-0 "):
        del element.attrib["transform"]
    elif turned.startswith("rotate("):
        element.set("transform", re.sub(r"-?\d+\.\d+", lambda found: _tenth(found[0]), turned))


def _tenth(number: str) -> str:
    return f"{round(float(number), 1):g}"


def _unwrap(parent: ElementTree.Element) -> None:
    """Children of groups that say nothing become their parent's."""
    for place, child in reversed(list(enumerate(parent))):
        _unwrap(child)
        if child.tag == f"{{{SVG}}}g" and not child.attrib:
            parent[place : place + 1] = list(child)


def _share_styles(root: ElementTree.Element) -> None:
    often = Counter(e.get("style") for e in root.iter())
    found: dict[str, str] = {}
    for element in root.iter():
        style = element.get("style")
        if style and often[style] >= REPEATED:
            name = "s" + sha256(style.encode()).hexdigest()[:8]
            found[name] = style
            del element.attrib["style"]
            element.set("class", name)
    if found:
        text = "".join(f".{name}{{{style}}}" for name, style in found.items())
        defs = next(root.iter(f"{{{SVG}}}defs"))  # matplotlib writes one
        sheet = defs.find(f"{{{SVG}}}style")
        sheet = ElementTree.SubElement(defs, f"{{{SVG}}}style") if sheet is None else sheet
        sheet.text = (sheet.text or "") + text
