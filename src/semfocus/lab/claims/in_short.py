"""A claim's evidence in short: what was found, outcome by outcome, in as few words as that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..stats import NO_INTERVAL
from .base import Judged, Line, Outcome

#: What decides comes first.
ORDER: tuple[Outcome, ...] = ("refuted", "confirmed", "no difference", "undecided", "impossible", "missing")
#: Numbers that a cell holds, and panels that are named. Where there are more they are counted, and the ends are shown.
NUMBERS, NAMES = 10, 5
FOCUSED = "top-k(5) "


@dataclass(frozen=True)
class Piece:
    """What was found with one outcome; without an outcome a remark."""

    text: str
    outcome: Outcome | None = None
    word: str = ""  # for the outcome


def in_short(judged: Judged) -> list[Piece]:
    """
    >>> from semfocus.lab.claims import Faster
    >>> lines = (
    ...     Line("even_pairs", "top-k(5) against full", "9.91 (6.78 to 14.36)", "confirmed", seeds=10),
    ...     Line("even_pairs", "top-k(9) against full", "4.33 (3.15 to 5.93)", "confirmed", seeds=10),
    ...     Line("listops", "top-k(5) against full", "1.35 (no interval below 6 seeds)", "undecided", seeds=3),
    ...     Line("parity_check", "top-k(5) against full", "-", "missing"),
    ... )
    >>> for piece in in_short(Judged(Faster("C1", "", ()), "undecided", "", lines)):
    ...     print(piece.word, piece.text)
    confirmed even_pairs: 9.91 (6.78 to 14.36)
    undecided listops: 1.35 (3 seeds)
    missing parity_check
     (top-k(5) alone; without 1 other comparison)
    """
    lines = judged.lines
    focused = [line for line in lines if line.subject.startswith(FOCUSED)]
    shown = focused if any(line.outcome != "missing" for line in focused) else list(lines)
    many = sum(line.outcome != "missing" for line in shown) > NUMBERS
    place = _common_start([line.panel for line in shown])
    pieces = [_on(place)] if place else []
    for outcome in ORDER:
        found = [line for line in shown if line.outcome == outcome]
        if not found:
            continue
        if outcome == "missing":
            text = _panels(found, shown, place)
        else:
            text = _ranges(found, shown, place) if many else "; ".join(_numbers(found, shown, place))
        pieces.append(Piece(text, outcome, judged.claim.word(outcome)))
    if rest := len(lines) - len(shown):
        pieces.append(Piece(f"({FOCUSED.strip()} alone; without {rest} other comparison{'s' * (rest > 1)})"))
    return pieces


def listed(lines: Sequence[Line]) -> list[Piece]:
    """Numbers without their outcomes."""
    place = _common_start([line.panel for line in lines])
    return [*([_on(place)] if place else []), Piece("; ".join(_numbers(lines, lines, place)))]


def _on(place: str) -> Piece:
    return Piece(f"On {place.removesuffix(', ')}:")


def _numbers(found: Sequence[Line], among: Sequence[Line], place: str) -> list[str]:
    """Each with what tells it apart: the panel, where it is another than before, and what its subject has of its own.

    >>> lines = [Line("even_pairs", subject, "0.5", "confirmed") for subject in ("90 %", "95 %")]
    >>> _numbers(lines, [*lines, Line("listops", "90 %", "0.7", "undecided")], "")
    ['even_pairs, 90 %: 0.5', '95 %: 0.5']
    """
    subjects = [line.subject for line in among]
    start, end = len(_common_start(subjects)), len(_common_end(subjects))
    texts, before = [], ""
    for line in found:
        subject = line.subject[start : len(line.subject) - end]
        panel = line.panel.removeprefix(place) if line.panel != before or not subject else ""
        before = line.panel
        texts.append(
            ": ".join(part for part in (", ".join(name for name in (panel, subject) if name), _number(line)) if part)
        )
    return texts


def _number(line: Line) -> str:
    return line.shown.replace(NO_INTERVAL, f" ({line.seeds} seeds)")


def _common_start(texts: Sequence[str]) -> str:
    """What all begin with, up to a comma; all of it where all are equal.

    >>> _common_start(["listops, heads 2", "listops, heads 4"]), _common_start(["a", "a"]), _common_start(["a", "b"])
    ('listops, ', 'a', '')
    """
    if len(set(texts)) == 1:
        return texts[0]
    starts = {before + comma for before, comma, _ in (text.partition(", ") for text in texts)}
    return starts.pop() if len(starts) == 1 and all(", " in text for text in texts) else ""


def _common_end(texts: Sequence[str]) -> str:
    """What all are compared with; nothing where all are equal."""
    ends = {text[text.rfind(" against ") :] if " against " in text else "" for text in texts}
    return ends.pop() if len(ends) == 1 and len(set(texts)) > 1 else ""


def _panels(found: Sequence[Line], among: Sequence[Line], place: str) -> str:
    """The panels, where they are few and have no other outcome; else how many of how many."""
    panels, every = (Counter(line.panel.removeprefix(place) for line in lines) for lines in (found, among))
    whole = all(panels[panel] == every[panel] for panel in panels)
    return "; ".join(panels) if len(panels) <= NAMES and all(panels) and whole else f"{len(found)} of {len(among)}"


def _ranges(found: Sequence[Line], among: Sequence[Line], place: str) -> str:
    """How many of how many, and panel by panel the smallest and the largest ratio."""
    by_panel: dict[str, list[Line]] = {}
    for line in found:
        by_panel.setdefault(line.panel.removeprefix(place), []).append(line)
    texts = []
    for panel, lines in by_panel.items():
        known = [(c.ratio, line) for line in lines if (c := line.comparison) and c.bound != "not interpretable"]
        ends = [_number(end(known, key=lambda pair: pair[0])[1]) for end in (min, max)] if known else []
        named = f"{panel}, {len(lines)}" if panel else str(len(lines))
        texts.append(": ".join([named, *([" to ".join(dict.fromkeys(ends))] if ends else [])]))
    counts = f"{len(found)} of {len(among)}"
    return f"{counts} ({'; '.join(texts)})" if len(by_panel) <= NAMES and all(by_panel) else counts
