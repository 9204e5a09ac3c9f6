"""Comparisons of two patterns: ratios, censoring, verdicts, and studies whose truth is known."""

import itertools
import math
import warnings

import numpy as np
import pytest
from given_times import comparison, times
from scipy import stats as scipy_stats

from semfocus.lab.stats import (
    ALPHA,
    ConvergenceTimes,
    band,
    compare,
    holm,
    log_rank,
    mean_interval,
    seeds_needed,
    verdict,
    verdicts,
)

pytestmark = pytest.mark.filterwarnings("error")


def test_the_ratio_is_that_of_the_geometric_means():
    found = comparison([40, 44, 50, 46, 41, 49], [18, 20, 19, 18, 20, 19])
    expected = scipy_stats.gmean([40, 44, 50, 46, 41, 49]) / scipy_stats.gmean([18, 20, 19, 18, 20, 19])
    assert found.ratio == pytest.approx(expected)
    assert found.interval[0] < found.ratio < found.interval[1]
    assert (found.p_two_sided, found.first) == (2 / 64, 6)
    assert found.bound == "estimate"
    assert found.warning is None


def test_swapping_the_patterns_inverts_the_ratio():
    a, b = [40, 44, 50, None, 41, 20, 31], [18, 20, 19, 18, 20, 39, 31]
    there, back = comparison(a, b), comparison(b, a)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.interval == pytest.approx((1 / there.interval[1], 1 / there.interval[0]))
    assert back.p_two_sided == there.p_two_sided
    assert (there.first, back.first, there.ties, back.ties) == (5, 1, 1, 1)
    assert (there.bound, back.bound) == ("at least", "at most")


def test_pairs_by_seed():
    a = times([10, 20, 30, 40], first_seed=0)
    b = times([5, 10, 15, 20], first_seed=1)  # seeds 1 to 4
    found = compare(a, b)
    assert found.seeds == (1, 2, 3)
    assert found.ratio == pytest.approx((20 / 5 * 30 / 10 * 40 / 15) ** (1 / 3))


def test_convergence_at_initialisation_has_a_finite_ratio():
    assert comparison([8] * 6, [0] * 6).ratio == pytest.approx(8)  # 0 counts as 1
    a, b = (ConvergenceTimes(n, {0: t}, 100, resolution=0.1) for n, t in [("a", 8), ("b", 0)])
    assert compare(a, b).ratio == pytest.approx(80)


@pytest.mark.parametrize(
    ("a", "b", "bound", "shown"),
    [
        ([50] * 6, [25] * 6, "estimate", "2.00 (2.00 to 2.00)"),
        ([None] * 6, [25] * 6, "at least", "at least 4.00 (from 4.00)"),
        ([25] * 6, [None] * 6, "at most", "at most 0.25 (up to 0.25)"),
        ([None, 50, 50, 50, 50, 50], [25, None, 25, 25, 25, 25], "not interpretable", "not interpretable"),
        ([None] * 6, [None] * 6, "not interpretable", "not interpretable"),
        ([50] * 5, [25] * 5, "estimate", "2.00 (no interval below 6 seeds)"),
    ],
)
def test_censoring_labels(a, b, bound, shown):
    found = comparison(a, b)
    assert found.bound == bound
    assert found.shown().startswith(shown)


def test_who_was_first_and_restricted_means():
    # faster; slower; tie; tie of two censored; convergence at the last epoch beats never
    found = comparison([40, 20, 30, None, None], [20, 40, 30, None, 100])
    assert (found.first, found.ties, found.first_shown()) == (2, 2, "2 of 5 (and 2 tied)")
    assert found.restricted_means == pytest.approx((58, 58))


@pytest.mark.parametrize(("censored", "heavy"), [(0, False), (2, False), (3, True)])
def test_more_than_a_fifth_censored_is_said(censored, heavy):
    for swap in (False, True):
        pair = [[None] * censored + [50] * (10 - censored), [20] * 10]
        found = comparison(*(pair[::-1] if swap else pair))
        assert (found.warning is not None) == heavy
    if heavy:
        assert found.warning == (
            "More than 20 % censored: 0 of 10 seeds of a and 3 of 10 seeds of b did not converge within 100 epochs."
        )


def test_incomparable_patterns_are_refused():
    with pytest.raises(ValueError, match="last_epoch is 100 for 'a' and 200 for 'b'"):
        compare(times([1], name="a"), times([1], name="b", last_epoch=200))
    with pytest.raises(ValueError, match="at least one in common"):
        compare(times([1]), times([1], first_seed=5))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([50, 52, 54, 56, 58, 60], [20, 21, 22, 20, 21, 22], "confirmed"),
        ([20, 21, 22, 20, 21, 22], [50, 52, 54, 56, 58, 60], "refuted"),
        ([50, 52, 54, 56, 58, 60], [52, 50, 56, 54, 60, 58], "no difference"),
        ([50] * 6, [50] * 6, "no difference"),
        ([50, 52, 54, 56, 58, 60], [49, 51, 53, 55, 57, 59], "confirmed"),  # certain, however small
        ([20, 80, 20, 80, 20, 80], [80, 20, 80, 20, 80, 20], "undecided"),
        ([90] * 5, [2] * 5, "undecided"),  # five seeds
        ([None] * 6, [20] * 6, "confirmed"),
        ([20] * 6, [None] * 6, "refuted"),
        ([None] * 6, [None] * 6, "undecided"),  # never is not the same as equal
        ([50, 52, 54, 56, 58, None], [50, 52, 54, 56, 58, 99], "undecided"),  # close, but one is not known
    ],
)
def test_verdict(a, b, expected):
    assert verdict(comparison(a, b)) == expected


@pytest.mark.parametrize("n", range(1, 6))
def test_fewer_than_six_seeds_are_undecided(n):
    found = comparison([90] * n, [2] * n)
    assert found.interval is None
    assert verdict(found) == "undecided"


def test_verdict_after_holm():
    found = comparison([50, 52, 54, 56, 58, 60], [20, 21, 22, 20, 21, 22])
    assert verdict(found, 0.05) == "confirmed"
    assert verdict(found, 0.0501) == "undecided"
    assert verdicts([found]) == ["confirmed"]
    assert verdicts([found, found]) == ["undecided", "undecided"]  # six seeds carry one comparison
    small = comparison([50, 52, 54, 56, 58, 60], [49, 51, 53, 55, 57, 59])
    assert verdicts([small, small]) == ["no difference", "no difference"]
    assert verdicts([]) == []
    with pytest.raises(ValueError, match=r"adjusted_p is 0\.01"):
        verdict(found, 0.01)  # smaller than the p it was made from


def test_seeds_needed_is_where_holm_can_first_pass():
    for comparisons in (1, 2, 3, 8, 15, 120):
        n = seeds_needed(comparisons)
        assert 2 / 2**n * comparisons <= ALPHA < 2 / 2 ** (n - 1) * comparisons
    with pytest.raises(ValueError, match="comparisons is 0"):
        seeds_needed(0)


def test_holm_by_hand():
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, and .04 is raised to .06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []
    with pytest.raises(ValueError, match="p_values is"):
        holm([0.1, math.nan])


def simulated(generator, median_epochs, *, name, seeds=10, last_epoch=100):
    """Lognormal times in whole epochs: ties, and a fifth or so never converges."""
    drawn = np.ceil(generator.lognormal(math.log(median_epochs), 0.6, seeds))
    return times([int(t) if t <= last_epoch else None for t in drawn], name=name, last_epoch=last_epoch)


def test_identical_patterns_are_rarely_told_apart():
    generator = np.random.default_rng(5)
    studies = [compare(*(simulated(generator, 60, name=name) for name in "ab")) for _ in range(100)]
    assert 0.1 < np.mean([study.a.censored_share for study in studies]) < 0.3
    found = [verdict(study) for study in studies]
    assert found.count("confirmed") <= 5
    assert found.count("refuted") <= 5


def test_the_level_is_kept_over_many_studies():
    generator = np.random.default_rng(6)
    p = [compare(*(simulated(generator, 60, name=name) for name in "ab")) for _ in range(600)]
    assert np.mean([x.p_two_sided <= ALPHA for x in p]) <= 0.065  # 0.05 and 1.7 standard errors
    assert np.mean([x.p_two_sided <= ALPHA for x in p]) >= 0.02  # a test that never rejects is no test


def test_a_claim_of_many_identical_patterns_keeps_its_level():
    generator = np.random.default_rng(7)
    studies = []
    for _ in range(100):
        full = simulated(generator, 60, name="full")
        studies.append(verdicts([compare(full, simulated(generator, 60, name="other")) for _ in range(6)]))
    assert sum("confirmed" in study for study in studies) <= 5


def test_a_real_difference_is_found():
    generator = np.random.default_rng(8)
    pairs = [(simulated(generator, 60, name="a"), simulated(generator, 20, name="b")) for _ in range(100)]
    assert [verdict(compare(a, b)) for a, b in pairs].count("confirmed") >= 85


def test_nothing_here_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        never, at_once = times([None] * 8, name="a"), times([0] * 8, name="b")
        for a, b in itertools.product((never, at_once), repeat=2):
            found = compare(a, b)
            assert math.isfinite(found.ratio)
            found.shown(), found.warning, verdict(found), log_rank(a.data, b.data), a.survival(), a.median()
        mean_interval([0.3] * 12)
        band({0: [None], 1: []})
    assert caught == []


def test_two_that_are_there_at_once_are_not_thereby_equal():
    def at(name, values, resolution=1.0):
        return ConvergenceTimes(name, dict(enumerate(values)), 100, resolution=resolution)

    ones, slow = [1.0] * 8, [30.0, 31, 33, 35, 40, 41, 42, 44]
    both = compare(at("a", ones), at("b", ones))
    assert (both.bound, both.shown(), verdict(both)) == (
        "not interpretable", "not interpretable (there at the first evaluation: 8 and 8 of 8 seeds)", "undecided"
    )  # fmt: skip
    assert "8 of 8 seeds of a and 8 of 8 seeds of b had converged by the first evaluation (epoch 1)" in both.warning
    faster = compare(at("a", slow), at("b", ones))
    assert faster.bound == "at least"
    assert faster.shown().startswith("at least 36.")
    assert verdict(faster) == "confirmed"
    assert compare(at("b", ones), at("a", slow)).bound == "at most"
    assert compare(at("a", slow, 50.0), at("b", [60.0] * 8, 50.0)).bound == "at most"  # by the first look, at 50
    assert compare(at("a", slow), at("b", [*slow[:-1], None])).bound == "at most"
    assert compare(at("a", slow), at("b", [1.0, *slow[1:-1], None])).bound == "not interpretable"
