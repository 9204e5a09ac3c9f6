"""A study's folder under ``results/``: adding what a lab's folder holds, and the way back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..lab.configs import config_of
from ..lab.results import ArmResult, Results, Run, lacks_probes
from ..lab.store import Manifest, Store, merged_manifest, safe
from ..training.files import StorageError, explained, write_json
from ..training.locks import begun, in_training, locked, locked_folder
from ..training.run_directory import RUN_NAME
from ..training.strict import ConfigError
from .compact import damaged, read_csv, read_json_lines, read_text, to_csv, to_json_lines, write_texts
from .record import COLUMNS, GRADIENT, PROBE_COLUMNS, Record, merged, record_of, write_run

MANIFEST, CLOCK = "manifest.json.gz", "clock.json"
RUNS, CURVES, DIAGNOSTICS = "runs.jsonl.gz", "curves.csv.gz", "diagnostics.jsonl.gz"
MEASURED, PROBES = "measured.jsonl.gz", "probes.csv.gz"


@dataclass
class Evidence:
    """What is kept of one question: its manifest as plain data, its runs by name, and the clock's times."""

    path: Path
    manifest: dict[str, Any]
    records: dict[str, Record] = field(default_factory=dict)
    clock: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return folder_name(self.manifest)

    def save(self) -> list[Path]:
        """Writes what changed; returns which files that were."""
        records = [self.records[run] for run in sorted(self.records)]
        texts = {
            MANIFEST: json.dumps(self.manifest, indent=1) + "\n",
            RUNS: to_json_lines(self._line(record) for record in records),
            CURVES: to_csv(*_curves(records)),
            DIAGNOSTICS: to_json_lines(
                {"run": record.run, "epoch": row["epoch"], "diagnostics": row["diagnostics"]}
                for record in records
                for row in record.rows
                if "diagnostics" in row
            ),
            MEASURED: to_json_lines({"run": r.run, "measured": r.measured} for r in records if r.measured),
            PROBES: to_csv(
                ("run", "epoch", *PROBE_COLUMNS), ({"run": r.run, **row} for r in records for row in r.probes)
            ),
            CLOCK: json.dumps(self.clock, indent=1, sort_keys=True) + "\n",
        }
        optional = {DIAGNOSTICS: "", MEASURED: "", PROBES: to_csv(("run", "epoch", *PROBE_COLUMNS), ()), CLOCK: "{}\n"}
        kept = {self.path / name: text for name, text in texts.items() if text != optional.get(name)}
        written = write_texts(kept)
        for name in optional:  # what a folder no longer has: its runs were planned anew
            if self.path / name not in kept:
                with explained(self.path / name, "remove"):
                    (self.path / name).unlink(missing_ok=True)
        return written

    def _line(self, record: Record) -> dict[str, Any]:
        """A run's line: what people look for first, then what the lab's files held."""
        arms = [[a["panel"], a["label"]] for a in self.manifest["arms"] if record.run in a["runs"].values()]
        return {
            "run": record.run,
            "arms": arms,
            "pattern": record.config.get("pattern"),
            "seed": record.config.get("seed"),
            "status": record.status,
            "epoch": record.epoch,
            "seconds": record.seconds,
            "summary": record.summary,
            "environment": record.environment,
            "config": record.config,
        }

    def restore(self, root: Path) -> Results:
        """Rebuilds the study's folder under a lab's folder, without weights.

        What is finished there, in training or further than ours stays as it is, and so does what has begun there and
        is not over in ours: from a checkpoint it would go on with the beginning of another training.
        """
        store = Store(root, self.manifest["study"])
        name = safe(str(self.manifest["name"]))
        with locked(store.path), explained(store.path, "write"):
            store.add_manifest(self.manifest)
            if self.clock and not (store.path / CLOCK).exists():
                write_json(store.path / CLOCK, self.clock)
            busy, here = in_training(store.path), begun(store.path)
            for record in self.records.values():
                if record.run not in (busy if record.summary is not None else here):
                    write_run(record, store.run(record.run))
        return Results(store, store.manifest(name))


def folder_name(manifest: Mapping[str, Any]) -> str:
    return f"{safe(str(manifest['study']))}-{safe(str(manifest['name']))}"


def _curves(records: Iterable[Record]) -> tuple[list[str], list[dict[str, Any]]]:
    rows = [{"run": record.run, **row} for record in records for row in record.rows]
    present = {name for row in rows for name in row}
    return ["run", "epoch", *(name for name in (*COLUMNS, *GRADIENT) if name in present)], rows


def load(path: Path) -> Evidence:
    """A folder of evidence. What is damaged is refused with a sentence that names the file."""
    if not (path / MANIFEST).is_file():
        raise StorageError(
            f"{path} holds no results; `semfocus results add LAB --into {path.parent}` would put some there"
        )
    try:
        manifest = json.loads(read_text(path / MANIFEST))
        Manifest.from_dict(manifest)
        given, own = folder_name(manifest), path.resolve().name
    except ConfigError as error:
        raise StorageError(f"{path / MANIFEST}: {error}; was it run with a --plugin?") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path / MANIFEST, f"{type(error).__name__}: {error}") from None
    if given != own:
        raise StorageError(f"{path} holds the results of {given}; rename the folder to that")
    return Evidence(path, manifest, _records(path), clock_of(path))


def clock_of(folder: Path) -> dict[str, Any]:
    """The times of steps in a folder's clock, by device."""
    path = folder / CLOCK
    if not path.exists():
        return {}
    try:
        found = json.loads(read_text(path))
        if isinstance(found, dict) and all(isinstance(table, dict) for table in found.values()):
            return found
    except ValueError:
        pass
    raise StorageError(f"{path} is damaged; delete this file: `semfocus run` times the steps again")


def _records(path: Path) -> dict[str, Record]:
    curves = _by_run(path / CURVES, read_csv(path / CURVES))
    probes = _by_run(path / PROBES, read_csv(path / PROBES))
    diagnosed = {(row["run"], row.get("epoch")): row.get("diagnostics") for row in read_json_lines(path / DIAGNOSTICS)}
    measured = {row["run"]: row.get("measured") or {} for row in read_json_lines(path / MEASURED)}
    records = {}
    for line in read_json_lines(path / RUNS):
        run = line["run"]
        rows = curves.get(run, [])
        for row in rows:
            if (run, row["epoch"]) in diagnosed:
                row["diagnostics"] = diagnosed[run, row["epoch"]]
        try:
            config_of(line["config"])
            if not RUN_NAME.fullmatch(run):
                raise ValueError(f"{run!r} is no name of a run")
            if not all(isinstance(table, dict) for table in (line["environment"], measured.get(run, {}))):
                raise ValueError("what it was measured or run on is no table")
            record = Record(
                run, line["config"], line["environment"], line["summary"], rows, float(line["seconds"]),
                measured.get(run, {}), probes.get(run, []),
            )  # fmt: skip
            _check_whole(record, line)
        except ConfigError as error:
            raise StorageError(f"{path / RUNS}, run {run}: {error}; was it run with a --plugin?") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(path / RUNS, f"run {run}: {error}") from None
        records[run] = record
    lost = sorted(set(curves) - set(records))
    if lost:
        raise damaged(path / RUNS, f"it lacks run {lost[0]}, whose curve is in {CURVES}")
    return records


def _check_whole(record: Record, line: Mapping[str, Any]) -> None:
    """The files of a folder must belong together."""
    if record.status != line["status"]:
        raise ValueError(f"its status is {line['status']!r}, its summary says {record.status!r}")
    if record.epoch != line["epoch"]:
        raise ValueError(f"its last epoch is {line['epoch']}, its curve in {CURVES} ends at {record.epoch}")
    if lacks_probes(record.config, record.summary, record.probes):
        raise ValueError(f"its probes in {PROBES} are not all there")


def _by_run(path: Path, rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        run = row.pop("run")
        if not RUN_NAME.fullmatch(run):
            raise damaged(path, f"{run!r} is no name of a run")
        found.setdefault(run, []).append(row)
    return found


@dataclass(frozen=True)
class Added:
    """What ``add`` did."""

    path: Path
    new: int  # runs that were not there
    better: int  # that were there, and are newer or further now
    kept: int  # that were there and stay as they were
    dropped: int  # whose arms were planned anew
    files: int  # that were written


def add(store: Store, name: str, into: Path, wall: float | None = None) -> Added:
    """Adds what a lab's folder holds of one question to its evidence. No run that is there already is lost, but
    for those of arms that were planned anew since.

    ``wall``: seconds in which the runs that are new or went on have trained since, where several processes shared a
    device.
    """
    manifest = store.manifest(name)
    plain = manifest.to_dict()
    path = into / folder_name(plain)
    found = _found(Results(store, manifest))
    if not found and not (path / MANIFEST).exists():
        return Added(path, 0, 0, 0, 0, 0)  # an empty study would be listed as one that ran
    with locked_folder(into):
        return _join(path, plain, found, clock_of(store.path), wall)


def _join(
    path: Path, plain: dict[str, Any], found: dict[str, Record], clock: dict[str, Any], wall: float | None
) -> Added:
    """Adds a manifest, runs and times to a folder, which may be new."""
    old = load(path) if (path / MANIFEST).exists() else Evidence(path, plain)
    new = {run: record for run, record in found.items() if run not in old.records}
    there = {run: old.records[run] for run in found.keys() - new}
    again = {run: found[run] for run, known in there.items() if _replaces(found[run], known)}
    begun = {run: there[run] for run, record in again.items() if record.went_on_from(there[run])}
    found |= shared({**new, **again}, begun, wall)
    new = {run: found[run] for run in new}
    both = {run: merged(old.records[run], record) for run, record in found.items() if run in old.records}
    better = sum(record != old.records[run] for run, record in both.items())
    times = {device: {**old.clock.get(device, {}), **clock.get(device, {})} for device in sorted({*old.clock, *clock})}
    plan = merged_manifest(old.manifest, plain)
    records = {**old.records, **new, **both}
    planned = {run for arm in plan["arms"] for run in arm["runs"].values()}
    now = Evidence(path, plan, {run: record for run, record in records.items() if run in planned}, times)
    return Added(path, len(new), better, len(both) - better, len(records.keys() - planned), len(now.save()))


def _replaces(record: Record, old: Record) -> bool:
    return record.is_another_than(old) and merged(old, record) is record


def shared(records: Mapping[str, Record], begun: Mapping[str, Record], wall: float | None) -> dict[str, Record]:
    """Records that say how many populations trained at once, on average: the sum of their times over the real one.

    Of those that had ``begun`` before, ``wall`` is the time since then, and what is known of the time before stays.
    """
    since = {
        # At least 0: since then its population may have grown.
        run: max(one.share_of_population - (begun[run].share_of_population if run in begun else 0.0), 0.0)
        for run, one in records.items()
    }
    total = sum(since.values())
    if wall is not None and not 0 < wall <= total:
        raise StorageError(
            f"--wall is {wall:g}; the new runs took {total:.0f} s one by one, and those that share a device take less"
        )
    at_once = 1.0 if wall is None else total / wall
    found = dict(records)
    for run, one in records.items():
        if wall is not None or run in begun:
            own = since[run] / at_once + (begun[run].own_seconds if run in begun else 0.0)
            sharing = round(one.share_of_population / own, 4) if own else 1.0
            environment = {name: value for name, value in one.environment.items() if name != "sharing"}
            found[run] = replace(one, environment=environment | ({"sharing": sharing} if sharing != 1.0 else {}))
    return found


def _check_config(record: Record, run: Run, arm: ArmResult) -> None:
    """A run's config must be the one that its arm plans: numbers of another experiment would pass for its own."""
    if arm.changed:
        raise StorageError(
            f"{arm.label}: its pattern or task has changed since these runs were trained; add them with the file as it "
            "was, or run the study again"
        )
    path = run.directory.path / "config.json"
    try:
        same = config_of(record.config) == arm.arm.with_seed(run.seed)
    except ConfigError as error:
        raise StorageError(f"{path}: {error}; delete its folder and run the study again") from None
    if not same:
        raise StorageError(f"{path} is not the config of this run; delete its folder and run the study again")


def _found(results: Results) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for arm in results.arms:
        grids = True  # for the first run of the arm that was measured
        for run in arm.runs:
            record = record_of(run, grids)
            if record is None:
                continue
            _check_config(record, run, arm)
            grids = grids and not record.measured
            known = records.get(record.run)  # a run may belong to two arms
            records[record.run] = merged(known, record) if known else record
    return records
