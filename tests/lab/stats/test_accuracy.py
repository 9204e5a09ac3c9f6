"""Intervals of accuracies and bands of curves."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from semfocus.lab.stats import (
    band,
    mean_interval,
)

pytestmark = pytest.mark.filterwarnings("error")


def test_bca_needs_eight():
    assert mean_interval([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]) is None
    assert mean_interval([]) is None
    low, high = mean_interval([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert low < 0.45 < high


@pytest.mark.parametrize("value", [0.0, 0.1, 0.5, 1.0])
def test_bca_of_a_constant(value):
    assert mean_interval([value] * 9) == (value, value)


def test_bca_of_almost_constant_data():
    low, high = mean_interval([0.1] * 7 + [math.nextafter(0.1, 1)])
    assert low <= high == pytest.approx(0.1)
    low, high = mean_interval([1.0] * 9 + [0.5])
    assert 0.5 < low < 0.95 < high <= 1.0


def test_bca_follows_the_skew_and_covers():
    generator = np.random.default_rng(9)
    covered = []
    for _ in range(40):
        low, high = mean_interval(generator.beta(8, 2, 20).tolist())
        covered.append(low <= 0.8 <= high)
    assert np.mean(covered) >= 0.85
    skewed = [0.99] * 8 + [0.4, 0.9]
    low, high = mean_interval(skewed)
    plain = scipy_stats.bootstrap((skewed,), np.mean, method="percentile", rng=np.random.default_rng(0))
    assert low < plain.confidence_interval.low - 0.05  # what the correction is for
    assert high == pytest.approx(plain.confidence_interval.high, abs=0.01)
    assert mean_interval(skewed) == (low, high)


def test_bca_refuses_what_diverged():
    with pytest.raises(ValueError, match="accuracies is"):
        mean_interval([0.5] * 9 + [math.nan])


def test_band_is_numpys_where_nothing_is_missing():
    curves = np.random.default_rng(10).random((7, 5))
    found = band(dict(enumerate(curves.tolist())))
    assert found.median == pytest.approx(np.median(curves, axis=0))
    assert found.lower == pytest.approx(np.quantile(curves, 0.25, axis=0))
    assert found.upper == pytest.approx(np.quantile(curves, 0.75, axis=0))


def test_band_leaves_out_what_is_missing():
    curves = {3: [1.0, 2.0, 3.0, None], 5: [3.0], 8: [5.0, math.nan, math.inf, None]}
    found = band(curves)
    assert found.median[:3].tolist() == [3.0, 2.0, 3.0]
    assert math.isnan(found.median[3])
    with pytest.raises(ValueError, match="curves is empty"):
        band({})
    assert band({0: []}).median.tolist() == []
