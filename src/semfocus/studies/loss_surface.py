"""Is the loss around trained weights less steep with top-k?"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semfocus.diagnostics.base import Diagnostic
from semfocus.diagnostics.loss_surface import PERCENTILES
from semfocus.diagnostics.loss_surface import LossSurface as Surface
from semfocus.diagnostics.surroundings import QUANTITIES, Surroundings
from semfocus.lab.claims import Below, Case, Claim
from semfocus.lab.measure import measure_runs, probe_of
from semfocus.lab.results import LEVEL, ArmResult, Results, Run
from semfocus.lab.study import Arm, Size, Study, arm, laid_over
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.report.heat import heat_figure
from semfocus.report.lines import line_figure
from semfocus.report.page import Figure, Section, Table
from semfocus.studies._sizes import SECTIONS
from semfocus.training.population import precision

NAME, AROUND = "loss_surface", "surroundings"
BUDGET = 5
#: Grid points to a side, and training examples; of the loss, and of what the theory's bounds are made of.
GRID = {"smoke": (5, 25), "quick": (21, 250), "small": (200, 5000), "paper": (200, 5000)}
COARSE = {"smoke": (3, 25), "quick": (11, 128), "small": (11, 128), "paper": (11, 128)}
#: Stands for a slope beyond all numbers of float32.
STEEPEST = 1e60
NONE_LEARNT = f"in no seed did both reach {100 * LEVEL:g} % of the training examples"
#: What the figures show, and what the quantities are called in the table.
SHOWN = ("dispersion_q75", "separation_q25", "W")
CALLED = {
    "dispersion_q75": "dispersion, 75 %",
    "dispersion_q100": "dispersion, largest",
    "separation_q25": "separation, 25 %",
    "in_degree_q75": "in-degree, 75 %",
    "in_degree_q100": "in-degree, largest",
    **{name: f"||{name}||, largest of the blocks" for name in "VWPR"},
}
TASKS = {
    "small": ("even_pairs",),
    "paper": ("listops", "parity_check", "even_pairs", "missing_duplicate_string"),
}
#: The square and the percentile at which surfaces are compared, fixed beforehand: near the weights, and as a whole.
RADII = {"smoke": (1.0,), "quick": (0.1, 1.0), "small": (0.1, 1.0), "paper": (0.1, 1.0)}
PERCENTILE = 95
#: With SGD half of the small models stay on their plateau.
ALL_LEARN: dict[str, Any] = {"optimiser": {"name": "adam", "learning_rate": 0.001}, "train": {"epochs": 25}}


class LossSurface(Study):
    """Is the loss around trained weights less steep with top-k than with full attention?

    Two random directions, each tensor rescaled to the norm of the weights it belongs to; the training loss on a grid
    around the trained weights; the slope between neighbouring points, by percentile and by the size of the square.
    Slopes in two random directions of all weights are typical ones, no larger than the Lipschitz constant of the loss
    (C5), and not the constant in one block's W that the theory bounds.

    Expected by the paper: top-k's surface is smoother and its slopes are smaller. Slopes scale with the weights'
    norm, and a model that has learnt sits in a hole where one that has not stands on a plateau: seeds are compared
    in which both answer 95 % of the training examples correctly, and the losses at the centre stand beside the slopes.

    On a coarser grid of the same square: dispersion, separation, in-degree and the norms of the maps, of which the
    theory's bounds are made, and whether top-k's dispersion stays the smaller one away from the weights (shown, not
    judged).

    Refuted by a task on which top-k's slopes are certainly larger.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 5 minutes: Even Pairs at a quarter of the paper's size, with Adam", seeds=7),
        "small": Size("one GPU, about 20 minutes: Even Pairs at the paper's size, 200 x 200 points", seeds=7),
        "paper": Size("one GPU, hours: four tasks, ReLU and GELU", seeds=10),
    }
    varies = ("task.name", "pattern", "model.activation", "data.pad_multiple")

    def runs(self, size: str) -> list[Arm]:
        sections = laid_over(SECTIONS[size], ALL_LEARN) if size == "quick" else SECTIONS[size]
        activations = ("relu", "gelu") if size == "paper" else ("relu",)
        return [
            arm(task, p, laid_over(sections, {"model": {"activation": name}}), panel=f"{task}, {name}")
            for task in TASKS.get(size, ("even_pairs",))
            for name in activations
            for p in (Full(), TopK(BUDGET))
        ]

    def measure(self, results: Results, device: str, say: Callable[[str], None]) -> None:
        points, examples = GRID[results.question.size]
        surface = Surface(points=points, compiled=device == "cuda")
        coarse, few = COARSE[results.question.size]
        around = Surroundings(points=coarse)
        runs = [run for _, run in results.every_run()]

        def measured(run: Run, diagnostic: Diagnostic, count: int) -> dict[str, Any]:
            with precision(run.directory.config().precision):  # the function that was trained
                return diagnostic.measure(probe_of(run, count, device))

        def losses(run: Run) -> dict[str, Any]:
            found = measured(run, surface, examples)
            found["losses"] = [[round(value, 5) for value in row] for row in found["losses"]]
            found["lipschitz"] = [{name: _steepest(v) for name, v in row.items()} for row in found["lipschitz"]]
            return found

        measure_runs(runs, NAME, losses, say)
        measure_runs(runs, AROUND, lambda run: measured(run, around, few), say)

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
                        otherwise=NONE_LEARNT if _all_measured(results, panel) else "",
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
        return [_surfaces(results), _percentiles(results), _centres(results), _around(results)]


def _steepest(slope: float) -> float:
    """Where the loss is not finite: a number, since infinity cannot be kept, and a seed without one is left out."""
    return STEEPEST if slope == math.inf else slope


def _all_measured(results: Results, panel: str) -> bool:
    return all(NAME in run.measured for a in results.in_panel(panel) for run in a.finished)


def _slope(run: Run, radius: float, percentile: int) -> float | None:
    rows = run.measured.get(NAME, {}).get("lipschitz", [])
    found = [row[f"p{percentile}"] for row in rows if abs(row["radius"] - radius) < 1e-6]
    return found[0] if found else None


def _log_ratio(results: Results, panel: str, radius: float) -> dict[int, float]:
    found = {}
    for full, top in results.arm(panel, "full").paired(results.arm(panel, f"top-k({BUDGET})")):
        theirs, ours = (_slope(run, radius, PERCENTILE) for run in (full, top))
        if ours and theirs and _has_learnt(full) and _has_learnt(top):
            found[top.seed] = math.log(ours / theirs)
    return found


def _has_learnt(run: Run) -> bool:
    return bool(run.rows) and (run.rows[-1]["train_accuracy"] or 0.0) >= LEVEL


def _surfaces(results: Results) -> Section:
    figures: list[Figure] = []
    for number, panel in enumerate(results.panels, 1):
        shown = []
        for a in results.in_panel(panel):
            first = next((run for run in a.over if "losses" in run.measured.get(NAME, {})), None)
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
                learnt = f"{sum(map(_has_learnt, a.over))} of {len(a.over)}"
                rows.append((panel, a.label, learnt, f"{np.median(losses):.3g}", f"{np.median(slopes):.3g}"))
    columns = ("panel", "arm", "learnt", "training loss at the centre", f"slope, {PERCENTILE} %, whole square")
    text = f"""Medians over all seeds. Learnt: at least {100 * LEVEL:g} % of the training examples at the end; verdicts
    rest on seeds in which both have."""
    return Section("Depth and slope", text, [Table("centres", "", columns, rows)] if rows else [])


def _grid(run: Run, quantity: str) -> NDArray[np.float64] | None:
    """(points, points), NaN where it was infinite (the separation of who drops nothing) or no number."""
    found = run.measured.get(AROUND, {}).get(quantity)
    return None if found is None else np.array(found, dtype=float)


def _median_within(grid: NDArray[np.float64], steps: int) -> float | None:
    """Of the finite values in the square of so many steps around the middle."""
    middle = len(grid) // 2
    inside = slice(middle - steps, middle + steps + 1)
    values = grid[inside, inside]
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else None


def _around(results: Results) -> Section:
    figures: list[Figure] = []
    tables = []
    for number, panel in enumerate(results.panels, 1):
        arms = results.in_panel(panel)
        for quantity in SHOWN:
            curves = {}
            for a in arms:
                known = [(run, grid) for run in a.over if (grid := _grid(run, quantity)) is not None]
                widths = known[0][0].measured[AROUND]["offsets"] if known else []
                steps = range(len(widths) // 2 + 1)
                curves[a.label] = (
                    widths[len(widths) // 2 :],
                    [[_median_within(grid, step) for step in steps] for _, grid in known],
                )
            title = f"{panel}: {CALLED[quantity]}"
            figure = line_figure(f"around-{number}-{quantity}", title, "half-width", arms, curves, log_y=True)
            figures += [figure] if figure else []
        rows = [row for quantity in QUANTITIES for a in arms if (row := _row(a, quantity))]
        columns = ("quantity", "arm", "at the weights", "median of the square", "worst of the square")
        tables += [Table(f"around-{number}", panel, columns, rows)] if rows else []
    text = """What the theory's bounds are made of, on a grid of ten steps over the same square. Figures: the median
    over the square of growing half-width; 0 is the trained model. Worst: the largest, of the separation the smallest.
    Medians over seeds."""
    return Section("Around the weights", text, [*figures, *tables])


def _row(arm: ArmResult, quantity: str) -> tuple[object, ...] | None:
    grids = [grid for run in arm.over if (grid := _grid(run, quantity)) is not None]
    grids = [grid for grid in grids if np.isfinite(grid).any()]
    if not grids:
        return None
    worst = np.nanmin if quantity.startswith("separation") else np.nanmax
    middle = [grid[len(grid) // 2, len(grid) // 2] for grid in grids]
    values = (np.median(middle), np.median([np.nanmedian(g) for g in grids]), np.median([worst(g) for g in grids]))
    return (CALLED[quantity], arm.label, *(f"{value:.3g}" for value in values))
