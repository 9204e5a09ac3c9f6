"""How many times faster top-k(5) is than full attention, panel by panel: as trained, and best against best."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..lab.cost import Clock
from ..lab.results import ArmResult, Results
from ..lab.stats import Comparison, MedianRatio, median_ratio
from ..lab.study import label_of
from ..patterns.base import Pattern
from ..patterns.full import Full
from ..patterns.top_k import TopK
from ..report.losses import AXES, at_the_end
from ..report.speed import comparison, on_the_clock
from ..training.protocol import RunConfig
from .markdown import table

Kind = Literal["as the paper trains", "as trained here", "best scale", "learning rate and scale tuned"]
HERE: Kind = "as trained here"
FOCUSED = TopK(5)
#: The study whose arms are called after their patterns, and have the settings that tuning seeds chose.
TUNED = "fair"
TEXT = """T is the first epoch at which 95 % of the training examples are right; ratios are T of the first arm over T of
the second, seed by seed, so above 1 the second is faster. "Median" is the median over seeds with its order-statistics
interval; "mean" is the ratio of geometric means with the interval of the sign-flip test, on which verdicts rest. "On
the clock" multiplies epochs by the time of one step of each pattern alone. All intervals are 95 %. A best scale was
chosen on the seeds it is shown for, which flatters both sides; tuned settings were chosen on other seeds."""

LOSSES = """Every arm against the first, seed by seed: tokens, and seconds of training, until the loss that both reach,
over those of the first arm, so below 1 the arm is ahead; the intervals are 95 %."""


@dataclass(frozen=True)
class Race:
    """Two arms of one panel, seed by seed."""

    panel: str
    kind: Kind
    a: ArmResult
    b: ArmResult
    median: MedianRatio | None  # None: no seed of both is over
    mean: Comparison | None
    clock: Comparison | None  # the mean in time; None where a step was not timed
    tried: int  # arms from which the two were chosen

    @property
    def seeds(self) -> int:
        return self.median.seeds if self.median else 0


def races(results: Results) -> list[Race]:
    """Full attention against top-k(5) in every panel that has both; none for language models."""
    clock = Clock(results.store.path / "clock.json")
    found = []
    for panel in results.panels:
        plain = [label_of(pattern) for pattern in (Full(), FOCUSED)]
        if not all(results.has(panel, label) for label in plain):
            continue
        a, b = (results.arm(panel, label) for label in plain)
        if not isinstance(a.arm.config, RunConfig):
            continue
        found.append(_race(panel, _kind(results, a), a, b, clock))
        scaled = [_scaled(results, panel, pattern) for pattern in (Full(), FOCUSED)]
        if min(map(len, scaled)) > 1:  # a choice for one side alone would not be best against best
            (_, best_a), (_, best_b) = (min(arms, key=lambda found: found[0]) for arms in scaled)
            found.append(_race(panel, "best scale", best_a, best_b, clock, sum(map(len, scaled))))
    return found


def _kind(results: Results, arm: ArmResult) -> Kind:
    if results.question.study == TUNED:
        return "learning rate and scale tuned"
    # Panels of other settings are called after the task and what is different.
    return "as the paper trains" if results.question.size == "paper" and arm.panel == arm.config.task.name else HERE


def _race(panel: str, kind: Kind, a: ArmResult, b: ArmResult, clock: Clock, tried: int = 2) -> Race:
    times_a, times_b = a.times(), b.times()
    mean = comparison(a, b)
    middle = None if mean is None or times_a is None or times_b is None else median_ratio(times_a, times_b)
    return Race(panel, kind, a, b, middle, mean, on_the_clock(mean, a, b, clock), tried)


def _scaled(results: Results, panel: str, pattern: Pattern) -> list[tuple[float, ArmResult]]:
    """The arms of a pattern that differ in the scale of their scores alone and have a run that is over.

    With the mean of min(T, E) over their seeds.
    """
    return [
        (times.restricted_mean(), arm)
        for arm in results.in_panel(panel)
        if arm.label == label_of(pattern, arm.config.model.attention_scale)
        and arm.config.pattern == pattern
        and (times := arm.times()) is not None
    ]


def markdown(results: Results, found: list[Race], where: str) -> str:
    """``speed.md``; ``where`` is the folder as commands name it."""
    asked = f"# {results.question.study}, {results.question.name}"
    title = f"{asked}: full attention over top-k(5)\n\n"
    language = [p for p in results.panels if not isinstance(results.in_panel(p)[0].arm.config, RunConfig)]
    if language:
        tables = [_losses(results, panel) for panel in language if "tuning" not in panel]
        return f"{asked}: until the loss that both reach\n\n{LOSSES}\n\n" + "\n\n".join(tables) + "\n"
    if not found:
        return title + "No panel has both arms.\n"
    columns = ("panel", "what", "first", "second", "epochs of both", "median", "mean", "on the clock", "seeds", "check")
    rows = [
        (
            race.panel,
            race.kind,
            described(race.a, race.kind),
            described(race.b, race.kind),
            f"{_epochs(race.a)} and {_epochs(race.b)}",
            shown(race.median),
            shown(race.mean),
            shown(race.clock),
            race.seeds,
            f"`{check_command(where, race.b.over[0].directory.run, results.question.plugins)}`" if race.b.over else "-",
        )
        for race in found
    ]
    return f"{title}{TEXT}\n\n{table(columns, rows)}\n"


def _losses(results: Results, panel: str) -> str:
    made = at_the_end(results, panel, AXES)
    return f"## {panel}\n\n{table(made.columns, made.rows)}"


def check_command(where: str, run: str, plugins: Sequence[str] = ()) -> str:
    """What retrains the first epochs of a run and compares them."""
    return " ".join(["semfocus results check", where, run, *(f"--plugin {shlex.quote(file)}" for file in plugins)])


def shown(found: MedianRatio | Comparison | None) -> str:
    return "-" if found is None else found.shown()


def described(arm: ArmResult, kind: Kind) -> str:
    """An arm's label; where settings were chosen, which."""
    if kind != "learning rate and scale tuned":
        return arm.label
    config = arm.config
    return f"{arm.label}, rate {config.optimiser.learning_rate:g}, x {config.model.attention_scale:g}"


def _epochs(arm: ArmResult) -> str:
    times = arm.times()
    return "not over" if times is None else times.shown()
