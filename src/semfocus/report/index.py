"""One page above all pages of a folder: ``DIR/index.html``, with every claim, its verdict, and where it is explained.

Beside each page lies ``claims.json``, what the page says in short. The index is made of these files alone, so that it
judges nothing a second time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

from ..lab.claims import Judged, in_short
from ..lab.results import Results
from ..lab.study import Study
from ..training.files import StorageError, explained, write_atomic, write_json
from ..training.locks import locked_folder
from .parts import paragraphs
from .templates import environment, style_sheet
from .verdicts import SIGNS

NAME = "index.html"
CLAIMS = "claims.json"
#: By which our index is told from another's file of its name.
MARK = "semfocus: the index of a laboratory"


class Found(TypedDict):
    """A claim in short; ``found`` holds pairs of an outcome's word and its numbers."""

    id: str
    statement: str
    verdict: str
    found: list[tuple[str, str]]


class Entry(TypedDict):
    """What the index says of one page."""

    study: str
    name: str  # of the question: its size
    title: str
    paper_size: bool
    over: int
    total: int
    asked: str
    command: str
    claims: list[Found]


def write_entry(study: Study, results: Results, judged: Sequence[Judged], folder: Path) -> None:
    """Beside a page: what the index will say of it."""
    statuses = results.statuses()
    asked = results.question
    entry = Entry(
        study=asked.study,
        name=asked.name,
        title=next(iter(paragraphs(study.question)), study.name),
        paper_size=asked.size in study.paper_sizes,
        over=statuses["finished"] + statuses["diverged"],
        total=statuses.total(),
        asked=results.manifest.created.replace("T", " ")[:16],
        command=asked.command,
        claims=[_found(one, asked.size) for one in judged],
    )
    write_json(folder / CLAIMS, entry)


def _found(judged: Judged, size: str) -> Found:
    short = [] if size == "smoke" else [(piece.word, piece.text) for piece in in_short(judged)]
    claim = judged.claim
    found = short or [("", judged.sentence)]
    return Found(id=claim.id, statement=claim.statement, verdict=judged.verdict, found=found)


def build(root: Path) -> Path:
    """Writes the index of a folder from what lies beside its pages; returns where it lies.

    Another's file of that name stays. Processes that end together take turns, so that the last one knows all pages.
    """
    template = environment().get_template("index.html.jinja")
    path = root / NAME
    with locked_folder(root), explained(path, "write"):
        if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
            raise StorageError(
                f"{path} is another's file and stays; choose another folder to have an index of its pages"
            )
        text = template.render(entries=list(_entries(root)), signs=SIGNS, css=style_sheet(), mark=MARK)
        write_atomic(path, text.lstrip().encode())
    return path


def _entries(root: Path) -> Iterator[dict[str, Any]]:
    """By study and size. What is damaged, or of another version, is left out: its page is written again some time."""
    for path in sorted(root.glob(f"*/pages/*/{CLAIMS}")):
        page = path.parent.with_name(f"{path.parent.name}.html")
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if _whole(entry) and page.is_file():
            yield {**entry, "page": quote(page.relative_to(root).as_posix())}


def _whole(entry: Any) -> bool:
    """Whether it has what the template asks of it."""
    if not isinstance(entry, dict) or not Entry.__required_keys__ <= set(entry):
        return False
    claims = entry["claims"]
    return (
        all(isinstance(entry[name], int) for name in ("over", "total"))
        and isinstance(claims, list)
        and all(isinstance(claim, dict) and Found.__required_keys__ <= set(claim) for claim in claims)
        and all(isinstance(claim["found"], list) and isinstance(claim["verdict"], str) for claim in claims)
        and all(isinstance(piece, list) and len(piece) == 2 for claim in claims for piece in claim["found"])
    )
