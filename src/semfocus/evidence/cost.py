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
    guessed: int  # runs among them whose shape has not run: at the pace of the slowest of their length and model
    unknown: int  # runs without a pace: none of their length and model is over
    alone: float | None  # the runs that are over, by the time of one step of one model alone, training steps only
    untimed: int = 0  # runs that are over and not in `alone`: their step was not timed

    @property
    def extrapolated(self) -> float | None:
        return None if self.remaining is None else self.measured + self.remaining

    @property
    def reservations(self) -> str:
        """What the extrapolation rests on beside paces that were measured."""
        said = []
        if self.guessed:
            said.append(f"{self.guessed} runs of other shapes at the pace of the slowest as long")
        if self.unknown:
            said.append(f"without {self.unknown} runs of lengths or models that have not run")
        return f" ({'; '.join(said)})" if said else ""

    @property
    def one_at_a_time(self) -> str:
        left_out = f" (without {self.untimed} runs, not timed)" if self.alone is not None and self.untimed else ""
        return duration(self.alone) + left_out


def cost_of(results: Results, records: Iterable[Record]) -> Cost:
    known = {record.run: record for record in records}
    pairs = {run.directory.run: arm for arm, run in results.every_run()}  # a run of two arms is trained once
    shapes = {arm.arm.key: _shape(arm) for arm in results.arms}
    over = {run: arm for run, arm in pairs.items() if run in known and known[run].summary is not None}
    measured: dict[str, list[float]] = {}
    for run, arm in over.items():
        if known[run].own_seconds > 0:  # a run that was borrowed from stored results brings no time
            measured.setdefault(shapes[arm.arm.key], []).append(known[run].own_seconds / _steps(arm))
    paces = {shape: mean(found) for shape, found in measured.items()}  # seconds per step
    slowest: dict[str, float] = {}
    for arm in results.arms:
        if pace := paces.get(shapes[arm.arm.key]):
            slowest[_kin(arm)] = max(slowest.get(_kin(arm), 0.0), pace)
    remaining, guessed, unknown = 0.0, 0, 0
    for run, arm in pairs.items():
        if run in over:
            continue
        own, kin = paces.get(shapes[arm.arm.key]), slowest.get(_kin(arm))
        guessed += own is None and kin is not None
        unknown += own is None and kin is None
        spent = known[run].own_seconds if run in known else 0.0
        remaining += max((own or kin or 0.0) * _steps(arm) - spent, 0.0)
    alone, untimed = _alone(over.values(), Clock(results.store.path / "clock.json"))
    devices = dict.fromkeys(str(record.environment.get("device", "unknown")) for record in known.values())
    return Cost(
        planned=len(pairs),
        over=len(over),
        measured=sum(record.own_seconds for run, record in known.items() if run in pairs),
        devices=tuple(sorted(devices)),
        remaining=remaining if over else None,
        guessed=guessed,
        unknown=unknown,
        alone=alone,
        untimed=untimed,
    )


def _shape(arm: ArmResult) -> str:
    """Runs of equal shape have equal pace, whatever their task; language models differ by their pattern alone."""
    config = arm.arm.config
    return clock_key(config) if isinstance(config, RunConfig) else f"{config.pattern.label}, {config.model}"


def _kin(arm: ArmResult) -> str:
    """Runs of one length and size of model: they differ in the pattern, and in a few tokens that it adds."""
    config = arm.arm.config
    if not isinstance(config, RunConfig):
        return ""  # language models
    model = config.model
    return f"{config.task.length} tokens, {model.blocks} blocks, {model.heads} heads, {model.width} wide"


def _steps(arm: ArmResult) -> int:
    config = arm.arm.config
    return config.train.epochs * steps_per_epoch(config) if isinstance(config, RunConfig) else config.steps


def _alone(arms: Iterable[ArmResult], clock: Clock) -> tuple[float | None, int]:
    """The time of the runs whose step was timed, None where there are none, and how many are left out."""
    total, untimed = 0.0, 0
    for arm in arms:
        config = arm.arm.config
        milliseconds = clock.get(config) if isinstance(config, RunConfig) else None
        if milliseconds is None:
            untimed += 1
        else:
            total += _steps(arm) * milliseconds / 1000
    return total or None, untimed


def duration(seconds: float | None) -> str:
    """
    >>> duration(30), duration(90 * 60), duration(None)
    ('0.5 min', '90.0 min', 'not known')
    """
    return (
        "not known" if seconds is None else f"{seconds / 60:.1f} min" if seconds < 36_000 else f"{seconds / 3600:.1f} h"
    )
