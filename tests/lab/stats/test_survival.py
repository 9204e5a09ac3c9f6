"""Survival curves and the log-rank test against published values."""

import math

import pytest
from given_times import times
from scipy import stats

from semfocus.lab.stats import (
    ConvergenceTimes,
    kaplan_meier,
    log_rank,
    right_censored,
)

pytestmark = pytest.mark.filterwarnings("error")

# Remission of acute leukaemia in weeks, 6-MP against placebo (Freireich et al. 1963); negative: censored.
SIX_MP = [6, 6, 6, -6, 7, -9, 10, -10, -11, 13, 16, -17, -19, -20, 22, 23, -25, -32, -32, -34, -35]
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]


def censored_data(weeks):
    return right_censored([abs(week) for week in weeks], [week < 0 for week in weeks])


@pytest.mark.parametrize(
    ("week", "surviving"),
    [
        (0, 1),
        (5, 1),
        (6, 0.857),
        (7, 0.807),
        (9, 0.807),
        (10, 0.753),
        (13, 0.690),
        (16, 0.627),
        (22, 0.538),
        (23, 0.448),
    ],
)
def test_kaplan_meier_published_values(week, surviving):
    assert kaplan_meier(censored_data(SIX_MP)).at(week) == pytest.approx(surviving, abs=6e-4)


def test_kaplan_meier_published_medians():
    assert kaplan_meier(censored_data(PLACEBO)).median() == 8
    assert kaplan_meier(censored_data(SIX_MP)).median() == 23


def test_log_rank_published_values():
    p = log_rank(censored_data(SIX_MP), censored_data(PLACEBO))
    assert stats.chi2.isf(p, 1) == pytest.approx(16.79, abs=0.005)
    assert p == pytest.approx(4.17e-5, rel=0.01)


@pytest.mark.parametrize(
    ("values", "epochs", "surviving", "median", "shown"),
    [
        ([None, None, None], (0, 9), (1, 1), None, "> 9"),
        ([2, 4, 4], (0, 2, 4, 9), (1, 2 / 3, 0, 0), 4, "4"),
        ([5], (0, 5, 9), (1, 0, 0), 5, "5"),
        ([None], (0, 9), (1, 1), None, "> 9"),
        ([9, 9], (0, 9), (1, 0), 9, "9"),
        ([0, 3], (0, 0, 3, 9), (1, 0.5, 0, 0), 1.5, "1.5"),
        ([3, None], (0, 3, 9), (1, 0.5, 0.5), None, "> 6"),  # the middle of 3 and something beyond 9
        ([3, None, 5, None], (0, 3, 5, 9), (1, 0.75, 0.5, 0.5), None, "> 7"),
        ([3, None, None], (0, 3, 9), (1, 2 / 3, 2 / 3), None, "> 9"),
    ],
)
def test_survival_of_few_seeds(values, epochs, surviving, median, shown):
    found = times(values, last_epoch=9)
    assert found.survival().epochs == epochs
    assert found.survival().surviving == pytest.approx(surviving)
    assert found.median() == median
    assert found.shown() == shown


@pytest.mark.parametrize("half", [5, 12])  # the product of 12 shares ends a little above one half
def test_half_of_the_seeds_is_half_despite_rounding(half):
    exactly = times([*range(1, half + 1), *[None] * half])
    assert (exactly.median(), exactly.shown()) == (None, f"> {(half + 100) / 2:g}")
    assert times([*range(1, half + 1), *[99] * half]).median() == (half + 99) / 2


def test_censoring_counts_the_unconverged_and_the_diverged():
    found = times([10, 20, None, 40], diverged=[3])  # seed 3 reached the level, then broke down
    assert found.censored == (False, False, True, True)
    assert (found.censored_count, found.censored_share) == (2, 0.5)
    assert found.restricted == (10, 20, 100, 100)
    assert found.restricted_mean() == 57.5


@pytest.mark.parametrize(
    ("a", "b"), [([None, None], [None]), ([5, 5], [5, 5]), ([5], [5])], ids=["all censored", "one moment", "one seed"]
)
def test_log_rank_where_it_is_not_defined(a, b):
    assert log_rank(times(a).data, times(b).data) is None


def test_log_rank_with_one_side_all_censored():
    assert 0 < log_rank(times([None] * 6).data, times([3, 4, 5, 6, 7, 8]).data) < 0.01


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"times": {0: 101}}, r"times\[0\] is 101 .* 0 to 100"),
        ({"times": {0: -1}}, r"times\[0\] is -1"),
        ({"times": {0: math.nan}}, r"times\[0\] is nan"),
        ({"times": {}}, "times is empty"),
        ({"times": {0: 1}, "last_epoch": 0}, "last_epoch is 0"),
        ({"times": {0: 1}, "diverged": frozenset({7})}, r"diverged names \[7\]"),
        ({"times": {0: 1}, "resolution": 0.0}, r"resolution is 0\.0"),
    ],
)
def test_refused_times(wrong, names):
    with pytest.raises(ValueError, match=names):
        ConvergenceTimes(**({"name": "x", "last_epoch": 100} | wrong))
