"""What a page is made of: sections that hold figures, tables and further sections."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .style import Entry


@dataclass(frozen=True)
class Figure:
    """A drawing with the numbers it shows."""

    name: str  # of its files
    caption: str
    svg: str  # a whole SVG file
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    legend: tuple[Entry, ...] = ()

    def csv(self) -> str:
        return _csv(self.columns, self.rows)


@dataclass(frozen=True)
class Cell:
    """A table's cell with a tone: "good", "bad", "muted" or a verdict. The words must say it too."""

    text: str
    tone: str = ""

    def __str__(self) -> str:
        return self.text


#: In the place of what is not known, or makes no sense.
NOTHING = Cell("-", "muted")


@dataclass(frozen=True)
class Table:
    """Rows of text. ``folded`` tables are opened by the reader."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    folded: bool = False

    def csv(self) -> str:
        return _csv(self.columns, self.rows)


@dataclass(frozen=True)
class Section:
    """A heading, some sentences (paragraphs are divided by empty lines), and what stands below."""

    title: str
    text: str = ""
    parts: Sequence[Figure | Table | Section] = field(default_factory=tuple)

    @property
    def paragraphs(self) -> list[str]:
        return paragraphs(self.text)

    @property
    def legend(self) -> list[Entry]:
        """Of all figures in it, each entry once."""
        return list(
            dict.fromkeys(entry for part in leaves([self]) if isinstance(part, Figure) for entry in part.legend)
        )


def leaves(sections: Iterable[Section]) -> Iterator[Figure | Table]:
    """Every figure and table, in the order of the page."""
    for section in sections:
        for part in section.parts:
            if isinstance(part, Section):
                yield from leaves([part])
            else:
                yield part


def paragraphs(text: str) -> list[str]:
    """Lines joined to paragraphs. A number and its "%" stay together.

    >>> paragraphs("One\\ntwo.\\n\\nThree.")
    ['One two.', 'Three.']
    """
    joined = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip())
    return [part.replace(" %", "\u00a0%") for part in joined]


def percent(share: float, decimals: int = 1) -> str:
    """
    >>> percent(0.973), percent(0.95, 0)
    ('97.3 %', '95 %')
    """
    return f"{100 * share:.{decimals}f} %"


def shortened(text: str, longest: int) -> str:
    """
    >>> shortened("block-local", 11), shortened("block-local", 6)
    ('block-local', 'block…')
    """
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def slug(*words: object) -> str:
    """A file name from words of any kind. Unique only if one of them is.

    >>> slug("curves", 2, "listops, 6 blocks")
    'curves-2-listops-6-blocks'
    """
    text = "-".join(str(word) for word in words)
    return re.sub(r"[^A-Za-z0-9_]+", "-", text)[:80].strip("-")


def _csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return buffer.getvalue()
