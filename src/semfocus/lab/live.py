"""A running study in TensorBoard: its metrics, mirrored into event files as they are written.

A reader only: training knows nothing of it, and it can be started, stopped and started again at any time.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..training.files import explained, names_in, read_lines
from .store import stores

COLUMNS = ("train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy")
FOLDER = "tensorboard"


class Mirror:
    """Follows every run under a folder; ``update`` adds what is new since the last call."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.directory = directory
        self.make: Callable[..., Any] = SummaryWriter
        self.writers: dict[Path, Any] = {}
        self.seen: dict[Path, int] = {}  # the last epoch written
        self.over: set[Path] = set()  # nothing will be added to these; a writer holds a thread

    def update(self) -> int:
        """How many lines were new."""
        new = 0
        for store in stores(self.directory):
            for run in names_in(store.path / "runs"):
                new += self._follow(store.path, store.path / "runs" / run)
        return new

    def _follow(self, store: Path, run: Path) -> int:
        if run in self.over:
            return 0
        over = (run / "summary.json").exists()  # looked at first: then the curve is whole
        last = self.seen.get(run, -1)
        rows = [row for row in read_lines(run / "metrics.jsonl") if row["epoch"] > last]
        if rows:
            self._write(store, run, rows)
            self.seen[run] = rows[-1]["epoch"]
        if over:
            self.over.add(run)
            if run in self.writers:
                self.writers.pop(run).close()
        return len(rows)

    def _write(self, store: Path, run: Path, rows: list[dict[str, Any]]) -> None:
        if run not in self.writers:
            folder = store / FOLDER / _title(run)
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier call: every point would be there twice
            with explained(folder, "write"):
                self.writers[run] = self.make(log_dir=str(folder))
        for row in rows:
            for column in COLUMNS:
                if row.get(column) is not None:
                    self.writers[run].add_scalar(column, row[column], row["epoch"])
        self.writers[run].flush()


def _title(run: Path) -> str:
    """Task, pattern and seed, and the hash that makes it one of a kind. Letters, digits and a few signs only."""
    try:
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        words = [config["task"]["name"], *map(str, config["pattern"].values()), f"seed{config['seed']}", run.name]
    except (OSError, ValueError, KeyError, AttributeError):
        words = [run.name]
    return "_".join("".join(c for c in word if c.isalnum() or c in "-.") for word in words)


def follow(directory: Path, *, once: bool, every: float = 5.0, say: Callable[[str], None] = print) -> None:
    """Mirrors until interrupted, or once."""
    mirror = Mirror(directory)
    lines = mirror.update()
    say(f"{lines} lines of {len(mirror.seen)} runs mirrored; look with: tensorboard --logdir {directory}")
    while not once:
        time.sleep(every)
        mirror.update()
