"""Tables in Markdown, and the marked places of a document that are written from data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..lab.claims import Piece
from ..training.files import StorageError
from .compact import read_text, write_text

NOTE = "<!-- written by `make results` from the files in results/; edits here are lost -->"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """
    >>> print(table(("task", "ratio"), [("a|b", 2.0)]))
    | task | ratio |
    |---|---|
    | a\\|b | 2.0 |
    """
    lines = [columns, ["---"] * len(columns), *rows]
    shown = ["| " + " | ".join(cell(value) for value in line) + " |" for line in lines]
    shown[1] = "|" + "---|" * len(columns)
    return "\n".join(shown)


def cell(value: object) -> str:
    """One line without what would end a cell or begin a tag; ``<br>`` and code stay."""
    text = " ".join(str(value).split()).replace("|", "\\|")
    return text.replace("<", "&lt;").replace("&lt;br>", "<br>")


def in_a_cell(found: Iterable[Piece]) -> str:
    """A claim's evidence in short, for a cell."""
    return "<br>".join(f"*{piece.word}* {piece.text}" if piece.word else piece.text for piece in found)


def marks(name: str) -> tuple[str, str]:
    """The comments around a place: ``<!-- results:begin -->``, or ``<!-- results:NAME:begin -->``."""
    middle = f"results:{name}" if name else "results"
    return f"<!-- {middle}:begin -->", f"<!-- {middle}:end -->"


def has_place(text: str, name: str) -> bool:
    return marks(name)[0] in text


def filled(text: str, name: str, body: str, where: Path) -> str:
    """The text with a new body between its marks.

    >>> print(filled("a\\n<!-- results:begin -->\\nold\\n<!-- results:end -->\\nb", "", "new", Path("x.md")))
    a
    <!-- results:begin -->
    <!-- written by `make results` from the files in results/; edits here are lost -->
    new
    <!-- results:end -->
    b
    """
    begin, end = marks(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise StorageError(f"{where} must have {begin} and after it {end}, each once")
    before, after = text.partition(begin)[0], text.partition(end)[2]
    return f"{before}{begin}\n{NOTE}\n{body}\n{end}{after}"


def fill_file(path: Path, bodies: dict[str, str]) -> bool:
    """Fills the places that a document has; True if that changed it."""
    text = read_text(path)
    for name, body in bodies.items():
        if has_place(text, name):
            text = filled(text, name, body, path)
    return write_text(path, text)
