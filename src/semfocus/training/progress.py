"""What a person sees while runs train: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from statistics import median
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

#: Seconds between plain lines, and between looks inside an epoch.
LINE_EVERY = 10.0
SHOWN = ("train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy")


class Progress:
    """Follows groups of runs. Use as a context manager; ``console=None`` shows nothing.

    ``until``: the epoch after which they will be stopped, where that is before their end.
    """

    def __init__(self, console: Console | None, until: int | None = None) -> None:
        self.console, self.until = console, until
        self.live: Live | None = None
        self.runs = self.done = 0
        self.begun = self.last_line = self.last_look = time.monotonic()
        self.work = self.worked = 0  # runs x epochs
        self.newest: tuple[int, int, list[dict[str, Any]]] | None = None

    def __enter__(self) -> Progress:
        if self.console is not None and self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def plan(self, runs: int, work: int) -> None:
        """``work``: the sum of the epochs still to train over all runs."""
        self.work = work if self.until is None else min(work, runs * self.until)
        self.runs, self.worked, self.begun = runs, 0, time.monotonic()

    def say(self, sentence: str) -> None:
        if self.console is not None:
            self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def finished(self, runs: int) -> None:
        """So many runs are over in all."""
        self.done = runs
        self._refresh()

    def epoch(self, epoch: int, epochs: int, rows: list[dict[str, Any]], worked: int) -> None:
        """After an epoch of a group: its members' newest metrics, and how much of the work that was."""
        self.worked += worked
        epochs = epochs if self.until is None else min(epochs, self.until)
        self.newest = (epoch, epochs, rows)
        self._refresh()
        now = time.monotonic()
        if self.live is None and self.console is not None and (now - self.last_line >= LINE_EVERY or epoch == epochs):
            self.last_line = now
            best, middle = _described(rows)
            self.say(
                f"runs {self.done}/{self.runs}  epoch {epoch}/{epochs}  median {middle}  best {best}  "
                f"time left {self._left()}"
            )

    def within(self, what: str, done: int, of: int) -> None:
        """On the way through an epoch, or an evaluation: so many of its steps are done."""
        now = time.monotonic()
        if self.console is None or now - max(self.last_line, self.last_look) < LINE_EVERY:
            return
        self.last_look = now  # the line after the epoch comes all the same
        sentence = f"{what}: step {done} of {of}"
        if self.live is None:
            self.say(f"runs {self.done}/{self.runs}  {sentence}")
        else:
            self.live.update(Group(self._table(*self.newest), sentence) if self.newest else Text(sentence))

    def _left(self) -> str:
        if not self.worked:
            return "?"
        seconds = (time.monotonic() - self.begun) * (self.work - self.worked) / self.worked
        minutes, seconds = divmod(max(round(seconds), 0), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes >= 60 else f"{minutes}:{seconds:02}"

    def _refresh(self) -> None:
        if self.live is not None and self.newest is not None:
            self.live.update(self._table(*self.newest))

    def _table(self, epoch: int, epochs: int, rows: list[dict[str, Any]]) -> Table:
        best, middle = _described(rows)
        table = Table(box=None, padding=(0, 2))
        for column in ("runs done", "in training", "epoch", "median member", "best member", "time left"):
            table.add_column(column)
        table.add_row(f"{self.done}/{self.runs}", str(len(rows)), f"{epoch}/{epochs}", middle, best, self._left())
        return table


def _described(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Loss and accuracies of the best and of the median member."""
    shown = [key for key in SHOWN if rows and key in rows[0]]
    known = [row for row in rows if all(row[key] is not None and math.isfinite(row[key]) for key in shown)]
    if not known:
        return "-", "-"
    best = min(known, key=lambda row: float(row["train_loss"]))
    return _line(best), _line({key: median(row[key] for row in known) for key in shown})


def _line(row: dict[str, Any]) -> str:
    """A language model has a held-out loss and no accuracies."""
    if "train_accuracy" not in row:
        return f"loss {row['train_loss']:.3f}, held-out {row['heldout_loss']:.3f}"
    return f"loss {row['train_loss']:.3f}, train {row['train_accuracy']:.1%}, held-out {row['heldout_accuracy']:.1%}"
