"""Convergence times, right-censored at the last epoch, and their survival curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats  # type: ignore[import-untyped]


@dataclass(frozen=True)
class SurvivalCurve:
    """Share of seeds that have not converged yet: right-continuous steps, from 1 at epoch 0."""

    epochs: tuple[float, ...]
    surviving: tuple[float, ...]

    def at(self, epoch: float) -> float:
        """The share that has not converged by ``epoch``, that epoch included."""
        return self.surviving[max(int(np.searchsorted(self.epochs, epoch, side="right")) - 1, 0)]

    def median(self) -> float | None:
        """The epoch by which half have converged; None where nobody knows, since too few have.

        Where exactly half have, the middle between that epoch and the next at which one does: the ordinary median of an
        even number, and unknown if none does any more.

        >>> SurvivalCurve((0.0, 3.0, 4.0), (1.0, 0.5, 0.0)).median(), SurvivalCurve((0.0, 3.0), (1.0, 0.5)).median()
        (3.5, None)
        """
        steps = list(zip(self.epochs, self.surviving, strict=True))
        first = next((epoch for epoch, share in steps if share <= 0.5 + 1e-12), None)
        if first is None or self.at(first) < 0.5 - 1e-12:
            return first
        then = next((epoch for epoch, share in steps if share < 0.5 - 1e-12), None)
        return None if then is None else (first + then) / 2


def right_censored(times: Sequence[float], censored: Sequence[bool]) -> Any:
    """Times as ``scipy.stats.CensoredData``; a censored one is known to be larger than stated."""
    return stats.CensoredData.right_censored(np.asarray(times, float), np.asarray(censored, bool))


def kaplan_meier(data: Any) -> SurvivalCurve:
    """The Kaplan-Meier estimate S(t) = product over event times u <= t of (1 - events at u / at risk at u).

    >>> curve = kaplan_meier(right_censored([3, 5, 5, 9], [False, False, True, True]))
    >>> curve.epochs, curve.surviving
    ((0.0, 3.0, 5.0, 9.0), (1.0, 0.75, 0.5, 0.5))
    """
    steps = stats.ecdf(data).sf
    return SurvivalCurve((0.0, *steps.quantiles.tolist()), (1.0, *steps.probabilities.tolist()))


@dataclass(frozen=True)
class ConvergenceTimes:
    """Epochs until convergence of one pattern, one per seed; None where it never came.

    A seed in ``diverged`` is censored whatever its time: a run that broke down has not converged.

    >>> full = ConvergenceTimes("full", {0: 40, 1: 70, 2: None, 3: None, 4: None}, last_epoch=100)
    >>> full.censored_count, full.restricted_mean(), full.median(), full.shown()
    (3, 82.0, None, '> 100')
    """

    name: str
    times: Mapping[int, float | None]
    last_epoch: int
    diverged: frozenset[int] = frozenset()
    resolution: float = 1.0  # spacing of the evaluations: earlier convergence cannot be told from this

    def __post_init__(self) -> None:
        if self.last_epoch < 1:
            raise ValueError(f"last_epoch is {self.last_epoch} for {self.name!r}; it must be at least 1")
        if not 0 < self.resolution <= self.last_epoch:
            raise ValueError(f"resolution is {self.resolution}; it must be above 0 and at most {self.last_epoch}")
        if not self.times:
            raise ValueError(f"times is empty for {self.name!r}; at least one seed is needed")
        for seed, time in self.times.items():
            if time is not None and not 0 <= time <= self.last_epoch:
                raise ValueError(f"times[{seed}] is {time} for {self.name!r}; 0 to {self.last_epoch} or None would do")
        if unknown := sorted(self.diverged - self.times.keys()):
            raise ValueError(f"diverged names {unknown} for {self.name!r}; only seeds of times would do")

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted(self.times))

    def converged(self, seed: int) -> float | None:
        """The epoch at which this seed converged; None if it is censored."""
        return None if seed in self.diverged else self.times[seed]

    @property
    def censored(self) -> tuple[bool, ...]:
        """In the order of ``seeds``."""
        return tuple(self.converged(seed) is None for seed in self.seeds)

    @property
    def censored_count(self) -> int:
        return sum(self.censored)

    @property
    def censored_share(self) -> float:
        return self.censored_count / len(self.times)

    @property
    def early_count(self) -> int:
        """Seeds that had converged by the first evaluation after the start: nobody saw when."""
        known = (self.converged(seed) for seed in self.seeds)
        return sum(time is not None and time <= self.resolution for time in known)

    @property
    def restricted(self) -> tuple[float, ...]:
        """min(T, E) in the order of ``seeds``."""
        known = (self.converged(seed) for seed in self.seeds)
        return tuple(float(self.last_epoch if time is None else time) for time in known)

    @property
    def data(self) -> Any:
        """As ``scipy.stats.CensoredData``, for ``kaplan_meier`` and ``log_rank``."""
        return right_censored(self.restricted, self.censored)

    def survival(self) -> SurvivalCurve:
        """The Kaplan-Meier curve, drawn on to the last epoch."""
        curve = kaplan_meier(self.data)
        if curve.epochs[-1] == self.last_epoch:
            return curve
        return SurvivalCurve((*curve.epochs, float(self.last_epoch)), (*curve.surviving, curve.surviving[-1]))

    def median(self) -> float | None:
        """The Kaplan-Meier median; None where so few converged that it is not known."""
        return kaplan_meier(self.data).median()

    @property
    def least_median(self) -> float:
        """The median of min(T, E): where some are censored the median of T is at least this."""
        return float(np.median(self.restricted))

    def shown(self) -> str:
        """The median as text.

        >>> ConvergenceTimes("full", {0: 10, 1: 20, 2: None, 3: None}, last_epoch=100).shown()
        '> 60'
        """
        median = self.median()
        return f"> {self.least_median:g}" if median is None else f"{median:g}"

    def restricted_mean(self) -> float:
        """The mean of min(T, E)."""
        return float(np.mean(self.restricted))

    def only(self, seeds: Sequence[int]) -> ConvergenceTimes:
        """The same pattern with some of its seeds."""
        times = {seed: self.times[seed] for seed in seeds}
        return ConvergenceTimes(self.name, times, self.last_epoch, self.diverged & times.keys(), self.resolution)


def not_interpretable(a: ConvergenceTimes, b: ConvergenceTimes) -> str:
    """Said in the place of a ratio of which nothing is known, with the reason.

    >>> never = ConvergenceTimes("full", {0: None, 1: 50, 2: None}, last_epoch=100)
    >>> not_interpretable(never, never)
    'not interpretable (never there: 2 and 2 of 3 seeds)'
    """
    counts = {
        "never there": (a.censored_count, b.censored_count),
        "there at the first evaluation": (a.early_count, b.early_count),
    }
    said = [f"{what}: {n} and {m} of {len(a.times)} seeds" for what, (n, m) in counts.items() if n or m]
    return f"not interpretable ({'; '.join(said)})"


def log_rank(a: Any, b: Any) -> float | None:
    """The p-value of the log-rank test of two sets of censored times, for description: it ignores the pairing by seed.

    None where it is not defined: all censored, or all converged at the same moment.

    >>> never = ConvergenceTimes("full", {0: None, 1: None}, last_epoch=9)
    >>> log_rank(never.data, never.data) is None
    True
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # no variance: 0 / 0
        found = stats.logrank(a, b)
    return float(found.pvalue) if math.isfinite(found.statistic) else None
