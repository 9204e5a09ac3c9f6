"""Is the loss around trained weights less steep with top-k?"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from semfocus.diagnostics.loss_surface import PERCENTILES
from semfocus.diagnostics.loss_surface import LossSurface as Surface
from semfocus.lab.claims import Below, Case, Claim
from semfocus.lab.measure import measure_runs, probe_of
from semfocus.lab.results import Results, Run
from semfocus.lab.study import Arm, Size, Study, arm, laid_over
from semfocus.patterns.banded import Banded
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.report.heat import heat_figure
from semfocus.report.lines import line_figure
from semfocus.report.page import Figure, Section, Table
from semfocus.studies._sizes import SECTIONS
from semfocus.training.population import precision

NAME = "loss_surface"
BUDGET = 5
#: Grid points to a side, and training examples.
GRID = {"smoke": (5, 25), "quick": (21, 250), "small": (200, 5000), "paper": (200, 5000)}
TASKS = {
    "small": ("even_pairs",),
    "paper": ("listops", "parity_check", "even_pairs", "missing_duplicate_string"),
}
#: The square and the percentile at which surfaces are compared, fixed beforehand: near the weights, and as a whole.
RADII = {"smoke": (1.0,), "quick": (0.1, 1.0), "small": (0.1, 1.0), "paper": (0.1, 1.0)}
PERCENTILE = 95


class LossSurface(Study):
    """Is the loss around trained weights less steep with top-k than with full attention?

    Two random directions, each tensor rescaled to the norm of the weights it belongs to; the training loss on a grid
    around the trained weights; the slope between neighbouring points, by percentile and by the size of the square.
    Slopes in two random directions of all weights are typical ones, no larger than the Lipschitz constant of the loss
    (C5), and not the constant in one block's W that the theory bounds.

    Expected by the paper: top-k's surface is smoother and its slopes are smaller. Slopes scale with the weights'
    norm, and a model that has converged sits in a deeper hole than one that has not: the training losses at the
    centre stand beside them.

    Refuted by a task on which top-k's slopes are certainly larger.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 5 minutes: Even Pairs at a quarter of the paper's size", seeds=7),
        "small": Size("one GPU, about 20 minutes: Even Pairs at the paper's size, 200 x 200 points", seeds=7),
        "paper": Size("one GPU, hours: four tasks, ReLU and GELU", seeds=10),
    }
    varies = ("task.name", "pattern", "model.activation", "data.pad_multiple")

    def runs(self, size: str) -> list[Arm]:
        sections = laid_over(SECTIONS[size], {"train": {"epochs": 25}}) if size == "quick" else SECTIONS[size]
        patterns = (Full(), TopK(BUDGET), Banded(BUDGET)) if size != "paper" else (Full(), TopK(BUDGET))
        activations = ("relu", "gelu") if size == "paper" else ("relu",)
        return [
            arm(task, p, laid_over(sections, {"model": {"activation": name}}), panel=f"{task}, {name}")
            for task in TASKS.get(size, ("even_pairs",))
            for name in activations
            for p in patterns
        ]

    def measure(self, results: Results, device: str, say: Callable[[str], None]) -> None:
        points, examples = GRID[results.question.size]
        surface = Surface(points=points, compiled=device == "cuda")

        def measured(run: Run) -> dict[str, Any]:
            with precision(run.directory.config().precision):  # the function that was trained
                found = surface.measure(probe_of(run, examples, device))
            found["losses"] = [[round(value, 5) for value in row] for row in found["losses"]]
            return found

        measure_runs((run for _, run in results.every_run()), NAME, measured, say)

    def claims(self, results: Results) -> list[Claim]:
        return [
            Below(
                "C5, steepness",
                f"The slopes around top-k's weights are smaller than around full attention's ({PERCENTILE} %)",
                tuple(
                    Case(
                        panel,
                        f"top-k({BUDGET}) over full, square of half-width {radius:g}",
                        partial(_log_ratio, panel=panel, radius=radius),
                    )
                    for panel in results.panels
                    for radius in RADII[results.question.size]
                ),
                0.0,
                "ratio",
                paper="holds on its four tasks, with ReLU and GELU",
            )
        ]

    def sections(self, results: Results) -> list[Section]:
        return [_surfaces(results), _percentiles(results), _centres(results)]


def _slope(run: Run, radius: float, percentile: int) -> float | None:
    rows = run.measured.get(NAME, {}).get("lipschitz", [])
    found = [row[f"p{percentile}"] for row in rows if abs(row["radius"] - radius) < 1e-6]
    return found[0] if found else None


def _log_ratio(results: Results, panel: str, radius: float) -> dict[int, float]:
    found = {}
    for full, top in results.arm(panel, "full").paired(results.arm(panel, f"top-k({BUDGET})")):
        theirs, ours = (_slope(run, radius, PERCENTILE) for run in (full, top))
        if ours and theirs:
            found[top.seed] = math.log(ours / theirs)
    return found


def _surfaces(results: Results) -> Section:
    figures: list[Figure] = []
    for number, panel in enumerate(results.panels, 1):
        shown = []
        for a in results.in_panel(panel):
            first = next((run for run in a.over if NAME in run.measured), None)
            if first is not None:
                losses = np.array(first.measured[NAME]["losses"], dtype=float)
                shown.append((f"{a.label}, seed {first.seed}", np.array(first.measured[NAME]["offsets"]), losses))
        if shown:
            figures.append(heat_figure(f"surface-{number}", panel, shown))
    text = """The training loss around the trained weights, first seed of each arm, all on one logarithmic scale. One
    unit along an axis moves every tensor by its own norm."""
    return Section("Surfaces", text, figures)


def _percentiles(results: Results) -> Section:
    figures: list[Figure] = []
    for number, panel in enumerate(results.panels, 1):
        for percentile in PERCENTILES:
            curves = {}
            for a in results.in_panel(panel):
                known = [run for run in a.over if NAME in run.measured]
                radii = [row["radius"] for row in known[0].measured[NAME]["lipschitz"]] if known else []
                curves[a.label] = (radii, [[_slope(run, r, percentile) for r in radii] for run in known])
            title = f"{panel}: slope, {percentile} %"
            figure = line_figure(
                f"slopes-{number}-{percentile}", title, "half-width", results.in_panel(panel), curves, log_y=True
            )
            figures += [figure] if figure else []
    text = """Percentiles of |loss difference of neighbouring grid points| / grid step inside squares of growing
    half-width: an estimate of the Lipschitz constant. The line is the median over seeds."""
    return Section("How steep", text, figures)


def _centres(results: Results) -> Section:
    rows = []
    for panel in results.panels:
        for a in results.in_panel(panel):
            losses = list(a.last("train_loss").values())
            slopes = [s for run in a.over if (s := _slope(run, 1.0, PERCENTILE)) is not None]
            if losses and slopes:
                rows.append((panel, a.label, f"{np.median(losses):.3g}", f"{np.median(slopes):.3g}"))
    columns = ("panel", "arm", "training loss at the centre", f"slope, {PERCENTILE} %, whole square")
    return Section("Depth and slope", "Medians over seeds.", [Table("centres", "", columns, rows)] if rows else [])
