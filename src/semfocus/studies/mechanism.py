"""Does the theory's quantity predict the speed-up, and does changing it change the speed?"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from semfocus.diagnosis.candidates import log_ratio, ratio
from semfocus.diagnostics.loss_surface import LossSurface
from semfocus.lab.claims import Claim, Faster, against
from semfocus.lab.measure import measure_runs, probe_of
from semfocus.lab.predict import Cell, Score, score
from semfocus.lab.results import ArmResult, Results, Run
from semfocus.lab.stats import ConvergenceTimes
from semfocus.lab.study import Arm, Size, Study, arm, laid_over
from semfocus.patterns.banded import Banded
from semfocus.patterns.base import Pattern
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.report.page import Figure, Section, Table
from semfocus.report.scatter import scatter_figure
from semfocus.studies._sizes import SECTIONS
from semfocus.theory import w_comparison

BUDGETS = {"smoke": (3,), "quick": (2, 5, 9), "small": (2, 5, 9, 15), "paper": (1, 2, 3, 5, 9, 15, 25)}
TASKS = {
    "small": ("even_pairs", "missing_duplicate_string", "stack_manipulation"),
    "paper": (
        "even_pairs",
        "missing_duplicate_string",
        "stack_manipulation",
        "parity_check",
        "cycle_navigation",
        "modular_arithmetic_brackets",
        "solve_equation",
    ),
}
EVERY = {"smoke": 1, "quick": 5, "small": 5, "paper": 10}
#: Full attention changed so that its scores are less dispersed, and more.
LOWER: dict[str, dict[str, Any]] = {
    "full x 0.5": {"attention_scale": 0.5},
    "full, cosine scores": {"cosine_scores": True},
    "full, soft cap 0.5": {"soft_cap": 0.5},
}
HIGHER: dict[str, dict[str, Any]] = {f"full x {s:g}": {"attention_scale": s} for s in (2.0, 4.0, 8.0)}
QUICK_HIGHER = ("full x 4",)
#: The loss around the initial weights, on a coarse grid.
INITIAL_SLOPE, GRID, SURFACE_EXAMPLES = "initial_slope", 11, 250
#: What the figures of interventions show from left to right, and its quantile.
AXES = {"dispersion": "q75", "effective_support": "q50"}
#: The training accuracy at which dispersions are compared at a matched level.
MATCHED = 0.9


class Mechanism(Study):
    """Does delta_h / delta_s predict the speed-up, and does changing the dispersion change the speed?

    Correlation: over tasks and k, the speed-up of top-k over full attention beside numbers measured at initialisation
    or in the first epoch. The candidates were listed before looking: the ratio of dispersions, the W-comparison, kept
    mass, entropy, effective support, in-degree, the gradient's norm, its relative deviation, and the steepness of the
    loss around the initial weights (each top-k over full). Each is scored by predicting a task's speed-ups from the
    other tasks alone, against the constant that does so best.

    Intervention: full attention with its dispersion lowered (scores halved, cosines, a soft cap) and raised (scores
    doubled and more). If a small dispersion is why top-k learns faster, lowering must help and raising must hurt; if
    sharpness is, the opposite. Banded attention stands beside them: it too has a smaller dispersion than full
    attention.

    "Lowering helps" is refuted by one task on which a lowered dispersion is certainly slower, "raising helps" by one on
    which a raised one is.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 12 minutes: Even Pairs at a quarter of the paper's size", seeds=7),
        "small": Size("one GPU, about 25 minutes: three tasks at the paper's size", seeds=9),
        "paper": Size("one GPU, many hours: seven tasks", seeds=10),
    }
    varies = ("task.name", "pattern", "data.pad_multiple", "model")

    def runs(self, size: str) -> list[Arm]:
        changes = {"data": {"pad_multiple": 1}, "train": {"diagnose_every": EVERY[size]}}
        sections = laid_over(SECTIONS[size], changes)
        patterns: list[Pattern] = [Full(), *(TopK(k) for k in BUDGETS[size]), Banded(5)]
        higher = {name: HIGHER[name] for name in HIGHER if size not in ("smoke", "quick") or name in QUICK_HIGHER}
        arms = []
        for task in TASKS.get(size, ("even_pairs",)):
            arms += [arm(task, pattern, sections) for pattern in patterns]
            for label, model in (LOWER | higher).items():
                made = arm(task, Full(), laid_over(sections, {"model": model}), scale=model.get("attention_scale", 1.0))
                arms.append(Arm(task, label, made.config))
        return arms

    def measure(self, results: Results, device: str, say: Callable[[str], None]) -> None:
        surface = LossSurface(points=GRID)
        compared = (run for a, run in results.every_run() if a.label == "full" or isinstance(a.config.pattern, TopK))

        def slopes(run: Run) -> dict[str, Any]:
            found = surface.measure(probe_of(run, SURFACE_EXAMPLES, device, untrained=True))
            return {"p95": found["lipschitz"][-1]["p95"]}

        measure_runs(compared, INITIAL_SLOPE, slopes, say, trained=False)

    def claims(self, results: Results) -> list[Claim]:
        labels = set(results.labels(results.panels[0]))
        lower, higher = ([label for label in group if label in labels] for group in (LOWER, HIGHER))
        return [
            Faster(
                "lowering helps",
                "Full attention with a lower dispersion is faster than plain full attention",
                against(results.panels, "full", lower),
                paper="what its explanation predicts",
            ),
            Faster(
                "raising helps",
                "Full attention with a higher dispersion is faster than plain full attention",
                against(results.panels, "full", higher),
                paper="the opposite of what its explanation predicts",
            ),
        ]

    def sections(self, results: Results) -> list[Section]:
        cells = {name: _cells(results, measure) for name, measure in CANDIDATES.items()}
        return [_predictions(cells), _interventions(results)]


# A candidate is a number for one run of full attention and one of top-k with the same seed.

Measure = Callable[[Run, Run], float | None]


def _diagnostic(
    name: str, quantity: str, combine: Callable[[float, float], float | None], full: Run, top: Run
) -> float | None:
    x, y = full.diagnostic(0, name, quantity), top.diagnostic(0, name, quantity)
    return None if x is None or y is None else combine(x, y)


def _top_only(name: str, quantity: str, full: Run, top: Run) -> float | None:
    return top.diagnostic(0, name, quantity)


def _w(full: Run, top: Run) -> float | None:
    found = [full.diagnostic(0, "dispersion", "q75"), top.diagnostic(0, "dispersion", "q75")]
    gap = top.diagnostic(0, "separation", "q25")
    if found[0] is None or found[1] is None or gap is None or found[0] <= 0:
        return None
    return float(w_comparison(found[0], found[1], max(gap, 1e-9)))


def _gradient(relative: bool, full: Run, top: Run) -> float | None:
    first = [next((row for row in run.rows if row.get("gradient_norm")), None) for run in (full, top)]
    rows = [row for row in first if row is not None]
    if len(rows) < 2:
        return None
    values = [row["gradient_deviation"] / row["gradient_norm"] if relative else row["gradient_norm"] for row in rows]
    return log_ratio(*values)


def _slope(full: Run, top: Run) -> float | None:
    return log_ratio(*(run.measured.get(INITIAL_SLOPE, {}).get("p95") for run in (full, top)))


CANDIDATES: dict[str, Measure] = {
    "dispersion ratio, 75 %": partial(_diagnostic, "dispersion", "q75", ratio),
    "W-comparison, 75 %": _w,
    "kept mass": partial(_top_only, "kept_mass", "q50"),
    "entropy lost": partial(_diagnostic, "entropy", "q50", lambda x, y: x - y),
    "log effective support ratio": partial(_diagnostic, "effective_support", "q50", log_ratio),
    "largest in-degree over k": partial(_top_only, "in_degree", "beta"),
    "log gradient norm ratio, first epoch": partial(_gradient, False),
    "log gradient deviation ratio, first epoch": partial(_gradient, True),
    "log loss slope ratio at initialisation, 95 %": _slope,
}


def _cells(results: Results, measure: Measure) -> list[Cell]:
    """One point per task and k: the mean over seeds of the candidate and of the log speed-up."""
    cells = []
    for panel in results.panels:
        if not results.has(panel, "full"):
            continue
        full = {run.seed: run for run in results.arm(panel, "full").over}
        base = results.arm(panel, "full").times()
        for a in results.in_panel(panel):
            if not isinstance(a.config.pattern, TopK) or base is None or (times := a.times()) is None:
                continue
            found = {run.seed: measure(full[run.seed], run) for run in a.over if run.seed in full}
            values = {seed: value for seed, value in found.items() if value is not None}
            speeds = [math.log(_cut(base, seed) / _cut(times, seed)) for seed in values]
            if values:
                cells.append(Cell(panel, a.label, float(np.mean(list(values.values()))), float(np.mean(speeds))))
    return cells


def _cut(times: ConvergenceTimes, seed: int) -> float:
    """min(T, E), at least one evaluation."""
    return float(max(times.only([seed]).restricted[0], times.resolution))


def _predictions(cells: dict[str, list[Cell]]) -> Section:
    rows, figures = [], []
    for number, (name, points) in enumerate(cells.items(), 1):
        found = score(points)
        rows.append((name, len(points), *_shown(found)))
        figure: Figure | None = scatter_figure(f"candidate-{number}", name, "log speed-up of top-k", points)
        figures += [figure] if figure else []
    columns = (
        "candidate",
        "task and k pairs",
        "rank correlation",
        "95 % interval",
        "error against a constant",
        "predicts?",
    )
    text = """Every point is one task and one k: means over seeds. The rank correlation is Spearman's, its interval by
    resampling tasks. "Error against a constant" is the squared error of predicting each task from the others by a line
    through them, over that of their mean: below 1 the candidate knows something. It needs at least three tasks."""
    return Section("What predicts the speed-up?", text, [Table("candidates", "", columns, rows), *figures])


def _shown(found: Score | None) -> tuple[str, str, str, str]:
    if found is None:
        return "-", "-", "-", "too few points"
    interval = "-" if found.interval is None else f"{found.interval[0]:+.2f} to {found.interval[1]:+.2f}"
    if found.relative_error is None:
        return f"{found.correlation:+.2f}", interval, "-", "fewer than three tasks"
    says = "yes" if found.relative_error < 1 else "no"
    return f"{found.correlation:+.2f}", interval, f"{found.relative_error:.2f}", says


def _interventions(results: Results) -> Section:
    shown = [(panel, a, times) for panel in results.panels for a in results.in_panel(panel) if (times := a.times())]
    rows = []
    for panel, a, times in shown:
        numbers = (a.diagnostic(0, "dispersion", "q75"), a.diagnostic(-1, "dispersion", "q75"), _matched(a))
        rows.append((panel, a.label, *("-" if n is None else f"{n:.3g}" for n in numbers), times.shown()))
    columns = (
        "task",
        "arm",
        "at initialisation",
        "after training",
        f"at {100 * MATCHED:.0f} % accuracy",
        "epochs to 95 %",
    )
    figures: list[Figure] = []
    for number, panel in enumerate(results.panels, 1):
        for name, quantity in AXES.items():
            points = [
                Cell(_kind(a), a.label, x, max(times.restricted_mean(), times.resolution))
                for where, a, times in shown
                if where == panel and (x := a.diagnostic(0, name, quantity)) is not None
            ]
            label = f"{name.replace('_', ' ')} at initialisation"
            figure = scatter_figure(
                f"{name}-and-speed-{number}", label, "epochs to 95 %", points, title=panel, size=(4.2, 3.0), log=True
            )
            figures += [figure] if figure else []
    text = """The dispersion of the kept scores (75 % quantile, median over seeds) at matched epochs and at matched
    training accuracy, and the speed. If a small dispersion makes learning fast, both have the same order, and in the
    figures the points rise from left to right. Beside it the effective support (median): how many keys share a query's
    weight. It was drawn after the first results were seen, and tests nothing. A seed that did not converge counts with
    the last epoch."""
    table = [Table("interventions", "", columns, rows)] if rows else []
    return Section("Dispersion and speed, arm by arm", text, [*figures, *table])


def _kind(a: ArmResult) -> str:
    if isinstance(a.config.pattern, Full):
        return "full attention, plain and changed"
    return "top-k" if isinstance(a.config.pattern, TopK) else "fixed"


def _matched(a: ArmResult) -> float | None:
    """At the first diagnosed epoch with that training accuracy."""
    known = []
    for run in a.finished:
        row = next((r for r in run.rows if "diagnostics" in r and (r["train_accuracy"] or 0) >= MATCHED), None)
        if row is not None and row["diagnostics"]["dispersion"].get("q75") is not None:
            known.append(row["diagnostics"]["dispersion"]["q75"])
    return float(np.median(known)) if known else None
