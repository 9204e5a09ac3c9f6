"""The sign-flip test and its interval against brute force, scipy and simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from semfocus.lab.stats import (
    ALPHA,
    EXACT_SEEDS,
    SignFlip,
)

pytestmark = pytest.mark.filterwarnings("error")

THOUSANDTHS = st.integers(-7000, 7000).map(lambda x: x / 1000)


def brute_force(d, shift=0.0):
    """p-values (two-sided, greater, less) by writing out every pattern of signs."""
    centred = [x - shift for x in d]
    observed = math.fsum(centred)
    sums = [math.fsum(s * x for s, x in zip(signs, centred, strict=True)) for signs in sign_patterns(len(d))]
    close = 1e-9
    two = sum(abs(x) >= abs(observed) - close for x in sums)
    greater = sum(x >= observed - close for x in sums)
    less = sum(x <= observed + close for x in sums)
    return tuple(count / len(sums) for count in (two, greater, less))


def sign_patterns(n):
    return itertools.product((1, -1), repeat=n)


@pytest.mark.parametrize("n", range(1, 13))
def test_all_differences_positive(n):
    test = SignFlip.of([0.1 * (i + 1) for i in range(n)])
    assert test.two_sided() == min(1.0, 2 / 2**n)
    assert test.greater() == 1 / 2**n
    assert test.less() == 1.0


def test_by_hand():
    # |sums| of (3, 2, -1): 4 2 0 6 6 0 2 4; four of eight reach the observed 4, two of them upwards (6 and 4)
    test = SignFlip.of([3, 2, -1])
    assert (test.two_sided(), test.greater(), test.less()) == (0.5, 0.25, 0.875)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=14), st.sampled_from([0.0, math.log(2), -0.3]))
def test_against_brute_force(epochs, shift):
    # logarithms of small integers have many ties: log 2 + log 3 - log 6 = 0
    half = len(epochs) // 2
    d = [math.log(x) - math.log(y) for x, y in zip(epochs[:half], epochs[half:], strict=False)]
    test = SignFlip.of(d)
    assert (test.two_sided(shift), test.greater(shift), test.less(shift)) == brute_force(d, shift)


def test_ties_among_logarithms_are_ties():
    d = [math.log(2), math.log(3), -math.log(6)]
    assert SignFlip.of(d).two_sided() == brute_force(d)[0] == 1.0


def test_against_scipy():
    a, b = np.random.default_rng(1).lognormal(size=(2, 9))
    test = SignFlip.of((a - b).tolist())
    for alternative, p in [("two-sided", test.two_sided()), ("greater", test.greater()), ("less", test.less())]:
        found = scipy_stats.permutation_test(
            (a, b), lambda x, y: np.sum(x - y), permutation_type="samples", alternative=alternative, n_resamples=2**9
        )
        assert p == pytest.approx(found.pvalue)


@pytest.mark.parametrize("n", [6, 7, 9, 10])
def test_interval_holds_exactly_the_shifts_that_are_not_rejected(n):
    d = np.random.default_rng(n).normal(0.3, 1.0, n).tolist()
    test = SignFlip.of(d)
    low, high = test.interval()
    for shift in [low + 1e-6, *np.linspace(low, high, 9)[1:-1], high - 1e-6]:
        assert brute_force(d, shift)[0] > ALPHA
    for shift in [low - 1e-6, low - 0.5, high + 1e-6, high + 0.5]:
        assert brute_force(d, shift)[0] <= ALPHA
    assert test.two_sided(low) > ALPHA  # closed: the limits belong to it
    assert test.two_sided(high) > ALPHA


@settings(max_examples=200, deadline=None)
@given(st.lists(THOUSANDTHS, min_size=6, max_size=9) | THOUSANDTHS.map(lambda x: [x] * 7))
def test_interval_contains_the_estimate_and_agrees_with_the_test(d):
    test = SignFlip.of(d)
    low, high = test.interval()
    assert low <= test.estimate <= high
    assert test.estimate == pytest.approx(np.mean(d), abs=1e-9)
    assert test.two_sided(test.estimate) > ALPHA
    assert (low <= 0 <= high) == (test.two_sided() > ALPHA)


def test_equal_differences_at_the_edge_of_rounding():
    test = SignFlip.of([2.1884896829525] * 7)  # half a unit of the last decimal kept
    low, high = test.interval()
    assert low <= test.estimate <= high


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "discrete"])
def test_coverage(draw):
    generator = np.random.default_rng(2)
    covered = []
    for _ in range(400):
        d = generator.integers(-2, 3, 10) if draw == "discrete" else getattr(generator, draw)(size=10)
        low, high = SignFlip.of((0.7 + d).tolist()).interval()
        covered.append(low <= 0.7 <= high)
    assert np.mean(covered) >= 0.93
    assert draw == "discrete" or np.mean(covered) < 0.98  # an interval that is always wide would say nothing


def test_the_interval_is_about_as_wide_as_students():
    d = np.random.default_rng(3).normal(size=12)
    low, high = SignFlip.of(d.tolist()).interval()
    student = scipy_stats.t.interval(0.95, 11, d.mean(), scipy_stats.sem(d))
    assert (low, high) == pytest.approx(student, abs=0.1)


def test_many_seeds_draw_subsets_and_agree_with_enumeration(monkeypatch):
    d = np.random.default_rng(4).normal(0.4, 1.0, EXACT_SEEDS).tolist()
    exact = SignFlip.of(d)
    monkeypatch.setattr("semfocus.lab.stats.sign_flip.EXACT_SEEDS", EXACT_SEEDS - 1)
    drawn = SignFlip.of(d)
    assert (exact.exact, drawn.exact) == (True, False)
    assert exact.means.size == 2**EXACT_SEEDS - 1
    assert drawn.two_sided() == pytest.approx(exact.two_sided(), abs=0.005)
    assert drawn.interval() == pytest.approx(exact.interval(), abs=0.02)
    assert SignFlip.of(d).means.tolist() == drawn.means.tolist()  # the same in every call


def test_refused_differences():
    with pytest.raises(ValueError, match="differences is"):
        SignFlip.of([])
    with pytest.raises(ValueError, match="finite"):
        SignFlip.of([1.0, math.inf])
    with pytest.raises(ValueError, match="alpha is 1"):
        SignFlip.of([1.0] * 6).interval(1)
