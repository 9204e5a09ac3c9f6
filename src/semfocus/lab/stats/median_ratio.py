"""The median over seeds of T_a / T_b, with an interval that needs no assumption and survives censoring.

A censored T is only known to be larger than E, one at the first evaluation to be at most that; so a seed gives a range
of ratios. The median of all lower ends and the median of all upper ends enclose the median; where they differ, only one
of them may be known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .sign_flip import ALPHA
from .survival import ConvergenceTimes, not_interpretable


@dataclass(frozen=True)
class MedianRatio:
    """How many times faster b is in the median seed: above 1 where b is faster. 0 and infinity: not known."""

    low: float  # the median is at least this
    high: float  # and at most this
    interval: tuple[float, float] | None  # None: so few seeds have no interval at level 1 - ALPHA
    seeds: int
    unknown: str = "not interpretable"  # said where neither end is known

    def shown(self) -> str:
        """
        >>> MedianRatio(2.0, 2.0, (1.5, 3.0), 10).shown(), MedianRatio(2.0, math.inf, (1.5, math.inf), 10).shown()
        ('2.00 (1.50 to 3.00)', 'at least 2.00 (from 1.50)')
        >>> MedianRatio(0.5, 1.5, (0.0, math.inf), 10).shown(), MedianRatio(0.0, math.inf, None, 3).shown()
        ('0.50 to 1.50 (no limits)', 'not interpretable')
        """
        number = (
            f"{self.low:.2f}" if self.low == self.high else shown_limits(self.low, self.high, "at least", "at most")
        )
        if not number:
            return self.unknown
        if self.interval is None:
            return f"{number} (no interval: {self.seeds} seeds)"
        return f"{number} ({shown_limits(*self.interval, 'from', 'up to') or 'no limits'})"


def shown_limits(low: float, high: float, above: str, below: str) -> str:
    """A range whose ends may be unknown; empty where both are."""
    if low > 0 and math.isfinite(high):
        return f"{low:.2f} to {high:.2f}"
    return f"{above} {low:.2f}" if low > 0 else f"{below} {high:.2f}" if math.isfinite(high) else ""


def median_ratio(a: ConvergenceTimes, b: ConvergenceTimes) -> MedianRatio | None:
    """Over the seeds that both have; None where there is none. Times below the resolution count as the resolution.

    The interval runs from the k-th smallest to the k-th largest ratio, k as large as the binomial distribution allows.

    >>> slow = ConvergenceTimes("full", {0: 40, 1: 44, 2: 48, 3: 52, 4: 56, 5: None}, last_epoch=100)
    >>> fast = ConvergenceTimes("top_k", {0: 20, 1: 22, 2: 16, 3: 13, 4: 28, 5: 10}, last_epoch=100)
    >>> median_ratio(slow, fast).shown()
    '2.50 (from 2.00)'
    """
    seeds = sorted(a.times.keys() & b.times.keys())
    if not seeds:
        return None
    ranges = [_range(a, b, seed) for seed in seeds]
    lows, highs = sorted(low for low, _ in ranges), sorted(high for _, high in ranges)
    rank = _rank(len(seeds))
    interval = None if rank is None else (lows[rank - 1], highs[len(seeds) - rank])
    unknown = not_interpretable(a.only(seeds), b.only(seeds))
    return MedianRatio(_middle(lows), _middle(highs), interval, len(seeds), unknown)


def _range(a: ConvergenceTimes, b: ConvergenceTimes, seed: int) -> tuple[float, float]:
    (a_low, a_high), (b_low, b_high) = (_time(times, seed) for times in (a, b))
    return a_low / b_high, a_high / b_low if b_low else math.inf


def _time(times: ConvergenceTimes, seed: int) -> tuple[float, float]:
    known = times.converged(seed)
    if known is None:
        return float(times.last_epoch), math.inf
    return (float(known), float(known)) if known > times.resolution else (0.0, times.resolution)


def _middle(values: Sequence[float]) -> float:
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def _rank(n: int) -> int | None:
    """The largest k for which the k-th smallest and k-th largest of n enclose the median with 1 - ALPHA; None: no such.

    >>> [_rank(n) for n in (5, 6, 8, 9, 10, 20)]
    [None, 1, 1, 2, 2, 6]
    """
    tail, k = 0.0, 0
    while 2 * (tail := tail + math.comb(n, k) / 2**n) <= ALPHA:
        k += 1
    return k or None
