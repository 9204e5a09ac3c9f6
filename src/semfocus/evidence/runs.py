"""``runs.csv``: every run of a study in a line that people read, with the command that checks it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from ..lab.results import Results
from ..patterns import Pattern
from ..training.convergence import LEVELS
from ..training.run_directory import RUN_NAME
from .record import Record
from .speed import check_command

LEVEL_COLUMNS = [
    f"{split}_{kind}_{100 * level:.0f}"
    for split in ("train", "heldout")
    for kind in ("convergence", "sustained")
    for level in LEVELS
]
COLUMNS = (
    "run",
    "panel",
    "arm",
    "pattern",
    "seed",
    "status",
    "epoch",
    "epochs",
    *LEVEL_COLUMNS,
    "best_train_accuracy",
    "last_train_accuracy",
    "best_heldout_accuracy",
    "last_heldout_accuracy",
    "test_accuracy",
    "best_heldout_loss",
    "last_heldout_loss",
    "tokens",
    "wall_seconds",
    "population",
    "device",
    "commit",
    "torch",
    "python",
    "precision",
    "implementation",
    "date",
    "check",
)


def runs_csv(results: Results, records: Mapping[str, Record], where: str) -> str:
    """The runs that have begun, in the order of the study; a run of two arms stands in both."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for arm, run in results.every_run():
        name = run.directory.run
        assert RUN_NAME.fullmatch(name), name
        start = {"run": name, "panel": arm.panel, "arm": arm.label, "seed": run.seed, "epochs": arm.epochs}
        pattern: Pattern = arm.arm.config.pattern
        record = records.get(name)
        if record is not None:
            check = check_command(where, name, results.question.plugins)
            writer.writerow({**start, "pattern": pattern.label, **_facts(record), "check": check})
    return buffer.getvalue()


def _facts(record: Record) -> dict[str, Any]:
    found, environment = record.outcome(), record.environment
    facts: dict[str, Any] = {"status": record.status, "epoch": record.epoch, "wall_seconds": record.seconds}
    facts |= dict(_levels(found))
    facts |= {name: found[name] for name in COLUMNS if name in found and name not in ("epochs", "status")}
    facts |= {name: environment[name] for name in COLUMNS if name in environment}
    how = environment.get("implementation")
    if isinstance(how, Mapping):
        facts["implementation"] = "; ".join(f"{mode}: {value}" for mode, value in how.items())
    return {name: "" if value is None else value for name, value in facts.items()}


def _levels(found: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Empty where the level was not reached."""
    for split in ("train", "heldout"):
        for kind in ("convergence", "sustained"):
            for level, epoch in found.get(f"{split}_{kind}", {}).items():
                yield f"{split}_{kind}_{100 * float(level):.0f}", epoch
