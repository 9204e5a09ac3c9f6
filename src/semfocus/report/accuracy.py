"""Held-out accuracy, and how far information can travel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..lab.baselines import baselines
from ..lab.results import ArmResult, Results
from ..lab.stats import FEWEST_ACCURACIES, mean_interval
from .parts import NOTHING, Cell, Section, Table, percent, slug

TEXT = f"""The mean over seeds whose runs are over. In brackets: the 95 % interval of the mean (BCa bootstrap) from
{FEWEST_ACCURACIES} seeds on, the range of the seeds below that. "Best" is the best epoch by the same examples and thus
flatters; "last" is the last epoch. Runs that diverged are left out, as the number of seeds shows."""
REACH = """In one block a query sees the keys it keeps; after all blocks it may know of whatever is as many steps away.
The table gives how many tokens the best placed position can know of. Where no position can see together what decides
the label, the task is impossible for the pattern, not slow."""


def section(results: Results) -> Section:
    tables = []
    for number, panel in enumerate(results.panels, 1):
        arms = results.in_panel(panel)
        tested = any(_test(arm) for arm in arms)
        columns = ("arm", "seeds", "last epoch", "best epoch", *(["test examples"] if tested else []))
        rows: list[list[object]] = [_row(arm, tested) for arm in arms]
        for name, value in baselines(arms[0].config).items():
            rows.append([Cell(name, "muted"), "", Cell(percent(value), "muted"), "", *[""] * tested])
        tables.append(Table(slug("accuracy", number, panel), panel, columns, rows))
    return Section("Held-out accuracy", TEXT, tables)


def _row(arm: ArmResult, tested: bool) -> list[object]:
    last = arm.last("heldout_accuracy")
    best = {seed: value for seed, value in arm.best("heldout_accuracy").items() if seed in last}
    return [arm.label, f"{len(last)} of {len(arm.runs)}", _mean(last), _mean(best)] + [_mean(_test(arm))] * tested


def _test(arm: ArmResult) -> dict[int, float]:
    """The accuracy on the third split, which chose nothing; empty where there is none."""
    found = {run.seed: (run.summary or {}).get("test_accuracy") for run in arm.finished}
    return {seed: float(value) for seed, value in found.items() if value is not None}


def _mean(values: Mapping[int, float]) -> object:
    known = list(values.values())
    if not known:
        return NOTHING
    mean = percent(float(np.mean(known)))
    if len(known) == 1:
        return mean
    limits = mean_interval(known)
    if limits is None:
        return f"{mean} (seeds {100 * min(known):.1f} to {100 * max(known):.1f})"
    return f"{mean} ({100 * limits[0]:.1f} to {100 * limits[1]:.1f})"


def reaches(results: Results) -> Section:
    """Receptive fields: a row per arm, a column per panel."""
    labels = list(dict.fromkeys(arm.label for arm in results.arms))
    rows = [[label, *(_reach(results, panel, label) for panel in results.panels)] for label in labels]
    table = Table("reach", "Tokens within reach", ("arm", *results.panels), rows)
    return Section("Reach", REACH, [table])


def _reach(results: Results, panel: str, label: str) -> object:
    found = results.arm(panel, label).reach if results.has(panel, label) else None
    if found is None:
        return NOTHING
    return Cell(f"✗ {found.shown()}" if found.impossible else found.shown(), "bad" if found.impossible else "")
