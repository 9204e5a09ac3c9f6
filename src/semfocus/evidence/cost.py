"""What a study cost: measured, extrapolated to all of its runs, and beside it the same runs trained one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean

from ..lab.cost import Clock, clock_key, steps_per_epoch
from ..lab.results import ArmResult, Results
from ..training.protocol import RunConfig
from .record import Record


@dataclass(frozen=True)
class Cost:
    """Seconds of device time."""

    planned: int  # runs
    over: int
    measured: float  # of all runs that have begun, evaluations and compilation included
    devices: tuple[str, ...]
    remaining: float | None  # of the runs that are not over, at the pace of those that are; None: nothing to go by
    unknown: int  # runs without a pace: none of their shape is over
    alone: float | None  # the runs that are over, by the time of one step of one model alone, training steps only

    @property
    def extrapolated(self) -> float | None:
        return None if self.remaining is None else self.measured + self.remaining


def cost_of(results: Results, records: Iterable[Record]) -> Cost:
    known = {record.run: record for record in records}
    pairs = {run.directory.run: arm for arm, run in results.every_run()}  # a run of two arms is trained once
    shapes = {_name(arm): _shape(arm) for arm in results.arms}
    over = {run: arm for run, arm in pairs.items() if run in known and known[run].summary is not None}
    paces: dict[str, list[float]] = {}
    for run, arm in over.items():
        paces.setdefault(shapes[_name(arm)], []).append(known[run].own_seconds / _steps(arm))
    waiting = [(run, arm) for run, arm in pairs.items() if run not in over]
    with_pace = [(run, arm) for run, arm in waiting if shapes[_name(arm)] in paces]
    remaining = [
        max(mean(paces[shapes[_name(arm)]]) * _steps(arm) - (known[run].own_seconds if run in known else 0.0), 0.0)
        for run, arm in with_pace
    ]
    devices = dict.fromkeys(str(record.environment.get("device", "unknown")) for record in known.values())
    return Cost(
        planned=len(pairs),
        over=len(over),
        measured=sum(record.own_seconds for run, record in known.items() if run in pairs),
        devices=tuple(sorted(devices)),
        remaining=sum(remaining) if over else None,
        unknown=len(waiting) - len(with_pace),
        alone=_alone(over.values(), Clock(results.store.path / "clock.json")),
    )


def _name(arm: ArmResult) -> tuple[str, str]:
    return arm.panel, arm.label


def _shape(arm: ArmResult) -> str:
    """Runs of equal shape have equal pace, whatever their task; language models differ by their pattern alone."""
    config = arm.arm.config
    return clock_key(config) if isinstance(config, RunConfig) else f"{config.pattern.label}, {config.model}"


def _steps(arm: ArmResult) -> int:
    config = arm.arm.config
    return config.train.epochs * steps_per_epoch(config) if isinstance(config, RunConfig) else config.steps


def _alone(arms: Iterable[ArmResult], clock: Clock) -> float | None:
    """None where one of the steps was not timed."""
    total = 0.0
    for arm in arms:
        config = arm.arm.config
        milliseconds = clock.get(config) if isinstance(config, RunConfig) else None
        if milliseconds is None:
            return None
        total += _steps(arm) * milliseconds / 1000
    return total or None


def duration(seconds: float | None) -> str:
    """
    >>> duration(30), duration(90 * 60), duration(None)
    ('0.5 min', '90.0 min', 'not known')
    """
    return (
        "not known" if seconds is None else f"{seconds / 60:.1f} min" if seconds < 36_000 else f"{seconds / 3600:.1f} h"
    )
