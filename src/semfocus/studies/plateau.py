"""Does the plateau grow as a power of the length, and more slowly where attention is sharper?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from semfocus.lab.claims import Below, Case, Claim
from semfocus.lab.cost import steps_per_epoch
from semfocus.lab.results import LEVEL, ArmResult, Results, Run
from semfocus.lab.stats import shown_mean
from semfocus.lab.study import Arm, Size, Study, arm, label_of, laid_over
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.report.page import Figure, Section, Table
from semfocus.report.powers import power_figure
from semfocus.studies._sizes import PAPER_PROBES, SECTIONS

SHARP = 4.0
BUDGET = 5
TASKS = {"paper": ("even_pairs", "missing_duplicate_string")}
#: Epochs by length. Longer sequences get more, so that few seeds are cut off.
EPOCHS: dict[str, Mapping[int, int]] = {
    "smoke": {6: 2, 8: 2},
    "quick": {6: 12, 8: 24, 12: 32, 16: 48},
    "small": {10: 100, 20: 100, 40: 150, 80: 300},
    "paper": {10: 200, 20: 200, 40: 250, 80: 400, 160: 800},
}
#: Steps between looks at the first training examples: the fast ones are there within a few epochs.
PROBES = {
    "smoke": {"probe_every": 1, "probe_epochs": 2, "probe_examples": 50},
    "quick": {"probe_every": 20, "probe_epochs": 8, "probe_examples": 500},
}
#: A line through two points fits whatever they are.
FEWEST_LENGTHS = 3
NO_EXPONENT = f"no seed converged at {FEWEST_LENGTHS} lengths or more"

#: Epochs to convergence by seed and length; None where it never came.
Times = dict[int, dict[int, float | None]]


class Plateau(Study):
    """Does the time to convergence grow as a power of the length, and more slowly where attention is sharper?

    A rival explanation of why focus helps (Zucchet et al., arXiv 2505.17863): while attention is nearly uniform, the
    signal of the few tokens that matter is diluted by all others, so training sits on a plateau whose length is a
    power of the number of tokens. It predicts that whatever sharpens attention helps, top-k or not, and helps more
    the longer the sequence.

    The same task at several lengths, nothing padded: full attention, full attention with its scores multiplied by
    four, and top-k(5). T is the time until 95 % of the training examples are classified correctly, in epochs, told
    to a part of an epoch by probes in the first ones. For every seed and arm log T = a + b log length is fitted over
    the lengths at which that seed converged; b is the exponent. Two arms are compared over the lengths at which both
    converged (a rule made after the quick runs and before any other). Top-k keeps as many keys whatever the length, so
    it is the sharper the longer the sequence; the multiplier of four is the same everywhere.

    Leaving out the runs that never converged takes the slowest ones away, most of all at great lengths, so an
    exponent with many of them is too small rather than too large.

    "Full attention's time grows as a power" is refuted by a task on which its exponent certainly lies below 0; "sharper
    attention grows more slowly" and the same of top-k are refuted by a task on which their exponent certainly lies
    above full attention's. If the third holds without the second, sharpness is not the reason.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 5 minutes: Even Pairs, small models, lengths 6 to 16", seeds=6),
        "small": Size("one GPU, about 10 minutes: Even Pairs, lengths 10 to 80", seeds=8),
        "paper": Size("one GPU, hours: two tasks, lengths 10 to 160", seeds=10),
    }
    varies = ("task.name", "task.length", "pattern", "model.attention_scale", "data.pad_multiple", "train.epochs")

    def runs(self, size: str) -> list[Arm]:
        arms = []
        for task in TASKS.get(size, ("even_pairs",)):
            for length, epochs in EPOCHS[size].items():
                own = {"task": {"length": length}, "data": {"pad_multiple": 1}}
                train = {"epochs": epochs, **PROBES.get(size, PAPER_PROBES)}
                sections = laid_over(SECTIONS[size], own, {"train": train})
                for pattern, scale in ((Full(), 1.0), (Full(), SHARP), (TopK(BUDGET), 1.0)):
                    arms.append(arm(task, pattern, sections, scale=scale, panel=f"{task}, length {length}"))
        return arms

    def claims(self, results: Results) -> list[Claim]:
        tasks = tasks_of(results)
        grows = tuple(
            Case(task, "minus the exponent of full", partial(_minus_full, task=task), NO_EXPONENT) for task in tasks
        )
        return [
            Below(
                "power of the length",
                "Full attention's time grows as a power of the length: its exponent is above 0 (shown: minus it)",
                grows,
                0.0,
                paper="not asked",
            ),
            *(
                Below(
                    name,
                    f"{who} grows more slowly: its exponent is below full attention's",
                    tuple(
                        Case(
                            task,
                            f"exponent of {label} minus that of full",
                            partial(_on_common_lengths, task=task, label=label),
                            NO_EXPONENT,
                        )
                        for task in tasks
                    ),
                    0.0,
                    paper="not asked",
                )
                for name, who, label in (
                    ("sharper", f"The time of full attention with its scores multiplied by {SHARP:g}", _sharp()),
                    ("top-k", "Top-k's time", _top()),
                )
            ),
        ]

    def sections(self, results: Results) -> list[Section]:
        return [_figures(results), _table(results)]


def _sharp() -> str:
    return label_of(Full(), SHARP)


def _top() -> str:
    return label_of(TopK(BUDGET))


def tasks_of(results: Results) -> list[str]:
    return list(dict.fromkeys(arm.config.task.name for arm in results.arms))


def _arms(results: Results, task: str, label: str) -> list[ArmResult]:
    """One per length."""
    return [a for a in results.arms if a.config.task.name == task and a.label == label]


def time_of(run: Run, steps: int) -> float | None:
    """Epochs to 95 % of the training examples, from probes and evaluations alike; None if it never came."""
    found = run.crossing("train", LEVEL, steps) if run.status == "finished" else None
    return None if found is None else max(found, 1 / steps)


def times(results: Results, task: str, label: str) -> Times:
    """Of the runs that are over."""
    found: Times = {}
    for a in _arms(results, task, label):
        for run in a.over:
            found.setdefault(run.seed, {})[a.config.task.length] = time_of(run, steps_per_epoch(a.config))
    return found


def exponent(by_length: Mapping[int, float | None]) -> float | None:
    """The slope of log T over log length; None below three lengths with a time.

    >>> round(exponent({10: 2.0, 20: 8.0, 40: 32.0, 80: None}), 6)
    2.0
    """
    known = [(math.log(length), math.log(time)) for length, time in by_length.items() if time is not None]
    if len(known) < FEWEST_LENGTHS:
        return None
    x, y = np.array(known).T
    return float(np.polyfit(x, y, 1)[0])


def exponents(results: Results, task: str, label: str) -> dict[int, float]:
    """Of the seeds that have one."""
    found = {seed: exponent(by_length) for seed, by_length in times(results, task, label).items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _minus_full(results: Results, task: str) -> dict[int, float]:
    return {seed: -value for seed, value in exponents(results, task, "full").items()}


def _less_than_full(results: Results, task: str, label: str) -> dict[int, float]:
    full = exponents(results, task, "full")
    return {seed: value - full[seed] for seed, value in exponents(results, task, label).items() if seed in full}


def _on_common_lengths(results: Results, task: str, label: str) -> dict[int, float]:
    """The same with both fitted over the lengths at which both converged: like against like. The claims rest on it."""
    full, found = times(results, task, "full"), {}
    for seed, ours in times(results, task, label).items():
        theirs = full.get(seed, {})
        common = [length for length in ours if ours[length] is not None and theirs.get(length) is not None]
        pair = [exponent({length: known[length] for length in common}) for known in (ours, theirs)]
        if pair[0] is not None and pair[1] is not None:
            found[seed] = pair[0] - pair[1]
    return found


def _figures(results: Results) -> Section:
    figures: list[Figure] = []
    for number, task in enumerate(tasks_of(results), 1):
        arms = [a for a in results.arms if a.config.task.name == task]
        labels = dict.fromkeys(a.label for a in arms)
        last = {a.config.task.length: a.epochs for a in arms}
        found = {label: times(results, task, label) for label in labels}
        title = f"{task}: epochs to {100 * LEVEL:.0f} % of the training examples"
        figure = power_figure(f"powers-{number}", title, "length", arms, found, last)
        figures += [figure] if figure else []
    text = """Both scales are logarithmic, so a power of the length is a straight line and its exponent the slope. The
    line is the median over seeds (a seed that never converged counts as later than all others), faint lines are the
    seeds. An open triangle stands at the last epoch of its length, with the number of seeds that never converged."""
    return Section("Time against length", text, figures)


def _table(results: Results) -> Section:
    rows = [
        _row(results, task, label)
        for task in tasks_of(results)
        for label in dict.fromkeys(a.label for a in results.arms if a.config.task.name == task)
    ]
    columns = ("task", "arm", "median", "mean (interval)", "minus full's", "on common lengths", "seeds", "censored")
    text = f"""log T = a + b log length, fitted seed by seed over the lengths at which that seed converged; b is the
    exponent. A seed with fewer than {FEWEST_LENGTHS} such lengths has none. Intervals (95 %) invert the sign-flip
    test, and differences are paired by seed. Where full attention did not converge the two are fitted over different
    lengths; "on common lengths" is the difference over those at which both did, and the claims are judged by that.
    Censored: runs that did not converge within their epochs, by length."""
    return Section("Exponents", text, [Table("exponents", "", columns, rows)])


def _row(results: Results, task: str, label: str) -> tuple[object, ...]:
    found = exponents(results, task, label)
    median = f"{np.median(list(found.values())):.2f}" if found else "-"
    less = [_less_than_full(results, task, label), _on_common_lengths(results, task, label)]
    differences = ["" if label == "full" else shown_mean(values.values()) for values in less]
    known, mean = times(results, task, label), shown_mean(found.values())
    return task, label, median, mean, *differences, f"{len(found)} of {len(known)}", _censored(known)


def _censored(known: Times) -> str:
    """
    >>> _censored({0: {10: 2.0, 20: None}, 1: {10: 3.0, 20: None}})
    '2 of 4: 2 at length 20'
    """
    lengths = [length for by_length in known.values() for length, time in by_length.items() if time is None]
    total = sum(len(by_length) for by_length in known.values())
    places = ", ".join(f"{lengths.count(length)} at length {length}" for length in sorted(set(lengths)))
    return f"{len(lengths)} of {total}" + (f": {places}" if places else "")
