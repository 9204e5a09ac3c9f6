"""The exact paired sign-flip test, and the interval of all shifts that it does not reject."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ALPHA = 0.05
#: Up to this many seeds every sign pattern is enumerated; beyond, subsets are drawn.
EXACT_SEEDS = 16
DRAWN_SUBSETS = 99_999
#: Decimals of a mean of logarithms: equal means differ by rounding only, and must count as equal.
DECIMALS = 12


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


def shown_mean(values: Collection[float], form: str = "{:.2f}", ratio: bool = False) -> str:
    """The mean with its interval; ``ratio``: the values are logarithms, and shown as what they are of.

    >>> shown_mean([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), shown_mean([0.5, 1.0], "{:.1f}"), shown_mean([0.0], ratio=True)
    ('3.50 (1.00 to 6.00)', '0.8', '1.00')
    """
    if not values:
        return "-"
    test = SignFlip.of(list(values))
    limits = test.interval()
    shown = [form.format(math.exp(value) if ratio else value) for value in (test.estimate, *(limits or ()))]
    return shown[0] if limits is None else f"{shown[0]} ({shown[1]} to {shown[2]})"


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
