"""How many times faster: every arm against the first of its panel, in epochs, arithmetic and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..lab.claims import Judged
from ..lab.cost import Clock, clock_key, flops_per_step, steps_per_epoch
from ..lab.results import LEVEL, ArmResult, Results
from ..lab.stats import Comparison, ConvergenceTimes, compare, log_rank
from .parts import NOTHING, Cell, Section, Table, percent, slug

COLUMNS = (
    "arm",
    "epochs, median",
    "speed-up in epochs",
    "seeds faster",
    "speed-up in FLOPs",
    "speed-up on the clock",
    "the paper says",
    "log-rank p",
    "steps, median",
    "FLOPs, median",
    "ms per step",
    "epochs, every seed",
)
TEXT = """Each arm against the first of its panel, seed by seed, in epochs until {level} of the training examples are
right. A speed-up above 1 means that the arm is faster; in brackets is the interval that covers the true ratio with 95 %
confidence. "At least" and "at most" say what seeds that never got there leave certain.

FLOPs count the matrix products that the pattern needs at least. The clock multiplies epochs by the time of one step of
the pattern alone, as it is implemented here; where it was not measured, the column is missing or says "-". The log-rank
p is for description only: it ignores that seeds are paired."""


def section(results: Results, judged: Sequence[Judged]) -> Section:
    clock = Clock(results.store.path / "clock.json")
    tables = []
    for number, panel in enumerate(results.panels, 1):
        arms = results.in_panel(panel)
        rows = [_row(arm, arms[0], clock, judged) for arm in arms]
        kept = [i for i in range(len(COLUMNS)) if i < 2 or any(str(row[i]) != "-" for row in rows)]
        columns = tuple(COLUMNS[i] for i in kept)
        tables.append(Table(slug("speed", number, panel), panel, columns, [[row[i] for i in kept] for row in rows]))
    return Section("Speed-ups", TEXT.format(level=percent(LEVEL, 0)) + _timed_on(results, clock), tables)


def _timed_on(results: Results, clock: Clock) -> str:
    """Which machine's steps the clock counted."""
    entries = [clock.known[key] for arm in results.arms if (key := clock_key(arm.config)) in clock.known]
    machines = dict.fromkeys(f"{entry.get('device')} (torch {entry.get('torch')})" for entry in entries)
    return f" Steps were timed on {', '.join(machines)}." if machines else ""


def _row(arm: ArmResult, baseline: ArmResult, clock: Clock, judged: Sequence[Judged]) -> list[object]:
    times = arm.times()
    if times is None:
        return [arm.label, Cell("not over", "muted"), *[NOTHING] * (len(COLUMNS) - 2)]
    found = None if arm is baseline else comparison(baseline, arm)
    log_rank_p = None if found is None else log_rank(found.a.data, found.b.data)
    milliseconds = clock.get(arm.config)
    return [
        arm.label,
        times.shown(),
        Cell("compared with", "muted") if arm is baseline else NOTHING if found is None else found.shown(),
        NOTHING if found is None else found.first_shown(),
        _shown(scaled(found, _arithmetic(baseline), _arithmetic(arm))),
        _shown(on_the_clock(found, baseline, arm, clock)),
        _paper(arm.panel, found, judged),
        NOTHING if log_rank_p is None else f"{log_rank_p:.2g}",
        _times(times, steps_per_epoch(arm.config), "{:.0f}"),
        _times(times, _arithmetic(arm), "{:.2g}"),
        NOTHING if milliseconds is None else f"{milliseconds:.3g}",
        Cell(_seeds(times), "small"),
    ]


def comparison(a: ArmResult, b: ArmResult) -> Comparison | None:
    """How many times faster b is; None where they have no seed in common that is over, or were not evaluated alike."""
    times_a, times_b = a.times(), b.times()
    if times_a is None or times_b is None or not times_a.times.keys() & times_b.times.keys():
        return None
    alike = (times_a.last_epoch, times_a.resolution) == (times_b.last_epoch, times_b.resolution)
    return compare(times_a, times_b) if alike else None


def _seeds(times: ConvergenceTimes) -> str:
    """Every seed's epoch, in the order of the seeds."""
    known = {seed: times.converged(seed) for seed in times.seeds}
    shown = (
        f"{epoch:g}" if epoch is not None else "div." if seed in times.diverged else ">"
        for seed, epoch in known.items()
    )
    return " ".join(shown)


def _times(times: ConvergenceTimes, factor: float, form: str) -> str:
    median = times.median()
    number = form.format(factor * (times.least_median if median is None else median))
    return f"> {number}" if median is None else number


def _arithmetic(arm: ArmResult) -> float:
    return steps_per_epoch(arm.config) * flops_per_step(arm.config)


def _time(arm: ArmResult, clock: Clock) -> float | None:
    milliseconds = clock.get(arm.config)
    return None if milliseconds is None else steps_per_epoch(arm.config) * milliseconds


def on_the_clock(found: Comparison | None, a: ArmResult, b: ArmResult, clock: Clock) -> Comparison | None:
    """The speed-up in time, epochs by the time of a step alone; None where that was not measured."""
    return scaled(found, _time(a, clock), _time(b, clock))


def scaled(found: Comparison | None, cost_a: float | None, cost_b: float | None) -> Comparison | None:
    """The speed-up when an epoch of a costs ``cost_a`` and one of b ``cost_b``."""
    if found is None or found.bound == "not interpretable" or not cost_a or not cost_b:
        return None
    factor = cost_a / cost_b
    limits = None if found.interval is None else (found.interval[0] * factor, found.interval[1] * factor)
    return replace(found, ratio=found.ratio * factor, interval=limits)


def _shown(found: Comparison | None) -> object:
    return NOTHING if found is None else found.shown()


def _paper(panel: str, found: Comparison | None, judged: Sequence[Judged]) -> object:
    """What the paper says of this very comparison, by the claims that contain it."""
    if found is None:
        return NOTHING
    said = {
        f"{one.claim.id}: {one.claim.paper}": None
        for one in judged
        for line in one.lines
        if one.claim.paper
        and line.panel == panel
        and line.comparison is not None
        and (line.comparison.a, line.comparison.b) == (found.a, found.b)
    }
    return Cell("; ".join(said), "small") if said else NOTHING
