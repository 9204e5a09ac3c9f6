"""Anyone can check one row: the run's first epochs, trained again from its stored config, beside its stored curve.

A value agrees if it differs from the stored one by at most

    floor + share * (range of the stored curve over the epoch and its two neighbours)

On the same kind of device (a GPU: the same model, and the commit and torch the run had) only the order of additions
may differ. Elsewhere products are rounded otherwise, and a run that leaves its plateau may do so a little earlier or
later; so there the curve's own steepness is allowed. Before training there is nothing to be early for: at epoch 0
only the floor counts, and a wrong config or seed is noticed. Where a later value is further away, copies of the run
show how far rounding alone moves it there (rounding.py): up to ``TIMES`` as far it is called sensitive, not wrong.
``docs/reproduction.md`` says what the numbers were taken from.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..lab.configs import Config, config_of
from ..lab.execute import on_this_machine
from ..lab.results import Run
from ..lab.store import Store
from ..registry import sources
from ..training.environment import short
from ..training.files import StorageError
from ..training.progress import Progress
from ..training.protocol import RunConfig
from ..training.run_directory import RUN_NAME
from .folder import Evidence
from .record import Record
from .rounding import spread, train_copies, unit

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
#: Copies are few: the stored run may be so many times as far away as the furthest of them. Of honest values whose
#: deviations are normal one in 54 is further (numerically, for three copies).
TIMES = 3.0


@dataclass(frozen=True)
class Compared:
    """One value of the curve."""

    epoch: int
    column: str
    stored: float | None
    again: float | None  # None: not finite
    tolerance: float
    copies: float | None = None  # how far copies of the run are from it; None: none were trained

    @property
    def difference(self) -> float:
        if self.stored is None or self.again is None:
            return 0.0 if self.stored is self.again else math.inf
        return abs(self.stored - self.again)

    @property
    def agrees(self) -> bool:
        return self.difference <= self.tolerance

    @property
    def sensitive(self) -> bool:
        """Too far away for the tolerance, and not for what rounding does."""
        return not self.agrees and self.copies is not None and self.difference <= TIMES * self.copies

    def shown(self) -> str:
        stored, again = ("not finite" if v is None else f"{v:.6f}" for v in (self.stored, self.again))
        apart = "-" if self.stored is None or self.again is None else f"{self.difference:.1e}"
        verdict = "agrees" if self.agrees else "DISAGREES"
        numbers = f"{stored:>10}  {again:>10}  {apart:>10}  {self.tolerance:9.1e}"
        return f"{self.epoch:5}  {self.column:16}  {numbers}  {verdict}"

    def beside_copies(self) -> str:
        copies = "-" if self.copies is None else f"{self.copies:.1e}"
        verdict = "sensitive" if self.sensitive else "DISAGREES"
        return f"{self.epoch:5}  {self.column:16}  {self.difference:10.1e}  {copies:>10}  {verdict}"


COPIES_HEADER = "epoch  value             difference      copies"
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

    config: Config
    values: Sequence[Compared]
    tolerance: Tolerance
    again: Sequence[Mapping[str, Any]]  # the new curve
    unit: float  # how far rounding moves a number in either training, relative to its size

    @property
    def outside(self) -> list[Compared]:
        return [one for one in self.values if not one.agrees]

    @property
    def wrong(self) -> int:
        return sum(not one.sensitive for one in self.outside)

    @property
    def may_be_rounding(self) -> bool:
        """Could copies explain what is outside? Not before training; and of language models there are none."""
        return bool(self.outside) and self.outside[0].epoch > 0 and isinstance(self.config, RunConfig)

    def beside_copies(self, device: str, threads: int | None, progress: Progress | None = None) -> Checked:
        """With copies of the run trained as far."""
        if not isinstance(self.config, RunConfig):
            raise TypeError("there are copies of classifiers only")
        until = max(row["epoch"] for row in self.again)
        curves = train_copies(self.config, until, self.unit, device, threads, progress or Progress(None))
        values = [
            replace(one, copies=spread(curves, self.again, one.epoch, one.column)) if one.epoch else one
            for one in self.values
        ]
        return replace(self, values=values)

    def said(self) -> str:
        """The last line."""
        of = len(self.values)
        if self.wrong:
            return f"{self.wrong} of {of} values disagree"
        if not self.outside:
            return f"all {of} values agree"
        return (
            f"{of - len(self.outside)} of {of} values agree, {len(self.outside)} cannot be told from rounding: "
            f"the copies are as far from the run there, within a factor of {TIMES:g}"
        )


def check(record: Record, epochs: int, device: str, threads: int | None, progress: Progress | None = None) -> Checked:
    """Trains the run's first epochs again, from the beginning, and compares them with its stored curve."""
    config = config_of(record.config)
    if config.hash != record.run:
        why = "it was trained with another version of semfocus"
        if sources(*config.code):
            why = "its pattern or task has changed since it was trained; check it with the file as it was"
        raise StorageError(f"the stored config of run {record.run} gives run {config.hash} now: {why}")
    wanted = epochs_compared(config, epochs)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), "check")
        _train(config, wanted, store, device, threads, progress or Progress(None))
        run = Run(config.seed, store.run(config.hash))
        again, environment = run.directory.metrics(), run.environment
    tolerance = tolerance_for(record.environment, environment)
    found = compared(record.rows, again, tolerance)
    if not found:
        raise StorageError(f"run {record.run} has no stored epoch among the first {wanted}")
    return Checked(config, found, tolerance, again, unit(record.environment, environment, alike=tolerance is SAME))


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
