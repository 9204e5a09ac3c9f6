"""Does top-k lower the dispersion, and does the theory's comparison then favour it?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from semfocus.lab.claims import Below, Case, Claim
from semfocus.lab.reach import why_impossible
from semfocus.lab.results import ArmResult, Results, Run
from semfocus.lab.study import Arm, Size, Study, arm, laid_over
from semfocus.patterns.banded import Banded
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.report.lines import line_figure
from semfocus.report.page import Figure, Section, Table
from semfocus.report.regions import region_figures
from semfocus.studies._sizes import SECTIONS
from semfocus.theory import is_vacuous, w_comparison, x_comparison, xi_h, xi_s

TASKS = {
    "small": ("even_pairs", "missing_duplicate_string"),
    "paper": ("listops", "parity_check", "even_pairs", "missing_duplicate_string"),
}
EVERY = {"smoke": 1, "quick": 5, "small": 10, "paper": 20}
#: Quantiles of the dispersion and in-degree, and the mirror image for the separation, in percent.
QUANTILES = ((75, 25), (90, 10), (95, 5), (100, 0))
BUDGET = 5
FLOOR = 1e-9  # of a separation, as in the paper's table
#: The paper's table for trained models (one seed, one batch): delta_s, delta_h, separation, in-degree.
PAPER = {
    "listops": ((8.61, 18.5, 29.4, 87.8), (3.51, 6.74, 9.67, 28.2), (0.016, 0.005, 0.002, 1e-9), (1, 3, 15, 598)),
    "parity_check": ((8.30, 10.1, 11.2, 19.4), (2.31, 3.13, 3.78, 9.16), (0.062, 0.022, 0.011, 1e-6), (8, 13, 16, 33)),
    "even_pairs": ((2.03, 4.73, 9.44, 14.6), (1.03, 2.84, 5.50, 8.25), (0.009, 0.003, 0.002, 3e-8), (6, 17, 26, 40)),
    "missing_duplicate_string": (
        (4.63, 9.25, 17.1, 23.9),
        (2.36, 4.25, 4.88, 10.5),
        (0.018, 0.006, 0.003, 1e-7),
        (7, 15, 21, 40),
    ),
}


class Dispersion(Study):
    """Does top-k lower the semantic dispersion, and do the theory's comparisons then favour it?

    The paper's explanation (C5): top-k lowers the dispersion of a query's scores, hence the softmax is more stable,
    hence the loss has a smaller Lipschitz constant. Here dispersion, separation and in-degree are measured at
    initialisation, during and after training, on each run's own first training examples, and put into the paper's two
    comparisons.

    Expected by the paper: top-k's dispersion is smaller than full attention's, and the comparisons are below 1 at
    most quantiles. Any subset of keys has at most the dispersion of all of them, so a banded pattern with as many
    keys stands beside top-k: a smaller dispersion alone says little.

    Each claim is refuted by a task and quantile at which its number certainly lies on the other side (of 1 for ratios
    and comparisons).
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 2 minutes: Even Pairs at a quarter of the paper's size, cut short", seeds=8),
        "small": Size("one GPU, about 8 minutes: two tasks at the paper's size", seeds=9),
        "paper": Size("one GPU, hours: four tasks", seeds=10),
    }

    def runs(self, size: str) -> list[Arm]:
        sections = laid_over(SECTIONS[size], {"train": {"diagnose_every": EVERY[size]}})
        if size == "quick":
            sections = laid_over(sections, {"train": {"epochs": 20}})
        tasks = TASKS.get(size, ("even_pairs",))
        return [arm(task, p, sections) for task in tasks for p in (Full(), TopK(BUDGET), Banded(BUDGET))]

    def claims(self, results: Results) -> list[Claim]:
        panels, top, banded = results.panels, f"top-k({BUDGET})", f"banded({BUDGET})"
        quantiles = [q for q, _ in QUANTILES[:3]]
        smaller = partial(_ratio_cases, panels, quantiles)
        return [
            Below(
                "C5, dispersion",
                "After training, top-k's kept scores are less dispersed than full attention's",
                smaller("full", top),
                0.0,
                "ratio",
                paper="holds on all four tasks of its table",
            ),
            Below(
                "C5, same budget",
                f"... and less than those of {banded}, which keeps as many keys without looking",
                _solvable(results, banded, smaller(banded, top)),
                0.0,
                "ratio",
                paper="not asked",
            ),
            Below(
                "C5, W",
                "After training, the W-comparison is below 1",
                _comparison_cases(panels, "W", _w),
                1.0,
                paper="mostly below 1 on ListOps and Parity, mostly above 1 on Even Pairs and Missing Duplicates",
            ),
            Below(
                "C5, X",
                "After training, the X-comparison is below 1",
                _comparison_cases(panels, "X", _x),
                1.0,
                paper="as for W",
            ),
        ]

    def sections(self, results: Results) -> list[Section]:
        return [_curves(results), _tables(results), _bounds(results), _regions(results)]


def _at(run: Run, epoch: int, name: str, quantile: int) -> float | None:
    return run.diagnostic(epoch, name, f"q{quantile}")


def _paired(results: Results, panel: str, a: str, b: str) -> list[tuple[Run, Run]]:
    both = results.has(panel, a) and results.has(panel, b)
    return results.arm(panel, a).paired(results.arm(panel, b)) if both else []


def _ratio_cases(panels: list[str], quantiles: list[int], a: str, b: str) -> tuple[Case, ...]:
    def values(results: Results, panel: str, quantile: int) -> dict[int, float]:
        found = {}
        for one, other in _paired(results, panel, a, b):
            x, y = (_at(run, -1, "dispersion", quantile) for run in (one, other))
            if x and y and x > 0 and y > 0:
                found[one.seed] = math.log(y / x)
        return found

    return tuple(
        Case(panel, f"{b} over {a}, {q} % quantile", partial(values, panel=panel, quantile=q))
        for panel in panels
        for q in quantiles
    )


def _solvable(results: Results, label: str, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The same, but where an arm cannot learn its task at all, what it looks like after training says nothing."""
    unable = {a.panel for a in results.arms if a.label == label and a.impossible}
    why = why_impossible([label])
    return tuple(replace(case, impossible=why) if case.panel in unable else case for case in cases)


Left = Callable[[float, float, float, float], float]


def _w(delta_s: float, delta_h: float, separation: float, beta: float) -> float:
    return float(w_comparison(delta_s, delta_h, separation))


def _x(delta_s: float, delta_h: float, separation: float, beta: float) -> float:
    return float(x_comparison(delta_s, delta_h, separation, beta))


def _arguments(full: Run, top: Run, epoch: int, place: int) -> tuple[float, float, float, float] | None:
    """delta_s, delta_h, separation and beta at one of the quantiles."""
    high, low = QUANTILES[place]
    delta_s, delta_h = _at(full, epoch, "dispersion", high), _at(top, epoch, "dispersion", high)
    separation, degree = _at(top, epoch, "separation", low), _at(top, epoch, "in_degree", high)
    if not delta_s or delta_h is None or degree is None:
        return None
    return delta_s, delta_h, max(FLOOR, math.inf if separation is None else separation), degree / BUDGET


def _comparison_cases(panels: list[str], name: str, left: Left) -> tuple[Case, ...]:
    def values(results: Results, panel: str, place: int) -> dict[int, float]:
        pairs = _paired(results, panel, "full", f"top-k({BUDGET})")
        known = {one.seed: _arguments(one, other, -1, place) for one, other in pairs}
        return {seed: left(*arguments) for seed, arguments in known.items() if arguments is not None}

    return tuple(
        Case(panel, f"{name}, {QUANTILES[place][0]} % quantile", partial(values, panel=panel, place=place))
        for panel in panels
        for place in range(len(QUANTILES))
    )


def _epochs(arm: ArmResult) -> list[int]:
    """Of the run that was looked at most often: others may have diverged, or go on."""
    found = ([row["epoch"] for row in run.rows if "diagnostics" in row] for run in arm.runs)
    return max(found, key=len, default=[])


def _curves(results: Results) -> Section:
    figures: list[Figure] = []
    for number, panel in enumerate(results.panels, 1):
        for name, quantile in (("dispersion", 75), ("separation", 25), ("kept_mass", 50), ("entropy", 50)):
            curves = {}
            for a in results.in_panel(panel):
                epochs = _epochs(a)
                curves[a.label] = (epochs, [[_at(run, e, name, quantile) for e in epochs] for run in a.over])
            title = f"{panel}: {name.replace('_', ' ')}, {quantile} %"
            figure = line_figure(f"{name}-{number}", title, "epoch", results.in_panel(panel), curves)
            figures += [figure] if figure else []
    text = """Quantiles over all queries of all layers on the run's own first training examples; the line is the median
    over seeds, faint lines are the seeds. Full attention drops nothing, so it has no separation, and keeps all mass."""
    return Section("Dispersion, separation, kept mass and entropy during training", text, figures)


def _tables(results: Results) -> Section:
    tables = []
    for number, panel in enumerate(results.panels, 1):
        if not all(results.has(panel, label) for label in ("full", f"top-k({BUDGET})")):
            continue
        full, top = results.arm(panel, "full"), results.arm(panel, f"top-k({BUDGET})")
        epochs = _epochs(full)
        moments = {"at initialisation": 0, "half-way": epochs[len(epochs) // 2], "after training": -1} if epochs else {}
        rows = [row for moment, epoch in moments.items() for row in _rows(moment, *_medians(full, top, epoch))]
        if panel in PAPER and results.question.size == "paper":
            rows += _rows("the paper, after training", *PAPER[panel])
        columns = ("", "quantile", "delta_s, full", "delta_h, top-k", "separation, top-k", "in-degree", "W", "X")
        tables.append(Table(f"table-{number}", panel, columns, rows))
    text = """Median over seeds, quantile by quantile (of the separation 25, 10, 5 and 0 %, floored at 1e-9).
    W and X are the left-hand sides of the comparisons: below 1 the bound favours top-k. The paper's are computed here
    from the numbers of its table."""
    return Section("The paper's table, ours", text, tables)


def _medians(full: ArmResult, top: ArmResult, epoch: int) -> list[list[float | None]]:
    named = [(full, "dispersion", 0), (top, "dispersion", 0), (top, "separation", 1), (top, "in_degree", 0)]
    return [[a.diagnostic(epoch, name, f"q{pair[side]}") for pair in QUANTILES] for a, name, side in named]


def _rows(moment: str, *found: Sequence[float | None]) -> list[tuple[object, ...]]:
    """A row for each quantile: delta_s, delta_h, separation and in-degree, and what they make of W and X."""
    rows: list[tuple[object, ...]] = []
    for (quantile, _), delta_s, delta_h, separation, degree in zip(QUANTILES, *found, strict=True):
        lefts: list[float | None] = [None, None]
        if delta_s is not None and delta_h is not None and degree is not None and delta_s > 0:
            gap = max(FLOOR, separation if separation is not None else math.inf)
            lefts = [left(delta_s, delta_h, gap, degree / BUDGET) for left in (_w, _x)]
        values = (delta_s, delta_h, separation, degree, *lefts)
        rows.append((moment, f"{quantile} %", *("-" if v is None else f"{v:.3g}" for v in values)))
    return rows


def _bounds(results: Results) -> Section:
    rows = []
    for panel in results.panels:
        for a in results.in_panel(panel):
            if a.label.startswith("banded"):
                continue
            delta = a.diagnostic(-1, "dispersion", "q50")
            if delta is None:
                continue
            gap = None if a.label == "full" else a.diagnostic(-1, "separation", "q50")
            gap = math.inf if gap is None else max(FLOOR, gap)
            bound = float(xi_s(delta, a.config.length) if a.label == "full" else xi_h(delta, BUDGET, gap))
            says = "vacuous: nothing moves by more" if is_vacuous(bound, gap) else "says something"
            rows.append((panel, a.label, f"{delta:.3g}", f"{bound:.3g}", says))
    text = """The stability constant at the median dispersion and the median separation (not of one query) after
    training. Over fixed keys a bound of 1/2 or more says
    nothing, since the softmax never moves by more than half of what its scores move by. Top-k, which exchanges keys,
    may move by up to 1 / separation: there a bound says nothing from the larger of the two on."""
    table = Table("bounds", "", ("task", "arm", "median dispersion", "xi", "what it says"), rows)
    return Section("What the bounds say", text, [table] if rows else [])


def _regions(results: Results) -> Section:
    points = []
    for panel in results.panels:
        for one, other in _paired(results, panel, "full", f"top-k({BUDGET})"):
            for place in range(len(QUANTILES)):
                known = _arguments(one, other, -1, place)
                if known is not None and math.isfinite(known[2]):
                    points.append((panel, known[0], known[1] / known[0], known[2] / known[0], known[3]))
    text = """Where the comparisons hold, by c1 = delta_h / delta_s and c2 = separation / delta_s: to the left of
    each line, drawn for several delta_s (and beta = 4 for X; a delta_s without a line has no such region here). Crosses
    are our runs after training, one per seed and quantile."""
    beyond = sum(c1 > 1 for _, _, c1, _, _ in points)
    if beyond:
        text += f" {beyond} of {len(points)} lie beyond c1 = 1, outside the picture: there top-k is the more dispersed."
    return Section("Where the comparisons hold", text, region_figures(points))
