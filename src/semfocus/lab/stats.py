"""What may be concluded from the convergence times and accuracies of a few seeds.

Times are epochs T until a level is reached, right-censored at the last epoch E. Two patterns are compared seed by
seed on min(T, E): the sign-flip test keeps its level whatever the distribution, with ties and censoring, because
patterns that do not differ stay exchangeable when both are cut at the same E. What it tests is thus the times within E
epochs; what censoring forbids to say beyond that, ``Comparison.bound`` and ``Comparison.warning`` tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

Floats = NDArray[np.float64]
Verdict = Literal["confirmed", "refuted", "no difference", "undecided"]
Bound = Literal["estimate", "at least", "at most", "not interpretable"]

ALPHA = 0.05
#: An interval of the ratio inside these limits is called "no difference".
EQUIVALENT = (0.8, 1.25)
#: Fewer seeds cannot reach ALPHA: the smallest two-sided p of n seeds is 2 / 2^n.
FEWEST_SEEDS = 6
#: Fewer accuracies give a bootstrap too few distinct resamples.
FEWEST_ACCURACIES = 8
#: A larger share of censored seeds has to be said before any number is shown.
HEAVY_CENSORING = 0.2
#: Up to this many seeds every sign pattern is enumerated; beyond, subsets are drawn.
EXACT_SEEDS = 16
DRAWN_SUBSETS = 99_999
RESAMPLES = 9_999
#: Decimals of a mean of logarithms: equal means differ by rounding only, and must count as equal.
DECIMALS = 12


@dataclass(frozen=True)
class SurvivalCurve:
    """Share of seeds that have not converged yet: right-continuous steps, from 1 at epoch 0."""

    epochs: tuple[float, ...]
    surviving: tuple[float, ...]

    def at(self, epoch: float) -> float:
        """The share that has not converged by ``epoch``, that epoch included."""
        return self.surviving[max(int(np.searchsorted(self.epochs, epoch, side="right")) - 1, 0)]

    def median(self) -> float | None:
        """The first epoch by which at least half have converged; None where the curve ends above one half."""
        reached = (epoch for epoch, share in zip(self.epochs, self.surviving, strict=True) if share <= 0.5 + 1e-12)
        return next(reached, None)


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
        """The Kaplan-Meier median; None where it lies beyond the last epoch."""
        return kaplan_meier(self.data).median()

    def shown(self) -> str:
        """The median as text."""
        median = self.median()
        return f"> {self.last_epoch}" if median is None else f"{median:g}"

    def restricted_mean(self) -> float:
        """The mean of min(T, E)."""
        return float(np.mean(self.restricted))

    def only(self, seeds: Sequence[int]) -> ConvergenceTimes:
        """The same pattern with some of its seeds."""
        times = {seed: self.times[seed] for seed in seeds}
        return ConvergenceTimes(self.name, times, self.last_epoch, self.diverged & times.keys(), self.resolution)


@dataclass(frozen=True)
class SignFlip:
    """The sign-flip (paired permutation) test of differences d_1 .. d_n that are symmetric about a shift.

    Under the hypothesis "the shift is s" every pattern of signs of d - s is equally likely, and sum(d - s) is compared
    with its value under all of them. Flipping the signs of a subset A leaves the sum at least as large exactly if
    mean(d_A) <= s. So the means of all non-empty subsets hold every test and every interval at once:

        p(shift > s) = (1 + number of A with mean(d_A) <= s) / (1 + number of A)

    and the interval of all s that are not rejected runs between two of the ordered means. Beyond ``EXACT_SEEDS``
    differences the A are drawn at random with a fixed seed, which keeps the level (Hartigan 1969).

    >>> test = SignFlip.of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> test.two_sided() == 2 / 2**6, test.estimate, test.interval()
    (True, 3.5, (1.0, 6.0))
    """

    differences: tuple[float, ...]
    means: Floats = field(repr=False, compare=False)  # of the subsets, ascending
    exact: bool

    @classmethod
    def of(cls, differences: Sequence[float]) -> SignFlip:
        d = np.asarray(differences, float)
        if d.ndim != 1 or d.size == 0 or not np.isfinite(d).all():
            raise ValueError(f"differences is {differences!r}; one or more finite numbers would do")
        exact = d.size <= EXACT_SEEDS
        means = _all_subset_means(d) if exact else _drawn_subset_means(d)
        return cls(tuple(d.tolist()), np.sort(np.round(means, DECIMALS)), exact)

    @property
    def estimate(self) -> float:
        """The shift that is least rejected: at the mean the sum is 0, and every pattern of signs is as extreme."""
        return round(math.fsum(self.differences) / len(self.differences), DECIMALS)

    def greater(self, shift: float = 0.0) -> float:
        """The p-value of the alternative "the differences lie above ``shift``"."""
        return self._share(int(np.searchsorted(self.means, round(shift, DECIMALS), side="right")))

    def less(self, shift: float = 0.0) -> float:
        """The p-value of the alternative "the differences lie below ``shift``"."""
        return self._share(self.means.size - int(np.searchsorted(self.means, round(shift, DECIMALS), side="left")))

    def two_sided(self, shift: float = 0.0) -> float:
        """Twice the smaller tail: the distribution of the sum is symmetric, so this is the share of larger |sum|."""
        return min(1.0, 2 * min(self.greater(shift), self.less(shift)))

    def interval(self, alpha: float = ALPHA) -> tuple[float, float] | None:
        """All shifts whose two-sided p exceeds ``alpha``, closed; None where no shift can be rejected."""
        if not 0 < alpha < 1:
            raise ValueError(f"alpha is {alpha}; a level between 0 and 1 would do")
        # not rejected from below: 2 (1 + count) > alpha (1 + means), hence at least this many means lie at or below
        count = math.floor(alpha * (self.means.size + 1) / 2)
        if count == 0:
            return None
        # equal differences have means that agree up to the last rounded digit only
        return min(float(self.means[count - 1]), self.estimate), max(float(self.means[-count]), self.estimate)

    def _share(self, count: int) -> float:
        return (1 + count) / (1 + self.means.size)


def _all_subset_means(d: Floats) -> Floats:
    sums, sizes = np.zeros(1), np.zeros(1)
    for value in d:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    means: Floats = sums[1:] / sizes[1:]
    return means


def _drawn_subset_means(d: Floats) -> Floats:
    member = np.random.default_rng(0).integers(0, 2, (DRAWN_SUBSETS, d.size), dtype=np.int8).astype(bool)
    member = member[member.any(axis=1)]
    means: Floats = (member @ d) / member.sum(axis=1)
    return means


@dataclass(frozen=True)
class Comparison:
    """How many times faster b converges than a, seed by seed: the ratio T_a / T_b, above 1 where b is faster."""

    a: ConvergenceTimes  # the seeds both have
    b: ConvergenceTimes
    unpaired: tuple[int, ...]  # seeds that only one of them has, left out
    ratio: float  # of the geometric means of min(T, E)
    interval: tuple[float, float] | None  # at level 1 - ALPHA; None below FEWEST_SEEDS
    p_two_sided: float
    p_faster: float  # one-sided: b is faster
    share_faster: float  # of the seeds, b before a; ties count half
    exact: bool  # every sign pattern was enumerated

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.a.seeds

    @property
    def censored(self) -> bool:
        return self.a.censored_count + self.b.censored_count > 0

    @property
    def bound(self) -> Bound:
        """What the ratio says of the uncensored times: a censored T_a is larger than E, so T_a / T_b is too."""
        if self.a.censored_count and self.b.censored_count:
            return "not interpretable"
        if self.a.censored_count:
            return "at least"
        return "at most" if self.b.censored_count else "estimate"

    @property
    def restricted_means(self) -> tuple[float, float]:
        """Mean of min(T, E) of a and of b."""
        return self.a.restricted_mean(), self.b.restricted_mean()

    @property
    def heavily_censored(self) -> bool:
        return max(self.a.censored_share, self.b.censored_share) > HEAVY_CENSORING

    @property
    def warning(self) -> str | None:
        """To be said before any number, where many seeds never converged."""
        if not self.heavily_censored:
            return None
        counts = " and ".join(f"{x.censored_count} of {len(x.seeds)} seeds of {x.name}" for x in (self.a, self.b))
        return f"More than {HEAVY_CENSORING:.0%} censored: {counts} did not converge within {self.a.last_epoch} epochs."

    def shown(self) -> str:
        """The ratio as text, with those limits of its interval that censoring leaves valid."""
        if self.bound == "not interpretable":
            return "not interpretable (both sides censored)"
        prefix = "" if self.bound == "estimate" else f"{self.bound} "
        if self.interval is None:
            return f"{prefix}{self.ratio:.2f} (no interval below {FEWEST_SEEDS} seeds)"
        low, high = (f"{limit:.2f}" for limit in self.interval)
        limits = {"estimate": f"{low} to {high}", "at least": f"from {low}", "at most": f"up to {high}"}[self.bound]
        return f"{prefix}{self.ratio:.2f} ({limits})"


def compare(a: ConvergenceTimes, b: ConvergenceTimes) -> Comparison:
    """The comparison over the seeds that both have: sign-flip test on d = log min(T_a, E) - log min(T_b, E).

    Times below the resolution count as the resolution, so that T = 0 (converged at initialisation) has a logarithm.
    The ratio is exp(mean d), the least rejected shift.

    >>> slow = ConvergenceTimes("full", {0: 40, 1: 44, 2: 48, 3: 52, 4: 56, 5: 60}, last_epoch=100)
    >>> fast = ConvergenceTimes("top_k", {0: 20, 1: 22, 2: 24, 3: 26, 4: 28, 5: 30}, last_epoch=100)
    >>> found = compare(slow, fast)
    >>> found.shown(), found.p_two_sided, found.share_faster, verdict(found)
    ('2.00 (2.00 to 2.00)', 0.03125, 1.0, 'confirmed')
    """
    for name in ("last_epoch", "resolution"):
        if getattr(a, name) != getattr(b, name):
            both = f"{getattr(a, name)} for {a.name!r} and {getattr(b, name)} for {b.name!r}"
            raise ValueError(f"{name} is {both}; times are comparable only where it is the same")
    common = sorted(a.times.keys() & b.times.keys())
    if not common:
        raise ValueError(f"{a.name!r} has seeds {a.seeds}, {b.name!r} has {b.seeds}; at least one in common is needed")
    unpaired = tuple(sorted(a.times.keys() ^ b.times.keys()))
    a, b = a.only(common), b.only(common)
    test = SignFlip.of((_log_times(a) - _log_times(b)).tolist())
    limits = test.interval()
    return Comparison(
        a=a,
        b=b,
        unpaired=unpaired,
        ratio=math.exp(test.estimate),
        interval=None if limits is None else (math.exp(limits[0]), math.exp(limits[1])),
        p_two_sided=test.two_sided(),
        p_faster=test.greater(),
        share_faster=_share_faster(a, b),
        exact=test.exact,
    )


def _log_times(times: ConvergenceTimes) -> Floats:
    logs: Floats = np.log(np.maximum(times.restricted, times.resolution))
    return logs


def _share_faster(a: ConvergenceTimes, b: ConvergenceTimes) -> float:
    # a censored time is later than convergence at the last epoch; two censored ones are a tie
    late_a, late_b = (np.where(x.censored, np.inf, x.restricted) for x in (a, b))
    return float(np.mean((late_b < late_a) + 0.5 * (late_b == late_a)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: the i-th smallest of m times (m - i + 1), never decreasing.

    >>> holm([0.25, 0.01, 0.03])
    [0.25, 0.03, 0.06]
    """
    p = np.asarray(p_values, float)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p_values is {list(p_values)}; numbers between 0 and 1 would do")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return [float(value) for value in adjusted]


def seeds_needed(comparisons: int) -> int:
    """The fewest seeds with which the first of so many comparisons can pass Holm: 2 m / 2^n <= ALPHA.

    >>> seeds_needed(1), seeds_needed(2), seeds_needed(8)
    (6, 7, 9)
    """
    if comparisons < 1:
        raise ValueError(f"comparisons is {comparisons}; at least 1 would do")
    return math.ceil(math.log2(2 * comparisons / ALPHA))


def verdict(comparison: Comparison, adjusted_p: float | None = None) -> Verdict:
    """What the comparison says of the claim "b is faster"; ``adjusted_p`` is its two-sided p after Holm.

    "confirmed" and "refuted": the interval lies wholly above or below 1, and the adjusted p is at most ALPHA. A certain
    difference counts as one however small. "no difference": the interval lies inside ``EQUIVALENT`` and nothing is
    censored, since two patterns that never converge are not thereby equal. All else is "undecided".
    """
    p = comparison.p_two_sided if adjusted_p is None else adjusted_p
    if not comparison.p_two_sided - 1e-12 <= p <= 1:
        raise ValueError(f"adjusted_p is {p}; a value from {comparison.p_two_sided} (unadjusted) to 1 would do")
    if comparison.interval is None or len(comparison.seeds) < FEWEST_SEEDS:
        return "undecided"
    low, high = comparison.interval
    if p <= ALPHA and (low > 1 or high < 1):
        return "confirmed" if low > 1 else "refuted"
    if not comparison.censored and EQUIVALENT[0] <= low and high <= EQUIVALENT[1]:
        return "no difference"
    return "undecided"


def verdicts(comparisons: Sequence[Comparison]) -> list[Verdict]:
    """The verdicts of the comparisons that make up one claim, with Holm's correction over them."""
    adjusted = holm([comparison.p_two_sided for comparison in comparisons])
    return [verdict(comparison, p) for comparison, p in zip(comparisons, adjusted, strict=True)]


@dataclass(frozen=True)
class LogRank:
    """Chi-square with one degree of freedom, and its p-value."""

    chi_square: float
    p: float


def log_rank(a: Any, b: Any) -> LogRank | None:
    """The log-rank test of two sets of censored times, for description: it ignores the pairing by seed.

    None where it is not defined: all censored, or all converged at the same moment.

    >>> never = ConvergenceTimes("full", {0: None, 1: None}, last_epoch=9)
    >>> log_rank(never.data, never.data) is None
    True
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # no variance: 0 / 0
        found = stats.logrank(a, b)
    if not math.isfinite(found.statistic):
        return None
    return LogRank(float(found.statistic) ** 2, float(found.pvalue))


def mean_interval(accuracies: Sequence[float], alpha: float = ALPHA) -> tuple[float, float] | None:
    """The BCa bootstrap interval of the mean of accuracies, the same in every call; None below ``FEWEST_ACCURACIES``.

    >>> mean_interval([0.5] * 8), mean_interval([0.1, 0.9])
    ((0.5, 0.5), None)
    """
    x = np.asarray(accuracies, float)
    if not np.isfinite(x).all():
        raise ValueError(
            f"accuracies is {list(accuracies)}; finite numbers would do (leave out what diverged, and say so)"
        )
    if x.size < FEWEST_ACCURACIES:
        return None
    if np.ptp(x) <= 1e-9:  # BCa divides by the spread of the jackknife
        return float(x.min()), float(x.max())
    generator = np.random.default_rng(0)
    found = stats.bootstrap(
        (x,), np.mean, method="BCa", confidence_level=1 - alpha, n_resamples=RESAMPLES, rng=generator
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


@dataclass(frozen=True, eq=False)
class Band:
    """Median and quartiles over the seeds that have a value, and how many they are, epoch by epoch."""

    median: Floats
    lower: Floats
    upper: Floats
    present: NDArray[np.int64]
    incomplete: tuple[int, ...]  # seeds with a missing value somewhere: they leave the band, and a page must say so


def band(curves: Mapping[int, Sequence[float | None]]) -> Band:
    """Median and inter-quartile band of one curve per seed, all with the same epochs.

    A shorter curve (a run that diverged) is filled up with NaN; NaN, None and infinities do not enter the quantiles
    and are counted in ``present``. An epoch without any value is NaN.

    >>> found = band({0: [1.0, 2.0], 1: [3.0, 4.0], 2: [5.0]})
    >>> found.median.tolist(), found.present.tolist(), found.incomplete
    ([3.0, 3.0], [3, 2], (2,))
    """
    if not curves:
        raise ValueError("curves is empty; at least one seed is needed")
    values = np.full((len(curves), max(len(curve) for curve in curves.values())), np.nan)  # (seeds, epochs)
    for row, curve in zip(values, curves.values(), strict=True):
        row[: len(curve)] = np.asarray(curve, float)  # None becomes NaN
    values[~np.isfinite(values)] = np.nan
    present = np.isfinite(values).sum(axis=0)
    quartiles = np.full((3, values.shape[1]), np.nan)
    quartiles[:, present > 0] = np.nanquantile(values[:, present > 0], [0.25, 0.5, 0.75], axis=0)
    missing = np.isnan(values).any(axis=1)
    incomplete = tuple(seed for seed, gone in zip(curves, missing, strict=True) if gone)
    return Band(quartiles[1], quartiles[0], quartiles[2], present, incomplete)
