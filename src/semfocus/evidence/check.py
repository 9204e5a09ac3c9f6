"""Anyone can check one row: the run's first epochs, trained again from its stored config, beside its stored curve.

A value agrees if it differs from the stored one by at most

    floor + share * (range of the stored curve over the epoch and its two neighbours)

On the same kind of device (a GPU: the same model, and the commit and torch the run had) only the order of additions
may differ. Elsewhere products are rounded otherwise, and a run that leaves its plateau may do so a little earlier or
later; so there the curve's own steepness is allowed. Before training there is nothing to be early for: at epoch 0
only the floor counts, and a wrong config or seed is noticed. ``docs/reproduction.md`` says what the numbers were
taken from.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..lab.configs import Config, config_of
from ..lab.execute import on_this_machine
from ..lab.results import Run
from ..lab.store import Store
from ..training.environment import short
from ..training.files import StorageError
from ..training.progress import Progress
from ..training.run_directory import RUN_NAME
from .folder import Evidence
from .record import Record

COMPARED = ("train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy")


@dataclass(frozen=True)
class Tolerance:
    """How far two trainings of one run may be apart."""

    loss: float  # times the stored loss, where that is above 1
    accuracy: float
    share: float  # of the stored curve's range over neighbouring epochs

    def of(self, column: str, stored: Sequence[float | None], here: int) -> float:
        """For the value at place ``here`` of a curve, whose first place is epoch 0.

        >>> Tolerance(0.001, 0.01, 0.5).of("train_loss", [0.7, 0.6, 0.4], 1)
        0.151
        """
        floor = self.loss * max(1.0, abs(stored[here] or 0.0)) if column.endswith("loss") else self.accuracy
        near = [value for value in stored[max(here - 1, 0) : here + 2] if value is not None] if here else [0.0]
        return round(floor + self.share * (max(near, default=0.0) - min(near, default=0.0)), 12)


SAME = Tolerance(loss=1e-4, accuracy=1e-3, share=0.05)
OTHER = Tolerance(loss=2e-3, accuracy=1e-2, share=1.0)


@dataclass(frozen=True)
class Compared:
    """One value of the curve."""

    epoch: int
    column: str
    stored: float | None
    again: float | None  # None: not finite
    tolerance: float

    @property
    def agrees(self) -> bool:
        if self.stored is None or self.again is None:
            return self.stored is self.again
        return abs(self.stored - self.again) <= self.tolerance

    def shown(self) -> str:
        stored, again = ("not finite" if v is None else f"{v:.6f}" for v in (self.stored, self.again))
        apart = "-" if self.stored is None or self.again is None else f"{abs(self.stored - self.again):.1e}"
        verdict = "agrees" if self.agrees else "DISAGREES"
        numbers = f"{stored:>10}  {again:>10}  {apart:>10}  {self.tolerance:9.1e}"
        return f"{self.epoch:5}  {self.column:16}  {numbers}  {verdict}"


HEADER = "epoch  value                 stored       again  difference  tolerance"


def find(evidence: Evidence, run: str) -> Record:
    """A stored run by its name."""
    if not RUN_NAME.fullmatch(run):
        raise StorageError(
            f"run is {run!r}; names of runs are 16 digits and letters a to f, see {evidence.path / 'runs.csv'}"
        )
    if run not in evidence.records:
        raise StorageError(f"{evidence.path} has no run {run}; its runs are listed in {evidence.path / 'runs.csv'}")
    return evidence.records[run]


def tolerance_for(stored: Mapping[str, Any], again: Mapping[str, Any]) -> Tolerance:
    """By the environments of both trainings. On a GPU another model or another kernel rounds products otherwise.

    Kernels may differ from commit to commit and from one version of torch to the next.
    """
    stored, again = ({**one, "commit": short(one.get("commit"))} for one in (stored, again))
    kinds = {"cuda" if environment.get("cuda") else "cpu" for environment in (stored, again)}
    alike = ["dtype"] if kinds == {"cpu"} else ["dtype", "device", "implementation", "commit", "torch"]
    return SAME if len(kinds) == 1 and all(stored.get(name) == again.get(name) for name in alike) else OTHER


def epochs_compared(config: Config, epochs: int) -> int:
    """At least up to the first evaluation after the beginning."""
    every = getattr(config.train, "eval_every", 1)
    return min(max(epochs, every), config.train.epochs)


@dataclass(frozen=True)
class Checked:
    """What became of a check."""

    values: Sequence[Compared]
    tolerance: Tolerance

    @property
    def wrong(self) -> int:
        return sum(not one.agrees for one in self.values)


def check(record: Record, epochs: int, device: str, threads: int | None, progress: Progress | None = None) -> Checked:
    """Trains the run's first epochs again, from the beginning, and compares them with its stored curve."""
    config = config_of(record.config)
    if config.hash != record.run:
        raise StorageError(
            f"the stored config of run {record.run} gives run {config.hash} with this version of semfocus"
        )
    wanted = epochs_compared(config, epochs)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), "check")
        _train(config, wanted, store, device, threads, progress or Progress(None))
        again = Run(config.seed, store.run(config.hash))
        tolerance = tolerance_for(record.environment, again.environment)
        found = compared(record.rows, again.directory.metrics(), tolerance)
    if not found:
        raise StorageError(f"run {record.run} has no stored epoch among the first {wanted}")
    return Checked(found, tolerance)


def _train(config: Config, epochs: int, store: Store, device: str, threads: int | None, progress: Progress) -> None:
    """The run as it was configured, stopped early: what a schedule makes of its length stays as it was."""
    stopping = _After(epochs)
    try:
        on_this_machine(device, threads, progress, stopping)(store, [config])
    except KeyboardInterrupt:
        if not stopping.reached:  # somebody else's
            raise


class _After:
    """Asked once after every epoch: True from the last wanted one on."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.asked = epochs, 0

    @property
    def reached(self) -> bool:
        return self.asked >= self.epochs

    def __call__(self) -> bool:
        self.asked += 1
        return self.reached


def compared(
    stored: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]], tolerance: Tolerance
) -> list[Compared]:
    """Every value that both have, epoch by epoch."""
    new = {row["epoch"]: row for row in again}
    found = []
    for here, row in enumerate(stored):
        for column in COMPARED:
            if row["epoch"] not in new or column not in row or column not in new[row["epoch"]]:
                continue
            curve = [other.get(column) for other in stored]
            limit = tolerance.of(column, curve, here)
            found.append(Compared(row["epoch"], column, row[column], new[row["epoch"]][column], limit))
    return found
