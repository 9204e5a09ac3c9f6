"""A path that is written short draws the same."""

import re

from hypothesis import given
from hypothesis import strategies as st

from semfocus.report.paths import shorter

POINTS = st.tuples(st.integers(-30, 30), st.integers(-3, 3))  # tenths; many stretches along an axis


def corners(path):
    """Every point that a short path goes through, in tenths; "z" where it closes."""
    here, found = (0, 0), []
    for command, numbers in re.findall(r"([Mlhvz])([^Mlhvz]*)", path):
        values = [round(10 * float(x)) for x in re.findall(r"-?\d*\.?\d+", numbers)]
        if command == "z":
            found.append("z")
            continue
        pairs = {
            "h": [(x, 0) for x in values], "v": [(0, y) for y in values]
        }.get(command) or list(zip(values[::2], values[1::2], strict=True))  # fmt: skip
        for x, y in pairs:
            here = (x, y) if command == "M" else (here[0] + x, here[1] + y)
            found.append(here)
    return found


def needed(points):
    """Without repetitions, and without the middle of a stretch along an axis."""
    kept = points[:1]
    for point in points[1:]:
        if point == kept[-1]:
            continue
        if len(kept) > 1:
            (x0, y0), (x1, y1), (x2, y2) = kept[-2], kept[-1], point
            along = (y0 == y1 == y2 and (x1 - x0) * (x2 - x1) > 0) or (x0 == x1 == x2 and (y1 - y0) * (y2 - y1) > 0)
            if along:
                kept.pop()
        kept.append(point)
    return kept


@given(st.lists(POINTS, min_size=1, max_size=12), st.booleans())
def test_lines(points, closed):
    words = [f"{'L' if i else 'M'} {x / 10} {y / 10}" for i, (x, y) in enumerate(points)]
    found = corners(shorter("\n".join([*words, *(["z"] if closed else [])])))
    assert found.count("z") == closed
    expected = needed(points)
    drawn = [point for point in found if point != "z"]
    dot = len(expected) == 1 < len(points) and not closed  # stays one
    assert drawn == (expected * 2 if dot else expected)


def test_what_is_not_straight_keeps_its_places():
    assert shorter("M 0 0 C 1.15 1 2 2 3 3.123 z") == "M 0 0 C 1.1 1 2 2 3 3.1 z"
    assert shorter("M 0 0 T 1 1") == "M 0 0 T 1 1"
