"""Accuracies over seeds: intervals of their mean, and bands of their curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from .sign_flip import ALPHA, Floats

#: Fewer accuracies give a bootstrap too few distinct resamples.
FEWEST_ACCURACIES = 8
RESAMPLES = 9_999
QUARTILES = (0.25, 0.5, 0.75)


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
    """Median and quartiles over the seeds that have a value, epoch by epoch."""

    median: Floats
    lower: Floats
    upper: Floats


def band(curves: Mapping[int, Sequence[float | None]]) -> Band:
    """Median and inter-quartile band of one curve per seed, all with the same epochs.

    A shorter curve (a run that diverged) is filled up with NaN; NaN, None and infinities do not enter the quantiles.
    An epoch without any value is NaN.

    >>> band({0: [1.0, 2.0], 1: [3.0, 4.0], 2: [5.0]}).median.tolist()
    [3.0, 3.0]
    """
    if not curves:
        raise ValueError("curves is empty; at least one seed is needed")
    values = np.full((len(curves), max(len(curve) for curve in curves.values())), np.nan)  # (seeds, epochs)
    for row, curve in zip(values, curves.values(), strict=True):
        row[: len(curve)] = np.asarray(curve, float)  # None becomes NaN
    values[~np.isfinite(values)] = np.nan
    present = np.isfinite(values).sum(axis=0)
    quartiles = np.full((3, values.shape[1]), np.nan)
    whole, some = present == len(values), (present > 0) & (present < len(values))
    quartiles[:, whole] = np.quantile(values[:, whole], QUARTILES, axis=0)
    quartiles[:, some] = np.nanquantile(values[:, some], QUARTILES, axis=0)  # slow: epoch by epoch
    return Band(quartiles[1], quartiles[0], quartiles[2])
