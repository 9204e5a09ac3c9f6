"""Checkpoints of a group: safetensors files with a checksum, of which the newest few are kept.

``index.json`` lists them, newest first. A checkpoint counts only once it is listed there with its checksum, and one
whose bytes no longer match is reported and passed over for the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from .files import write_atomic, write_json

KEEP = 2
INDEX = "index.json"
#: How the name of a folder ends that is being removed.
GONE = ".gone"


def save(folder: Path, epoch: int, state: dict[str, Tensor]) -> None:
    """Writes the state after ``epoch`` epochs and forgets all but the newest ``KEEP``."""
    data = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
    name = f"epoch-{epoch}.safetensors"
    write_atomic(folder / name, data)
    entry = {"file": name, "epoch": epoch, "sha256": hashlib.sha256(data).hexdigest()}
    entries = [entry, *(old for old in _index(folder) if old["file"] != name)][:KEEP]
    write_json(folder / INDEX, entries)
    listed = {item["file"] for item in entries}
    for old in folder.glob("epoch-*.safetensors"):
        if old.name not in listed:
            old.unlink(missing_ok=True)


def load(folder: Path, warn: Callable[[str], None]) -> tuple[int, dict[str, Tensor]] | None:
    """The newest sound checkpoint, as (epochs done, state); None if there is none."""
    for entry in _index(folder):
        path = folder / entry["file"]
        try:
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise ValueError("its checksum does not match")
            return int(entry["epoch"]), safetensors.torch.load(data)
        except (OSError, ValueError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            warn(f"checkpoint {path.name} is damaged ({reason}); looking for the one before it")
    if any(folder.glob("epoch-*.safetensors")):
        warn("no sound checkpoint is left; starting from the beginning")
    return None


def remove(folder: Path) -> None:
    """Forgets a group's checkpoints and its record: all at once, or a crash would leave some without the others."""
    gone = folder.with_name(f".{folder.name}.{os.getpid()}{GONE}")
    try:
        os.replace(folder, gone)
    except OSError:
        gone = folder
    shutil.rmtree(gone, ignore_errors=True)


def remove_rest(groups: Path) -> None:
    """What processes that died while they removed something have left."""
    for path in groups.glob(f".*{GONE}"):
        shutil.rmtree(path, ignore_errors=True)


def _index(folder: Path) -> list[dict[str, Any]]:
    try:
        entries: list[dict[str, Any]] = json.loads((folder / INDEX).read_text())
        return [e for e in entries if {"file", "epoch", "sha256"} <= e.keys() and Path(e["file"]).name == e["file"]]
    except (OSError, ValueError, AttributeError, TypeError):
        return []  # none yet, or the index itself is damaged: the run starts from the beginning
