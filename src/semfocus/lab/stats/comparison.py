"""Two patterns compared seed by seed, and what may be concluded from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .median_ratio import shown_limits
from .sign_flip import ALPHA, Floats, SignFlip
from .survival import ConvergenceTimes, not_interpretable

Verdict = Literal["confirmed", "refuted", "no difference", "undecided"]
Bound = Literal["estimate", "at least", "at most", "not interpretable"]

#: An interval of the ratio inside these limits is called "no difference".
EQUIVALENT = (0.8, 1.25)
#: Fewer seeds cannot reach ALPHA: the smallest two-sided p of n seeds is 2 / 2^n.
FEWEST_SEEDS = 6
#: Said behind a ratio of fewer.
NO_INTERVAL = f" (no interval below {FEWEST_SEEDS} seeds)"
#: A larger share of censored seeds has to be said before any number is shown.
HEAVY_CENSORING = 0.2


@dataclass(frozen=True)
class Comparison:
    """How many times faster b converges than a, seed by seed: the ratio T_a / T_b, above 1 where b is faster."""

    a: ConvergenceTimes  # the seeds both have
    b: ConvergenceTimes
    ratio: float  # of the geometric means of min(T, E)
    interval: tuple[float, float] | None  # at level 1 - ALPHA; None below FEWEST_SEEDS
    p_two_sided: float
    first: int  # seeds in which b came before a
    ties: int  # in which they came together, or neither came

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.a.seeds

    @property
    def censored(self) -> bool:
        return any(x.censored_count or x.early_count for x in (self.a, self.b))

    @property
    def bound(self) -> Bound:
        """What the ratio says of the uncensored times: a censored T_a is larger than E, so T_a / T_b is too.

        Likewise a T_b at the first evaluation was smaller, nobody knows by how much.
        """
        larger = self.a.censored_count or self.b.early_count
        smaller = self.b.censored_count or self.a.early_count
        if larger and smaller:
            return "not interpretable"
        return "at least" if larger else "at most" if smaller else "estimate"

    @property
    def valid_limits(self) -> tuple[float, float]:
        """Those limits of the interval that censoring leaves valid; 0 and infinity in the place of the others."""
        return self._valid(self.interval)

    def limits_at(self, alpha: float) -> tuple[float, float]:
        """``valid_limits`` at level 1 - ``alpha``, for several comparisons that shall hold together."""
        test = _test(self.a, self.b)
        limits, factor = test.interval(alpha), self.ratio / math.exp(test.estimate)  # in time, an epoch has its price
        return self._valid(None if limits is None else (factor * math.exp(limits[0]), factor * math.exp(limits[1])))

    def _valid(self, interval: tuple[float, float] | None) -> tuple[float, float]:
        low, high = interval or (0.0, math.inf)
        return (
            low if self.bound in ("estimate", "at least") else 0.0,
            high if self.bound in ("estimate", "at most") else math.inf,
        )

    @property
    def ratios(self) -> tuple[float, ...]:
        """Seed by seed, of min(T, E), in the order of ``seeds``."""
        return tuple(np.exp(_log_times(self.a) - _log_times(self.b)).tolist())

    @property
    def restricted_means(self) -> tuple[float, float]:
        """Mean of min(T, E) of a and of b."""
        return self.a.restricted_mean(), self.b.restricted_mean()

    @property
    def warning(self) -> str | None:
        """To be said before any number, where many seeds never converged, or before anybody looked."""
        said = []
        for counts, what in (
            ([x.censored_count for x in (self.a, self.b)], f"did not converge within {self.a.last_epoch} epochs"),
            (
                [x.early_count for x in (self.a, self.b)],
                f"had converged by the first evaluation (epoch {self.a.resolution:g})",
            ),
        ):
            if max(counts) / len(self.seeds) > HEAVY_CENSORING:
                names = (self.a.name, self.b.name)
                whose = (f"{n} of {len(self.seeds)} seeds of {name}" for n, name in zip(counts, names, strict=True))
                said.append(f"{' and '.join(whose)} {what}")
        return f"More than {100 * HEAVY_CENSORING:.0f} % censored: {'; '.join(said)}." if said else None

    def first_shown(self) -> str:
        """In how many seeds b came before a."""
        return f"{self.first} of {len(self.seeds)}" + (f" (and {self.ties} tied)" if self.ties else "")

    def shown(self) -> str:
        """The ratio as text, with those limits of its interval that censoring leaves valid."""
        if self.bound == "not interpretable":
            return not_interpretable(self.a, self.b)
        prefix = "" if self.bound == "estimate" else f"{self.bound} "
        if self.interval is None:
            return f"{prefix}{self.ratio:.2f}{NO_INTERVAL}"
        return f"{prefix}{self.ratio:.2f} ({shown_limits(*self.valid_limits, 'from', 'up to')})"


def compare(a: ConvergenceTimes, b: ConvergenceTimes) -> Comparison:
    """The comparison over the seeds that both have: sign-flip test on d = log min(T_a, E) - log min(T_b, E).

    Times below the resolution count as the resolution, so that T = 0 (converged at initialisation) has a logarithm.
    The ratio is exp(mean d), the least rejected shift.

    >>> slow = ConvergenceTimes("full", {0: 40, 1: 44, 2: 48, 3: 52, 4: 56, 5: 60}, last_epoch=100)
    >>> fast = ConvergenceTimes("top_k", {0: 20, 1: 22, 2: 24, 3: 26, 4: 28, 5: 30}, last_epoch=100)
    >>> found = compare(slow, fast)
    >>> found.shown(), found.p_two_sided, found.first_shown(), verdict(found)
    ('2.00 (2.00 to 2.00)', 0.03125, '6 of 6', 'confirmed')
    """
    for name in ("last_epoch", "resolution"):
        if getattr(a, name) != getattr(b, name):
            both = f"{getattr(a, name)} for {a.name!r} and {getattr(b, name)} for {b.name!r}"
            raise ValueError(f"{name} is {both}; times are comparable only where it is the same")
    common = sorted(a.times.keys() & b.times.keys())
    if not common:
        raise ValueError(f"{a.name!r} has seeds {a.seeds}, {b.name!r} has {b.seeds}; at least one in common is needed")
    a, b = a.only(common), b.only(common)
    test = _test(a, b)
    limits = test.interval()
    return Comparison(
        a=a,
        b=b,
        ratio=math.exp(test.estimate),
        interval=None if limits is None else (math.exp(limits[0]), math.exp(limits[1])),
        p_two_sided=test.two_sided(),
        **_who_was_first(a, b),
    )


def _test(a: ConvergenceTimes, b: ConvergenceTimes) -> SignFlip:
    return SignFlip.of((_log_times(a) - _log_times(b)).tolist())


def _log_times(times: ConvergenceTimes) -> Floats:
    logs: Floats = np.log(np.maximum(times.restricted, times.resolution))
    return logs


def _who_was_first(a: ConvergenceTimes, b: ConvergenceTimes) -> dict[str, int]:
    # a censored time is later than convergence at the last epoch; two censored ones are a tie
    late_a, late_b = (np.where(x.censored, np.inf, x.restricted) for x in (a, b))
    return {"first": int((late_b < late_a).sum()), "ties": int((late_b == late_a).sum())}


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

    "confirmed" and "refuted": what censoring leaves of the interval lies wholly above or below 1, and the adjusted p is
    at most ALPHA. A certain difference counts as one however small. "no difference": the interval lies inside
    ``EQUIVALENT`` and nothing is censored, since two patterns that never converge are not thereby equal. All else is
    "undecided".
    """
    p = comparison.p_two_sided if adjusted_p is None else adjusted_p
    if not comparison.p_two_sided - 1e-12 <= p <= 1:
        raise ValueError(f"adjusted_p is {p}; a value from {comparison.p_two_sided} (unadjusted) to 1 would do")
    if comparison.interval is None or len(comparison.seeds) < FEWEST_SEEDS:
        return "undecided"
    low, high = comparison.valid_limits
    if p <= ALPHA and (low > 1 or high < 1):
        return "confirmed" if low > 1 else "refuted"
    if not comparison.censored and EQUIVALENT[0] <= low and high <= EQUIVALENT[1]:
        return "no difference"
    return "undecided"


def verdicts(comparisons: Sequence[Comparison]) -> list[Verdict]:
    """The verdicts of the comparisons that make up one claim, with Holm's correction over them."""
    adjusted = holm([comparison.p_two_sided for comparison in comparisons])
    return [verdict(comparison, p) for comparison, p in zip(comparisons, adjusted, strict=True)]
