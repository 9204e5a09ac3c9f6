"""The median over seeds of a ratio of times, some of which are only known to be large."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semfocus.lab.stats import ConvergenceTimes, median_ratio

E = 100


def times(values, diverged=()):
    return ConvergenceTimes("x", dict(enumerate(values)), last_epoch=E, diverged=frozenset(diverged))


@given(st.lists(st.tuples(st.integers(2, E), st.integers(2, E)), min_size=1, max_size=15))
def test_without_censoring_it_is_the_median(pairs):
    ratios = sorted(a / b for a, b in pairs)
    found = median_ratio(times([a for a, _ in pairs]), times([b for _, b in pairs]))
    assert found.low == found.high == pytest.approx(float(np.median(ratios)))
    if len(pairs) < 6:
        assert found.interval is None
    else:
        low, high = found.interval
        assert low in ratios
        assert high in ratios
        assert low <= found.low <= high


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=6, max_size=12),
)
def test_what_is_said_of_censored_times_is_true_of_the_real_ones(pairs):
    """Times up to 300 are cut at 100: the real median and its real interval must lie inside what is said."""
    real = (
        ConvergenceTimes("a", {i: a for i, (a, _) in enumerate(pairs)}, 300),
        ConvergenceTimes("b", {i: b for i, (_, b) in enumerate(pairs)}, 300),
    )
    whole = median_ratio(*real)
    cut = median_ratio(*(times([t if t <= E else None for t in side]) for side in zip(*pairs, strict=True)))
    assert cut.low <= whole.low * (1 + 1e-12)
    assert cut.high >= whole.high * (1 - 1e-12)
    assert cut.interval[0] <= whole.interval[0] * (1 + 1e-12)
    assert cut.interval[1] >= whole.interval[1] * (1 - 1e-12)


def test_the_interval_covers_the_median():
    """In 2,000 made-up studies of 10 seeds, at least 95 %."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        a = np.exp(rng.normal(3, 0.4, 10))
        found = median_ratio(
            times(np.minimum(2 * a, E).tolist()), times((a * np.exp(rng.normal(0, 0.3, 10))).clip(1, E).tolist())
        )
        covered += found.interval[0] <= 2 <= found.interval[1]
    assert covered >= 0.95 * 2000


def test_diverged_seeds_and_seeds_of_one_side():
    a, b = times([40, 50, 60], diverged=[1]), times([20, 25])
    found = median_ratio(a, b)
    assert (found.seeds, found.low, found.high) == (2, (2.0 + 4.0) / 2, math.inf)
    assert found.shown() == "at least 3.00 (no interval: 2 seeds)"
    assert median_ratio(times([1]), ConvergenceTimes("y", {7: 1}, E)) is None


def test_what_had_converged_before_anybody_looked_is_at_most_that():
    slow, at_once = times([40, 44, 48, 52, 56, 60]), times([1, 1, 0, 1, 1, 1])
    assert median_ratio(slow, at_once).shown() == "at least 50.00 (from 40.00)"
    assert median_ratio(at_once, slow).shown() == "at most 0.02 (up to 0.03)"
    assert (
        median_ratio(at_once, at_once).shown()
        == "not interpretable (there at the first evaluation: 6 and 6 of 6 seeds)"
    )
