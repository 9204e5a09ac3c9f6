"""What a study's runs gave, read from its folder alone: curves, convergence times, accuracies, what became of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ..training.convergence import first_crossing
from ..training.files import StorageError
from ..training.protocol import RunConfig
from ..training.run_directory import RunDirectory
from .cost import steps_per_epoch
from .reach import Reach, reach
from .stats import ConvergenceTimes
from .store import Manifest, Question, Store
from .study import Arm

Split = Literal["train", "heldout"]
Status = Literal["finished", "diverged", "begun", "waiting"]
LEVEL = 0.95
#: Beside a run's metrics: what a study measured on its weights after training.
MEASURED = "measured.json"


def _gap(epochs: list[int]) -> bool:
    """Is an evaluation missing? They are equally far apart; the last may come sooner.

    >>> _gap([0, 4, 8, 10]), _gap([0, 1, 3]), _gap([0, 2, 3, 4]), _gap([0])
    (False, True, True, False)
    """
    steps = [after - before for before, after in pairwise(epochs)]
    return bool(steps) and (set(steps[:-1]) - {steps[0]} != set() or not 0 < steps[-1] <= steps[0])


def lacks_probes(
    config: Mapping[str, Any], summary: Mapping[str, Any] | None, probes: Iterable[Mapping[str, Any]]
) -> bool:
    """Are these not all the probes of a run that is over? Without one its time would be another."""
    train = config.get("train")
    if summary is None or not isinstance(train, dict) or not train.get("probe_every"):  # language models have none
        return False
    known = RunConfig.from_dict(config)
    epochs = None if summary["status"] == "finished" else int(summary.get("diverged_epoch") or 1) - 1
    return not set(known.train.probed_steps(steps_per_epoch(known), epochs)) <= {row.get("step") for row in probes}


@dataclass(frozen=True)
class Run:
    """One run as found on disk."""

    seed: int
    directory: RunDirectory

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The lines of its ``metrics.jsonl``; none before it has started.

        A run that is over must have its whole curve: without its end it would count as never converged.
        """
        rows = self.directory.metrics()
        summary = self.summary
        if summary is not None and summary["status"] == "finished":
            epochs = summary.get("epochs", rows[-1]["epoch"] if rows else None)
            if not rows or rows[-1]["epoch"] != epochs or _gap([row["epoch"] for row in rows]):
                raise self.directory.damaged("metrics.jsonl")
        for row in rows:
            for column in ("train_accuracy", "heldout_accuracy"):
                if not isinstance(row.get(column, 0.0), int | float | None):
                    path = self.directory.path / "metrics.jsonl"
                    raise StorageError(f"{path}: {column} is {row[column]!r} at epoch {row['epoch']}; it is no number")
        return rows

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """None before it is over."""
        return self.directory.summary() if self.directory.is_finished() else None

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Where it was trained, and with what. A result whose origin is lost is none."""
        name = "environment.json"
        found = self._table(name)
        if not found and (self.directory.path / name).exists():
            raise self.directory.damaged(name)
        return found

    @cached_property
    def measured(self) -> dict[str, Any]:
        """What was measured on its trained weights, by name."""
        return self._table(MEASURED)

    def _table(self, name: str) -> dict[str, Any]:
        """A JSON file of its folder; nothing where there is none, or a damaged one."""
        try:
            found = json.loads((self.directory.path / name).read_text(encoding="utf-8"))
        except PermissionError:  # it may be there: said, not passed over
            raise
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def diagnostic(self, epoch: int, name: str, quantity: str) -> float | None:
        """A number that was measured during training; epoch -1 is the last at which it was."""
        rows = [row for row in self.rows if "diagnostics" in row]
        chosen = rows[-1:] if epoch == -1 else [row for row in rows if row["epoch"] == epoch]
        value: float | None = chosen[0]["diagnostics"].get(name, {}).get(quantity) if chosen else None
        return value

    @property
    def status(self) -> Status:
        if self.summary is not None:
            return "diverged" if self.summary["status"] == "diverged" else "finished"
        return "begun" if self.rows else "waiting"

    def crossing(self, split: Split, level: float, steps: int | None = None) -> float | None:
        """The epoch at which it reached the level; None if it never did.

        With ``steps`` per epoch to a part of an epoch, by its probes, which look at a part of the training examples.
        """
        column, file = f"{split}_accuracy", "metrics.jsonl"
        try:
            curve: list[tuple[float, float | None]] = [(row["epoch"], row[column]) for row in self.rows]
            if split == "train" and steps is not None:
                file = "probe.jsonl"
                curve += [(row["step"] / steps, row[column]) for row in self.probes]
        except KeyError as error:
            raise StorageError(f"{self.directory.path / file} is damaged: a row has no {error.args[0]}") from None
        return first_crossing(sorted(curve, key=lambda point: point[0]), level)

    @cached_property
    def probes(self) -> list[dict[str, Any]]:
        """Looks at its first training examples between the evaluations; none where its config asks for none."""
        rows = self.directory.probes()
        if lacks_probes(self._table("config.json"), self.summary, rows):
            raise self.directory.damaged("probe.jsonl")
        return rows

    def last(self, column: str) -> float | None:
        """The value at the last epoch; None if the run is not over, or not finite."""
        if self.summary is None or not self.rows:
            return None
        value: float | None = self.rows[-1].get(column)
        return value


@dataclass(frozen=True)
class ArmResult:
    """One arm: a run per seed."""

    arm: Arm
    runs: tuple[Run, ...]

    @property
    def panel(self) -> str:
        return self.arm.panel

    @property
    def label(self) -> str:
        return self.arm.label

    @property
    def config(self) -> RunConfig:
        """Of a classifier; ``arm.config`` is the config of any run."""
        assert isinstance(self.arm.config, RunConfig), f"{self.label} is no classifier"
        return self.arm.config

    @property
    def epochs(self) -> int:
        return self.arm.config.train.epochs

    @cached_property
    def changed(self) -> bool:
        """Has a user's pattern or task changed since runs of this arm were trained? They are named by its source."""
        return not all(run.directory.was_trained_with(self.arm.config.code) for run in self.over)

    @cached_property
    def reach(self) -> Reach | None:
        """What its positions can see; None where today's code is not what was trained."""
        return None if self.changed else reach(self.config)

    @property
    def impossible(self) -> bool:
        return self.reach is not None and self.reach.impossible

    @property
    def over(self) -> tuple[Run, ...]:
        """The runs that have ended, well or not. Only these enter a comparison."""
        return tuple(run for run in self.runs if run.summary is not None)

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that have ended well."""
        return tuple(run for run in self.runs if run.status == "finished")

    def paired(self, other: ArmResult) -> list[tuple[Run, Run]]:
        """The runs of this and another arm with equal seeds, both finished: those that diverged have no numbers."""
        ours = {run.seed: run for run in self.finished}
        return [(ours[run.seed], run) for run in other.finished if run.seed in ours]

    def diagnostic(self, epoch: int, name: str, quantity: str) -> float | None:
        """The median over its finished runs of a number that was measured during training; see ``Run.diagnostic``."""
        known = [v for run in self.finished if (v := run.diagnostic(epoch, name, quantity)) is not None]
        return float(np.median(known)) if known else None

    def statuses(self) -> Counter[Status]:
        return Counter(run.status for run in self.runs)

    def times(self, split: Split = "train", level: float = LEVEL) -> ConvergenceTimes | None:
        """Epochs to the level, one per seed whose run is over; None before any is."""
        if not self.over or self.epochs < 1:
            return None
        resolution = float(min(self.config.train.eval_every, self.epochs))
        if self.probed(split):
            resolution = min(resolution, self.config.train.probe_every / steps_per_epoch(self.config))
        return ConvergenceTimes(
            name=self.label,
            times={run.seed: self.crossing(run, split, level) for run in self.over},
            last_epoch=self.epochs,
            diverged=frozenset(run.seed for run in self.over if run.status == "diverged"),
            resolution=resolution,
        )

    def crossing(self, run: Run, split: Split = "train", level: float = LEVEL) -> float | None:
        """The epoch at which a run of this arm reached the level, as exactly as is known."""
        return run.crossing(split, level, steps_per_epoch(self.config) if self.probed(split) else None)

    def probed(self, split: Split) -> bool:
        """Whether somebody looked between the evaluations."""
        return split == "train" and bool(self.config.train.probed_steps(steps_per_epoch(self.config)))

    def last(self, column: str) -> dict[int, float]:
        """Values at the last epoch, per seed; those that diverged are left out."""
        values = {run.seed: run.last(column) for run in self.finished}
        return {seed: value for seed, value in values.items() if value is not None}

    def best(self, column: str) -> dict[int, float]:
        """The largest value over the epochs, per seed."""
        known = {run.seed: [row[column] for row in run.rows if row.get(column) is not None] for run in self.over}
        return {seed: max(values) for seed, values in known.items() if values}

    def curves(self, column: str) -> tuple[list[int], dict[int, list[float | None]]]:
        """The epochs at which it was measured, and the values of each seed that has begun."""
        begun = [run for run in self.runs if run.rows]
        epochs = max(([row["epoch"] for row in run.rows] for run in begun), key=len, default=[])
        return epochs, {run.seed: [row.get(column) for row in run.rows] for run in begun}


class Results:
    """A question's arms with their runs."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store, self.manifest = store, manifest
        self.arms = [
            ArmResult(arm, tuple(Run(s, store.run(manifest.run_of(arm, s))) for s in manifest.seeds_of(arm)))
            for arm in manifest.arms
        ]
        self._by_name = {arm.arm.key: arm for arm in self.arms}

    @property
    def question(self) -> Question:
        return self.manifest.question

    @property
    def panels(self) -> list[str]:
        """In the order of the study."""
        return list(dict.fromkeys(arm.panel for arm in self.arms))

    def in_panel(self, panel: str) -> list[ArmResult]:
        return [arm for arm in self.arms if arm.panel == panel]

    def labels(self, panel: str) -> list[str]:
        return [arm.label for arm in self.in_panel(panel)]

    def labels_of(self, *kinds: type) -> list[str]:
        """Labels of the arms whose pattern is exactly of such a class (a user's subclass is another pattern)."""
        return list(dict.fromkeys(arm.label for arm in self.arms if type(arm.arm.config.pattern) in kinds))

    def has(self, panel: str, label: str) -> bool:
        return (panel, label) in self._by_name

    def arm(self, panel: str, label: str) -> ArmResult:
        return self._by_name[panel, label]

    def every_run(self) -> Iterable[tuple[ArmResult, Run]]:
        return ((arm, run) for arm in self.arms for run in arm.runs)

    def statuses(self) -> Counter[Status]:
        """Of each run once: two arms may share one, where the best settings of both are the same."""
        return Counter({run.directory.run: run.status for _, run in self.every_run()}.values())
