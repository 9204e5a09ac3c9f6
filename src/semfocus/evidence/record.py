"""One run as the evidence keeps it: read from a lab's folder, put beside an older record, written back as a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..lab.results import MEASURED, Run
from ..training.convergence import summarise
from ..training.files import StorageError, json_lines, write_together
from ..training.run_directory import RUN_NAME, RunDirectory

Rows = list[dict[str, Any]]
Status = Literal["finished", "diverged", "unfinished"]

#: Columns of a run's curve that are kept, epoch by epoch.
COLUMNS = (
    "train_loss",
    "train_accuracy",
    "heldout_loss",
    "heldout_accuracy",
    "train_sequence_accuracy",
    "heldout_sequence_accuracy",
    "tokens",
    "train_seconds",
)
#: Kept at a run's first epoch and at diagnosed ones: elsewhere nothing reads them, and their digits do not compress.
GRADIENT = ("gradient_norm", "gradient_deviation")
PROBE_COLUMNS = ("step", "train_loss", "train_accuracy")
#: Significant digits of a curve's numbers: losses are sums in float32, whose order decides what comes after these.
DIGITS = 6
#: A table of more numbers than this is kept for the first run of each arm alone.
LARGE = 2_000


@dataclass(frozen=True)
class Record:
    """One run."""

    run: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    summary: Mapping[str, Any] | None  # None: it is not over
    rows: Rows  # its curve, with "diagnostics" inside
    seconds: float  # of the whole population it trained in
    measured: Mapping[str, Any] = field(default_factory=dict)
    probes: Rows = field(default_factory=list)

    @property
    def status(self) -> Status:
        if self.summary is None:
            return "unfinished"
        return "diverged" if self.summary["status"] == "diverged" else "finished"

    @property
    def epoch(self) -> int:
        """The last one it has."""
        return int(self.rows[-1]["epoch"]) if self.rows else -1

    @property
    def date(self) -> str:
        return str(self.environment.get("date", ""))

    @property
    def is_classifier(self) -> bool:
        return "task" in self.config

    def outcome(self) -> Mapping[str, Any]:
        """Its summary; of a classifier that is not over, what can be said so far."""
        if self.summary is not None:
            return self.summary
        return summarise(self.rows) if self.is_classifier and self.rows else {}

    @property
    def share_of_population(self) -> float:
        """Its share of its population's seconds."""
        return self.seconds / max(int(self.environment.get("population", 1)), 1)

    @property
    def own_seconds(self) -> float:
        """Its share of the device's time: of its population's, and that may have shared the device with others."""
        return self.share_of_population / max(float(self.environment.get("sharing", 1.0)), 1.0)

    def went_on_from(self, old: Record) -> bool:
        """Is this the same training as an older record's, only further? One that began anew parts from it."""
        further = self.epoch > old.epoch or self.summary is not None
        same = [row for row in self.rows if row["epoch"] == old.epoch] == old.rows[-1:]
        return old.summary is None and further and same and self.seconds >= old.seconds

    def is_another_than(self, old: Record) -> bool:
        """Has it other epochs than an older record of its run, or another end?"""
        return (self.summary, self.rows) != (old.summary, old.rows)


def record_of(run: Run, grids: bool) -> Record | None:
    """What a lab's folder holds of a run; None before it has begun. ``grids``: with its large tables."""
    rows = run.rows
    path = run.directory.path / "config.json"
    if not rows and run.summary is None:
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError:  # nothing to delete, and nothing to train again
        raise
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} is damaged ({error}); delete its folder and run the study again") from None
    if not RUN_NAME.fullmatch(run.directory.run) or not isinstance(config, dict):
        raise StorageError(f"{path} is no config of a run")
    seconds = sum(row.get("seconds") or 0.0 for row in rows) or (rows[-1].get("train_seconds") or 0.0 if rows else 0.0)
    return Record(
        run=run.directory.run,
        config=config,
        environment=run.environment,
        summary=run.summary,
        rows=_curve(rows),
        seconds=round(float(seconds), 3),
        measured=run.measured if grids else without_grids(run.measured),
        probes=[_chosen(row, ("epoch", *PROBE_COLUMNS)) for row in run.probes],
    )


def _curve(rows: Rows) -> Rows:
    first = next((row["epoch"] for row in rows if row["epoch"] > 0), None)
    kept = []
    for row in rows:
        whole = row["epoch"] == first or "diagnostics" in row
        chosen = _chosen(row, ("epoch", *COLUMNS, *(GRADIENT if whole else ())))
        kept.append(chosen | ({"diagnostics": row["diagnostics"]} if "diagnostics" in row else {}))
    return kept


def _chosen(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: _rounded(row[name]) for name in names if name in row}


def _rounded(value: Any) -> Any:
    """
    >>> _rounded(0.10232525100708008), _rounded(12345678), _rounded(None)
    (0.102325, 12345678, None)
    """
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def without_grids(measured: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, without tables of more than ``LARGE`` numbers.

    >>> without_grids({"surface": {"slope": 2.0, "losses": [[0.0] * 100] * 100}})
    {'surface': {'slope': 2.0}}
    """
    return {
        name: without_grids(value) if isinstance(value, Mapping) else value
        for name, value in measured.items()
        if _numbers(value) <= LARGE or isinstance(value, Mapping)
    }


def _numbers(value: Any) -> int:
    return sum(map(_numbers, value)) if isinstance(value, list) else 1


def merged(old: Record, new: Record) -> Record:
    """Of two records of one run the complete one; of two complete ones the newer; of two incomplete the longer.

    What was measured on the loser's weights stays only if both are the same training.
    """
    if not new.is_another_than(old):
        measured = {
            name: _fuller(old.measured.get(name), new.measured.get(name)) for name in {**old.measured, **new.measured}
        }
        return replace(
            max(old, new, key=lambda record: record.date), measured=measured, probes=new.probes or old.probes
        )
    return max(old, new, key=lambda record: (record.summary is not None, *_rank(record)))


def _rank(record: Record) -> tuple[int, str]:
    return (0, record.date) if record.summary is not None else (record.epoch, record.date)


def _fuller(old: Any, new: Any) -> Any:
    """A measurement with its grid rather than without."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **new}
    return old if new is None else new


def write_run(record: Record, directory: RunDirectory) -> None:
    """A run's folder again, without weights. One that is over, or further than ours, is left as it is."""
    if directory.is_finished():
        return
    if record.summary is None and (there := directory.metrics()) and there[-1]["epoch"] >= record.epoch:
        return
    tables: dict[str, Any] = {"config.json": record.config, "environment.json": record.environment}
    if record.measured:
        tables[MEASURED] = record.measured
    if record.summary is not None:
        tables["summary.json"] = record.summary
    # The seconds of all epochs are known by their sum alone.
    curve = [*record.rows[:-1], *({**row, "seconds": record.seconds} for row in record.rows[-1:])]
    lines = {"metrics.jsonl": json_lines(curve), "probe.jsonl": json_lines(record.probes)}
    texts = {name: text for name, text in lines.items() if text}
    texts |= {name: json.dumps(value, allow_nan=False) + "\n" for name, value in tables.items()}
    # The summary last: a run that has one is whole.
    write_together({directory.path / name: text.encode() for name, text in texts.items()})
