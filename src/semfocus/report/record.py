"""For the record: what became of each run, how it was configured, where it ran, and how the numbers were judged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..lab.results import LEVEL, ArmResult, Results, Run, Split
from ..lab.stats import ALPHA, EQUIVALENT, EXACT_SEEDS, FEWEST_SEEDS, HEAVY_CENSORING
from ..training.environment import short
from .parts import NOTHING, Cell, Section, Table, percent

TONES = {"diverged": "bad", "begun": "muted"}
METHODS = """The time T is the first evaluated epoch at which {level} of the examples are right in evaluation mode.
A run that does not get there within its E epochs, or diverges, is censored at E: of its T nothing is said but that it
is larger. One that is there at the first evaluation after the start was there at some moment before: of its T nothing
is said but that it is at most that. Such runs are counted and shown, never dropped. Where more than {heavy} of an arm's
seeds are censored, a warning stands before the numbers.

Two arms are compared seed by seed, since runs of one seed share data, order of batches and initial weights. The test
is the sign-flip (paired permutation) test on log min(T, E), exact up to {exact} seeds; the speed-up is the ratio of
geometric means, its interval all ratios that the test does not reject at {alpha}. With n seeds the smallest p is
2 / 2^n, so fewer than {fewest} seeds decide nothing.

A claim that consists of several comparisons is corrected for their number (Holm), those included that have not run
yet. "Confirmed" and "refuted" need an adjusted p of at most {alpha} and, of what censoring leaves of the interval,
nothing on the other side of 1. "No difference" needs the interval inside {low} to {high} and no censoring. All else is
"undecided". Accuracies are judged by intervals that hold in all comparisons of a claim together. The rules were fixed
in code before the runs; those about the first evaluation, about comparisons that have not run and about what censoring
leaves came later, and can only make a verdict weaker."""


def runs(results: Results) -> Section:
    columns = ("panel", "arm", "seed", "status", "95 % train", "95 % held-out", "last train", "last held-out", "run")
    every = list(results.every_run())
    rows = [_run(arm, run) for arm, run in every if run.status != "waiting"]
    waiting = len(every) - len(rows)
    title = f"{len(rows)} runs; {waiting} have not begun" if waiting else f"All {len(rows)} runs"
    table = Table("runs", title, columns, rows, folded=True)
    return Section("Every run", "What became of each; those that diverged or are not over are listed too.", [table])


def _run(arm: ArmResult, run: Run) -> list[object]:
    return [
        arm.panel,
        arm.label,
        run.seed,
        Cell(status(run), TONES.get(run.status, "")),
        _crossing(arm, run, "train"),
        _crossing(arm, run, "heldout"),
        _share(run, "train_accuracy"),
        _share(run, "heldout_accuracy"),
        Cell(run.directory.run, "code"),
    ]


def status(run: Run) -> str:
    """What became of a run, in words."""
    if run.status == "diverged":
        return f"diverged at epoch {(run.summary or {}).get('diverged_epoch', '?')}"
    if run.status == "begun":
        return f"begun, at epoch {run.rows[-1]['epoch']}"
    return run.status


def _crossing(arm: ArmResult, run: Run, split: Split) -> object:
    if not run.rows:
        return NOTHING
    if run.status == "diverged":
        return Cell("censored", "muted")
    epoch = arm.crossing(run, split)
    if epoch is not None:
        return f"{epoch:g}"
    return Cell(f"> {arm.epochs}" if run.summary is not None else f"> {run.rows[-1]['epoch']} so far", "muted")


def _share(run: Run, column: str) -> object:
    value = run.rows[-1].get(column) if run.rows else None
    return NOTHING if value is None else percent(value)


def configuration(results: Results) -> Section:
    """What all arms share once; what differs by panel, by arm, or by both."""
    flat = {arm.arm.key: dict(_flat(arm.arm.config.to_dict())) for arm in results.arms}
    keys = [key for key in dict.fromkeys(key for config in flat.values() for key in config) if key != "seed"]
    varied = [key for key in keys if len({config.get(key) for config in flat.values()}) > 1]
    by_panel = [key for key in varied if _is_function_of(flat, key, 0)]
    by_arm = [key for key in varied if key not in by_panel and _is_function_of(flat, key, 1)]
    rest = [key for key in varied if key not in by_panel and key not in by_arm]
    tables = []
    if by_panel:
        tables.append(_settings("settings-by-panel", "What differs between panels", flat, by_panel, 0))
    if by_arm:
        tables.append(_settings("settings-by-arm", "What differs between arms", flat, by_arm, 1))
    if rest:
        rows = [[*names, *(config.get(key, "") for key in rest)] for names, config in flat.items()]
        tables.append(Table("settings", "What differs between runs", ("panel", "arm", *rest), rows, folded=True))
    first = next(iter(flat.values()), {})
    shared = [[key, first.get(key, "")] for key in keys if key not in varied]
    tables.append(Table("settings-shared", "What all arms share", ("setting", "value"), shared, folded=True))
    return Section("Configuration", "", tables)


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _is_function_of(flat: Mapping[tuple[str, str], Mapping[str, str]], key: str, part: int) -> bool:
    """Does the panel (0) or the arm's label (1) alone determine the value?"""
    known: dict[str, str | None] = {}
    return all(known.setdefault(names[part], config.get(key)) == config.get(key) for names, config in flat.items())


def _settings(
    name: str, caption: str, flat: Mapping[tuple[str, str], Mapping[str, str]], keys: list[str], part: int
) -> Table:
    rows = {names[part]: [names[part], *(config.get(key, "") for key in keys)] for names, config in flat.items()}
    return Table(name, caption, (("panel", "arm")[part], *keys), list(rows.values()))


def environments(results: Results) -> Section:
    """Where the runs ran: one row per commit, machine and way of computing."""
    columns = ("commit", "semfocus", "torch", "device", "precision", "implementation", "runs", "from", "until")
    groups: dict[tuple[str, ...], list[str]] = {}
    for _, run in results.every_run():
        found = run.environment
        if found:
            how = found.get("implementation")
            how = ", ".join(dict.fromkeys(map(str, how.values()))) if isinstance(how, Mapping) else how
            words = (short(found.get("commit")), found.get("semfocus"), found.get("torch"), found.get("device"))
            key = tuple(str(word or "unknown") for word in (*words, found.get("precision"), how))
            groups.setdefault(key, []).append(str(found.get("date", "")))
    rows = [[*key, len(dates), _day(min(dates)), _day(max(dates))] for key, dates in groups.items()]
    parts = [Table("environments", "Where the runs ran", columns, rows)] if rows else []
    return Section("Environment", "" if rows else "No run has begun.", parts)


def _day(date: str) -> str:
    return date.replace("T", " ")[:16]


def methods() -> Section:
    text = METHODS.format(
        level=percent(LEVEL, 0),
        heavy=percent(HEAVY_CENSORING, 0),
        alpha=percent(ALPHA, 0),
        exact=EXACT_SEEDS,
        fewest=FEWEST_SEEDS,
        low=EQUIVALENT[0],
        high=EQUIVALENT[1],
    )
    return Section("How the numbers are judged", text)
