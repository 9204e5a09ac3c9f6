"""Compressed text files that are equal byte for byte where their content is, and one sentence for a damaged one."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..training.files import StorageError, explained, write_together

#: A file that unpacks to more than this is refused.
LARGEST = 500_000_000
#: A value that is not finite. An empty cell says that the row has no such value at all.
NULL = "null"


def damaged(path: Path, why: object) -> StorageError:
    return StorageError(
        f"{path} is damaged ({why}); restore it from version control, or delete its folder and add the study again"
    )


def write_text(path: Path, text: str) -> bool:
    """Writes a file, compressed if it ends in .gz, unless it holds that text already; True if it was written."""
    return bool(write_texts({path: text}))


def write_texts(texts: Mapping[Path, str]) -> list[Path]:
    """The same for files that belong together; returns those that were written.

    Another version of zlib may compress otherwise, so equal texts are not written again.
    """
    changed = {path: _packed(path, text) for path, text in texts.items() if not _holds(path, text)}
    write_together(changed)
    return list(changed)


def _holds(path: Path, text: str) -> bool:
    try:
        return path.is_file() and read_text(path) == text
    except StorageError:
        return False  # damaged, and about to be whole again


def _packed(path: Path, text: str) -> bytes:
    if path.suffix != ".gz":
        return text.encode()
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as file:
        file.write(text.encode())
    return buffer.getvalue()


def read_text(path: Path) -> str:
    with explained(path, "read"):
        data = path.read_bytes()
    try:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise damaged(path, f"it unpacks to more than {LARGEST:,} bytes")
        return data.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise damaged(path, error) from None


def to_json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n" for row in rows)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Nothing where there is no such file; every line must be an object with the name of a run."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise damaged(path, f"line {number}: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get("run"), str):
            raise damaged(path, f"line {number} names no run")
        rows.append(row)
    return rows


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Every number with the digits it has.

    >>> rows = [{"run": "a", "epoch": 0, "loss": 0.1}, {"run": "a", "epoch": 1}]
    >>> print(to_csv(("run", "epoch", "loss"), rows), end="")
    run,epoch,loss
    a,0,0.1
    a,1,
    """
    lines = [",".join(columns)]
    lines += [",".join(_cell(row[name]) if name in row else "" for name in columns) for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return NULL if value is None else value if isinstance(value, str) else repr(value)


def read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows that ``to_csv`` wrote; nothing where there is no such file."""
    if not path.exists():
        return []
    reader = csv.reader(io.StringIO(read_text(path)))
    columns = next(reader, [])
    if columns[:2] != ["run", "epoch"]:
        raise damaged(path, "its first columns are not run and epoch")
    rows: list[dict[str, Any]] = []
    for number, cells in enumerate(reader, 2):
        if len(cells) != len(columns):
            raise damaged(path, f"line {number} has {len(cells)} cells, not {len(columns)}")
        try:
            values = {name: _number(cell) for name, cell in zip(columns[1:], cells[1:], strict=True) if cell}
        except ValueError as error:
            raise damaged(path, f"line {number}: {error}") from None
        if not isinstance(values.get("epoch"), int):
            raise damaged(path, f"line {number} has no epoch")
        rows.append({"run": cells[0], **values})
    return rows


def _number(cell: str) -> float | int | None:
    if cell == NULL:
        return None
    number = int(cell) if cell.lstrip("-").isdigit() else float(cell)
    if not math.isfinite(number):
        raise ValueError(f"{cell} is no finite number")
    return number
