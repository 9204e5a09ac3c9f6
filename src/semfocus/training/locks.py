"""Who trains what: locks that die with their process."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .files import explained


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Only one process at a time decides who trains what. Held for moments; it dies with its process."""
    with explained(out, "write into"):
        out.mkdir(parents=True, exist_ok=True)
        file = open(out / ".lock", "w")  # noqa: SIM115 (closed below)
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """The same for a folder in which no file is to be left: the folder itself is locked."""
    with explained(folder, "write into"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def try_lock(path: Path) -> IO[str] | None:
    """The lock of a group, an open file; None where another process holds it. It dies with its process, however."""
    with explained(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")  # noqa: SIM115 (held until the group is done)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _held(path: Path) -> bool:
    """Does some process hold this lock? Nothing is written: whoever only looks may not be allowed to."""
    with explained(path, "read"):
        try:
            with open(path) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:  # its group is over by now
            return False
        except BlockingIOError:
            return True
    return False


def in_training(out: Path) -> set[str]:
    """The runs that some process is training into this folder now."""
    return {run for path in (out / "groups").glob("[!.]*/.lock") if _held(path) for run in _runs_in(path.parent)}


def begun(out: Path) -> set[str]:
    """The runs whose training into this folder has begun and is not over: they go on from their checkpoints."""
    return {run for path in (out / "groups").glob("[!.]*") for run in _runs_in(path)}


def _runs_in(group: Path) -> set[str]:
    try:
        return set(json.loads((group / "group.json").read_text(encoding="utf-8"))["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return {group.name}  # a run that trains alone: its group has its name
