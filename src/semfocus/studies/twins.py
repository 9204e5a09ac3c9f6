"""How far does one training example move a model, pattern by pattern?"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from semfocus.lab.claims import Below, Case, Claim
from semfocus.lab.drift import compared
from semfocus.lab.measure import measure_runs
from semfocus.lab.results import ArmResult, Results, Run
from semfocus.lab.stats import shown_mean
from semfocus.lab.study import Arm, Size, Study, arm, label_of, laid_over
from semfocus.patterns.banded import Banded
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.report.lines import line_figure
from semfocus.report.page import Figure, Section, Table
from semfocus.report.parts import percent
from semfocus.studies._sizes import SECTIONS

NAME = "twins"
SHARP = 4.0
BUDGET = 5
#: Which training example the twin has another one in the place of. Every seed has data and an order of its own.
REPLACED = 1
#: Held-out examples on which the losses of twins are compared.
EXAMPLES = 500
TASKS = {"small": ("even_pairs", "cycle_navigation"), "paper": ("even_pairs", "cycle_navigation")}
#: Epochs between snapshots, by size and task. A run with all of its snapshots has to fit into one archive.
EVERY = {
    "smoke": {"even_pairs": 1},
    "quick": {"even_pairs": 1},
    "small": {"even_pairs": 4, "cycle_navigation": 20},
    "paper": {"even_pairs": 4, "cycle_navigation": 40},
}
EPOCHS = {"quick": {"even_pairs": 30}, "small": {"cycle_navigation": 300}}
#: Short enough that full attention converges too within a few minutes on a CPU.
QUICK_LENGTH = 12


class Twins(Study):
    """Does one training example move a model less when attention focuses?

    Every run has a twin: the same initial weights, batch order and dropout, and the same training examples but for one.
    How far the two drift apart is one draw of what SGD's uniform stability bounds: of the weights (Euclidean distance
    of all of them over their norm) and of the losses on the same held-out examples. Stability bounds the gap between
    training and held-out accuracy (Hardt et al. 2016), and the paper argues that a smaller Lipschitz constant, which
    top-k is meant to have, makes SGD more stable. Stability is a supremum over data sets and exchanged examples, and
    this is one example a seed: large distances speak against it, small ones do not prove it.

    Expected by the theory: top-k's twins stay closer than full attention's. At the last epoch a pattern that has
    converged earlier has also moved further, so they are compared a second time where both have learnt as much: at
    the first snapshot at which each had reached the highest training accuracy that both reach. Full attention with
    its scores multiplied by four and a banded pattern stand beside them.

    Either claim is refuted by a task on which top-k's twins are certainly further apart than full attention's.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 5 minutes, 80 MB of snapshots: Even Pairs, small models, length 12", seeds=6),
        "small": Size("one GPU, about 10 minutes: two tasks at the paper's size", seeds=8),
        "paper": Size("one GPU, about half an hour: two tasks, all epochs", seeds=10),
    }
    varies = ("task.name", "pattern", "model.attention_scale", "data.pad_multiple", "data.twin", "data.train")

    def runs(self, size: str) -> list[Arm]:
        arms = []
        for task in TASKS.get(size, ("even_pairs",)):
            train = {"keep_weights_every": EVERY[size][task]}
            if task in EPOCHS.get(size, {}):
                train["epochs"] = EPOCHS[size][task]
            sections = laid_over(SECTIONS[size], {"data": {"pad_multiple": 1}, "train": train})
            if size == "quick":
                sections = laid_over(sections, {"task": {"length": QUICK_LENGTH}})
            other = laid_over(sections, {"data": {"twin": REPLACED}})
            for pattern, scale in ((Full(), 1.0), (Full(), SHARP), (Banded(BUDGET), 1.0), (TopK(BUDGET), 1.0)):
                label = label_of(pattern, scale)
                arms.append(arm(task, pattern, sections, scale=scale))
                arms.append(arm(task, pattern, other, scale=scale, label=twin_of(label)))
        return arms

    def measure(self, results: Results, device: str, say: Callable[[str], None]) -> None:
        firsts = {
            twin.directory.run: first
            for panel in results.panels
            for label in first_labels(results, panel)
            for first, twin in pairs(results, panel, label)
            if first.directory.snapshots().keys() & twin.directory.snapshots().keys()
        }
        twins = (run for _, run in results.every_run() if run.directory.run in firsts)
        measure_runs(twins, NAME, lambda twin: compared(firsts[twin.directory.run], twin, EXAMPLES, device), say)

    def claims(self, results: Results) -> list[Claim]:
        return [
            Below(
                name,
                f"Top-k's twins stay closer than full attention's {when}",
                tuple(
                    Case(panel, f"{_top()} over full, {when}", partial(values, panel=panel, label=_top()))
                    for panel in results.panels
                ),
                0.0,
                "ratio",
                paper="follows from its theory; not measured",
            )
            for name, when, values in (
                ("stability", "at the last epoch", log_ratio_at_the_end),
                ("stability, matched", "at equal training accuracy", log_ratio_matched),
            )
        ]

    def sections(self, results: Results) -> list[Section]:
        return [_figures(results), _table(results)]


def twin_of(label: str) -> str:
    return f"{label}, twin"


def _top() -> str:
    return label_of(TopK(BUDGET))


def first_labels(results: Results, panel: str) -> list[str]:
    """The arms that have a twin."""
    return [label for label in results.labels(panel) if results.has(panel, twin_of(label))]


def pairs(results: Results, panel: str, label: str) -> list[tuple[Run, Run]]:
    """Per seed a run and its twin, both finished."""
    return results.arm(panel, label).paired(results.arm(panel, twin_of(label)))


def snapshots(twin: Run) -> dict[int, dict[str, float]]:
    """What was measured on a pair, by epoch."""
    return {int(epoch): found for epoch, found in twin.measured.get(NAME, {}).items()}


def at_the_end(results: Results, panel: str, label: str) -> dict[int, float]:
    """Per seed, the relative distance of the weights at the last epoch."""
    found = {twin.seed: snapshots(twin) for _, twin in pairs(results, panel, label)}
    return {seed: known[max(known)]["relative"] for seed, known in found.items() if known}


def log_ratio_at_the_end(results: Results, panel: str, label: str) -> dict[int, float]:
    """log(distance / full attention's distance), per seed."""
    ours, full = (at_the_end(results, panel, name) for name in (label, "full"))
    return {s: math.log(ours[s] / full[s]) for s in ours if s in full and ours[s] > 0 and full[s] > 0}


def climbed(first: Run, twin: Run) -> list[tuple[int, float, float]]:
    """Epoch, training accuracy of the first of a pair, and relative distance, at each snapshot after the beginning."""
    accuracies = {row["epoch"]: row["train_accuracy"] for row in first.rows}
    known = sorted((epoch, found["relative"]) for epoch, found in snapshots(twin).items() if epoch > 0)
    return [(epoch, accuracies[epoch], apart) for epoch, apart in known if accuracies.get(epoch) is not None]


def matched(results: Results, panel: str, label: str) -> dict[int, tuple[tuple[int, float, float], ...]]:
    """Per seed, the first snapshots of this arm and of full attention at the highest accuracy that both reach."""
    found = {}
    full = {first.seed: climbed(first, twin) for first, twin in pairs(results, panel, "full")}
    for first, twin in pairs(results, panel, label):
        both = (climbed(first, twin), full.get(first.seed, []))
        if all(both):
            level = min(max(accuracy for _, accuracy, _ in curve) for curve in both)
            found[first.seed] = tuple(next(point for point in curve if point[1] >= level) for curve in both)
    return found


def log_ratio_matched(results: Results, panel: str, label: str) -> dict[int, float]:
    """As ``log_ratio_at_the_end``, where both have learnt as much."""
    found = matched(results, panel, label)
    return {seed: math.log(ours[2] / full[2]) for seed, (ours, full) in found.items() if ours[2] > 0 and full[2] > 0}


def _figures(results: Results) -> Section:
    figures: list[Figure] = []
    for number, panel in enumerate(results.panels, 1):
        arms = [results.arm(panel, label) for label in first_labels(results, panel)]
        weights = {a.label: _measured(results, a, "relative") for a in arms}
        losses = {a.label: _measured(results, a, "loss_mean") for a in arms}
        gaps = {a.label: _gaps(a) for a in arms}
        figures += [
            figure
            for figure in (
                line_figure(f"weights-{number}", f"{panel}: distance of weights", "epoch", arms, weights, log_y=True),
                line_figure(f"losses-{number}", f"{panel}: distance of losses", "epoch", arms, losses, log_y=True),
                line_figure(f"gap-{number}", f"{panel}: generalisation gap", "epoch", arms, gaps),
            )
            if figure is not None
        ]
    text = f"""First the Euclidean distance between the weights of a run and its twin, over the norm of the weights.
    Then the mean over {EXAMPLES} held-out examples of how much the losses of the two differ. Last the generalisation
    gap, training minus held-out accuracy, which stability bounds. The line is the median over seeds, faint lines are
    the seeds. Twins begin with equal weights, so the first two have no value at epoch 0."""
    return Section("Twins drifting apart", text, figures)


def _measured(results: Results, a: ArmResult, quantity: str) -> tuple[list[int], list[list[float | None]]]:
    found = [snapshots(twin) for _, twin in pairs(results, a.panel, a.label)]
    epochs = sorted({epoch for known in found for epoch in known if epoch > 0})
    return epochs, [[known.get(epoch, {}).get(quantity) for epoch in epochs] for known in found]


def _gaps(a: ArmResult) -> tuple[list[int], list[list[float | None]]]:
    (epochs, train), (_, heldout) = a.curves("train_accuracy"), a.curves("heldout_accuracy")
    rows = [[_gap(x, y) for x, y in zip(train[seed], heldout[seed], strict=True)] for seed in train]
    return epochs, [row + [None] * (len(epochs) - len(row)) for row in rows]


def _gap(train: float | None, heldout: float | None) -> float | None:
    return None if train is None or heldout is None else train - heldout


def _table(results: Results) -> Section:
    rows = [_row(results, panel, label) for panel in results.panels for label in first_labels(results, panel)]
    columns = ("task", "arm", "distance at the end", "over full's (interval)", "matched at", "over full's there")
    text = """Relative distance of the weights of twins, median over seeds, and its ratio to full attention's, paired by
    seed (95 %, sign-flip). "Matched at": median training accuracies and epochs of this arm and of full attention at
    the snapshots where they are compared; the more alike the accuracies, the fairer the comparison."""
    return Section("How far apart", text, [Table("distances", "", columns, rows)])


def _row(results: Results, panel: str, label: str) -> tuple[object, ...]:
    known = list(at_the_end(results, panel, label).values())
    end = f"{np.median(known):.3g}" if known else "-"
    if label == "full":
        return panel, label, end, "", "", ""
    ends, there = log_ratio_at_the_end(results, panel, label), log_ratio_matched(results, panel, label)
    ratios = [shown_mean(logs.values(), ratio=True) for logs in (ends, there)]
    return panel, label, end, ratios[0], _places(matched(results, panel, label)), ratios[1]


def _places(found: dict[int, tuple[tuple[int, float, float], ...]]) -> str:
    if not found:
        return "-"
    ours, full = np.median(np.array([[point[:2] for point in both] for both in found.values()]), axis=0)
    return f"{percent(ours[1])} (epoch {ours[0]:g}), {percent(full[1])} (epoch {full[0]:g})"
