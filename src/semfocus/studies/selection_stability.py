"""Do the kept keys stay kept under noise, and does that go with faster learning?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from semfocus import diagnostics
from semfocus.lab.claims import Below, Case, Claim
from semfocus.lab.measure import measure_runs, probe_of
from semfocus.lab.predict import FEWEST_POINTS, Cell, spearman
from semfocus.lab.results import Results, Run
from semfocus.lab.study import Arm, Size, Study, arm, laid_over
from semfocus.patterns.top_k import TopK
from semfocus.report.lines import line_figure
from semfocus.report.page import Figure, Section, Table
from semfocus.studies._sizes import SECTIONS

NAME = "selection_stability"
LEVELS = (0.01, 0.03, 0.1, 0.3)
#: The level at which seeds and arms are compared, fixed beforehand.
LEVEL = 0.1
BUDGETS = {"smoke": (3,), "quick": (2, 5, 9), "small": (1, 2, 5, 9, 15), "paper": (1, 2, 5, 9, 15)}
TASKS = {
    "small": ("even_pairs", "missing_duplicate_string"),
    "paper": ("even_pairs", "missing_duplicate_string", "stack_manipulation", "parity_check"),
}
EXAMPLES = 128


class SelectionStability(Study):
    """Do the kept keys stay kept under noise, and does instability go with slower convergence?

    Gaussian noise on the embedded tokens of trained top-k models; the share of kept keys that stay kept, against the
    noise's size, the budget k, and the separation of the query's scores before the noise.

    Expected by the theory: queries with a larger separation keep their choice (it has to be overcome before the kept
    set can change), and runs whose choice is stable learn faster.

    The first is refuted by a task and k at which the quarter of queries with the largest separation is certainly less
    stable than the quarter with the smallest. The second is a correlation over runs; it is reported, not judged.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 3 minutes: Even Pairs at a quarter of the paper's size", seeds=7),
        "small": Size("one GPU, about 10 minutes: two tasks at the paper's size", seeds=9),
        "paper": Size("one GPU, about an hour: four tasks", seeds=10),
    }

    def runs(self, size: str) -> list[Arm]:
        changes: dict[str, Any] = {"data": {"pad_multiple": 1}}
        if size == "quick":
            changes["train"] = {"epochs": 25}
        sections = laid_over(SECTIONS[size], changes)
        return [arm(task, TopK(k), sections) for task in TASKS.get(size, ("even_pairs",)) for k in BUDGETS[size]]

    def measure(self, results: Results, device: str, say: Callable[[str], None]) -> None:
        one = diagnostics.get(NAME, levels=LEVELS)
        measure_runs(
            (run for _, run in results.every_run()), NAME, lambda run: one.measure(probe_of(run, EXAMPLES, device)), say
        )

    def claims(self, results: Results) -> list[Claim]:
        cases = tuple(
            Case(panel, f"{label}, noise {LEVEL:g}", partial(_less_stable, panel=panel, label=label))
            for panel in results.panels
            for label in results.labels(panel)
        )
        statement = "Queries with the largest separation keep more of their keys than those with the smallest"
        return [Below("separation protects", f"{statement} (share lost, largest minus smallest)", cases, 0.0)]

    def sections(self, results: Results) -> list[Section]:
        return [_curves(results), _speeds(results)]


def _at(run: Run, level: float) -> dict[str, Any] | None:
    found: list[dict[str, Any]] = run.measured.get(NAME, {}).get("levels", [])
    return next((entry for entry in found if entry["noise"] == level), None)


def _mean(run: Run, level: float) -> float | None:
    entry = _at(run, level)
    return None if entry is None else entry["pooled"].get("mean")


def _less_stable(results: Results, panel: str, label: str) -> dict[int, float]:
    """Share of keys lost by the most separated quarter minus that of the least separated one."""
    found = {}
    for run in results.arm(panel, label).over:
        entry = _at(run, LEVEL)
        if entry and entry["by_separation"]:
            least, *_, most = entry["by_separation"]
            found[run.seed] = least - most
    return found


def _curves(results: Results) -> Section:
    figures: list[Figure] = []
    for number, panel in enumerate(results.panels, 1):
        arms = results.in_panel(panel)
        by_noise = {a.label: (LEVELS, [[_mean(run, level) for level in LEVELS] for run in a.over]) for a in arms}
        by_quarter = {
            a.label: (
                (1, 2, 3, 4),
                [e["by_separation"] for run in a.over if (e := _at(run, LEVEL)) and e["by_separation"]],
            )
            for a in arms
        }
        drawn = [
            line_figure(f"noise-{number}", f"{panel}: keys that stay kept", "noise", arms, by_noise, log_x=True),
            line_figure(f"quarter-{number}", f"{panel}: noise {LEVEL:g}", "quarter of separation", arms, by_quarter),
        ]
        figures += [figure for figure in drawn if figure]
    text = """Left: against the size of the noise, as a multiple of the embeddings' root mean square. Right: queries in
    four quarters by their separation without noise, smallest first. Lines are medians over seeds, faint lines seeds."""
    return Section("What stays kept", text, figures)


def _speeds(results: Results) -> Section:
    rows = []
    for panel in results.panels:
        cells: list[Cell] = []
        for k_label in results.labels(panel):
            a = results.arm(panel, k_label)
            times = a.times()
            stable = {run.seed: v for run in a.over if (v := _mean(run, LEVEL)) is not None}
            if times is None or not stable:
                continue
            cut = zip(times.seeds, times.restricted, strict=True)
            cells += [Cell(panel, k_label, stable[seed], t) for seed, t in cut if seed in stable]
            rows.append((panel, k_label, f"{np.median(list(stable.values())):.3f}", times.shown(), "", ""))
        if len(cells) >= FEWEST_POINTS and (found := spearman(cells)) is not None:
            note = f"{len(cells)} runs of all k; runs of one seed are not independent"
            rows.append((panel, "all", "", "", f"{found:+.2f}", note))
    columns = ("task", "arm", f"unchanged at noise {LEVEL:g}", "epochs to 95 %", "rank correlation", "over")
    text = """Does a stable choice go with fast learning? Spearman's correlation of the unchanged share after training
    with the epochs to 95 % (cut at the last epoch). Negative: stable runs were faster. It does not say why."""
    return Section("Stability and speed", text, [Table("speeds", "", columns, rows)] if rows else [])
