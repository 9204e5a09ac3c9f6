"""Paths of an SVG file, written short: half of a page is the points of its curves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress


def shorter(path: str) -> str:
    """One decimal; of straight lines the steps instead of the places, and one step for a stretch along an axis.

    >>> shorter("M 1.04 2.0 L 3.0 2.0 L 5.0 2.0 L 5.5 1.21 z")
    'M1 2h4l.5-.8z'
    """
    tokens = path.split()
    if not set(tokens) & set("QCHVA"):
        with suppress(ValueError):  # something else after all
            return _steps(tokens)
    return " ".join(re.sub(r"(\.\d)\d+", r"\1", path).split())


def _steps(tokens: Sequence[str]) -> str:
    """Tokens are M x y, L x y and z."""
    words: list[str] = []
    here, step = (0, 0), (0, 0)  # in tenths; the step that is not yet written
    rest = iter(tokens)
    for command in rest:
        if command == "z":
            words += [*_step(step), "z"]
            step = (0, 0)
            continue
        if command not in ("M", "L"):
            raise ValueError(command)
        x, y = (round(10 * float(next(rest))) for _ in range(2))
        dx, dy = x - here[0], y - here[1]
        here = (x, y)
        along = (dx * step[0] > 0 and dy == step[1] == 0) or (dy * step[1] > 0 and dx == step[0] == 0)
        if command == "L" and (along or not (dx or dy)):
            step = (step[0] + dx, step[1] + dy)
            continue
        words += _step(step)
        step = (0, 0)
        if command == "M":
            words += ["M", _tenths(x), _tenths(y)]
        else:
            step = (dx, dy)
    words += _step(step)
    if "L" in tokens and not set("lhvz") & set(words):
        words += ["l", "0", "0"]  # a dot
    return _joined(words)


def _step(step: tuple[int, int]) -> list[str]:
    dx, dy = step
    if not dx and not dy:
        return []
    return ["h", _tenths(dx)] if not dy else ["v", _tenths(dy)] if not dx else ["l", _tenths(dx), _tenths(dy)]


def _tenths(number: int) -> str:
    """
    >>> _tenths(15), _tenths(-5), _tenths(20)
    ('1.5', '-.5', '2')
    """
    return re.sub(r"^(-?)0\.", r"\1.", f"{number / 10:g}")


def _joined(words: Sequence[str]) -> str:
    """No space where none is needed, and a command that repeats is written once."""
    out, last = "", ""
    for word in words:
        if word.isalpha():
            out += word if word != last or word in "Mz" else ""
            last = word
        else:
            out += word if out[-1:].isalpha() or word.startswith("-") else f" {word}"
    return out
