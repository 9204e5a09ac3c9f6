"""Writing so that a crash at any moment leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class StorageError(Exception):
    """A folder or file cannot be read or written. The message is one sentence for the user."""


@contextmanager
def explained(path: Path, action: str) -> Iterator[None]:
    """Turns an operating system's error into one clear sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {action} {path}: {error.strerror or error}; earlier results are intact") from None


def names_in(folder: Path) -> list[str]:
    """What lies in a folder; nothing where there is none. Of one that may not be read, ``glob`` would say nothing."""
    with explained(folder, "read"):
        return sorted(os.listdir(folder)) if folder.is_dir() else []


def write_atomic(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename."""
    write_together({path: data})


def write_together(files: Mapping[Path, bytes]) -> None:
    """Files that belong together: none is replaced before all are on the disk."""
    temporaries = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in files}
    try:
        for path, data in files.items():
            with explained(path, "write"):
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(temporaries[path], "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
        for path, temporary in temporaries.items():
            with explained(path, "write"):
                os.replace(temporary, path)
    finally:
        for temporary in temporaries.values():
            with suppress(OSError):
                temporary.unlink()


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """What ``read_lines`` reads."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def append_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """JSON lines. A line cut short by a crash is dropped when the file is read."""
    text = json_lines(map(finite, rows))
    with explained(path, "append to"), open(path, "a", encoding="utf-8") as file:
        file.write(text)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON lines file up to the first that is damaged or cut short; nothing if there is no file."""
    if not path.exists():
        return []
    with explained(path, "read"):
        lines = path.read_bytes().split(b"\n")[:-1]
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("epoch"), int):
            break
        rows.append(row)
    return rows


def keep_lines(path: Path, last_epoch: int) -> None:
    """Cuts a JSON lines file back to the epochs up to ``last_epoch``."""
    if path.exists():
        rows = [row for row in read_lines(path) if row["epoch"] <= last_epoch]
        write_atomic(path, json_lines(rows).encode())


def finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: they become null, in tables and lists within it too."""
    return {name: _finite(value) for name, value in row.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return finite(value)
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
