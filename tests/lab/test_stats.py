"""The statistics against published values, brute force and simulated studies whose truth is known."""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from semfocus.lab.stats import (
    ALPHA,
    EXACT_SEEDS,
    ConvergenceTimes,
    SignFlip,
    band,
    compare,
    holm,
    kaplan_meier,
    log_rank,
    mean_interval,
    right_censored,
    seeds_needed,
    verdict,
    verdicts,
)

pytestmark = pytest.mark.filterwarnings("error")

# Remission of acute leukaemia in weeks, 6-MP against placebo (Freireich et al. 1963); negative: censored.
SIX_MP = [6, 6, 6, -6, 7, -9, 10, -10, -11, 13, 16, -17, -19, -20, 22, 23, -25, -32, -32, -34, -35]
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]


def censored_data(weeks):
    return right_censored([abs(week) for week in weeks], [week < 0 for week in weeks])


def times(values, *, name="x", last_epoch=100, first_seed=0, diverged=()):
    by_seed = dict(enumerate(values, first_seed))
    return ConvergenceTimes(name, by_seed, last_epoch, diverged=frozenset(diverged))


def comparison(a, b, *, last_epoch=100):
    return compare(times(a, name="a", last_epoch=last_epoch), times(b, name="b", last_epoch=last_epoch))


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


# --- survival -------------------------------------------------------------------------------------------------------


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
    found = log_rank(censored_data(SIX_MP), censored_data(PLACEBO))
    assert found.chi_square == pytest.approx(16.79, abs=0.005)
    assert found.p == pytest.approx(4.17e-5, rel=0.01)


@pytest.mark.parametrize(
    ("values", "epochs", "surviving", "median", "shown"),
    [
        ([None, None, None], (0, 9), (1, 1), None, "> 9"),
        ([2, 4, 4], (0, 2, 4, 9), (1, 2 / 3, 0, 0), 4, "4"),
        ([5], (0, 5, 9), (1, 0, 0), 5, "5"),
        ([None], (0, 9), (1, 1), None, "> 9"),
        ([9, 9], (0, 9), (1, 0), 9, "9"),
        ([0, 3], (0, 0, 3, 9), (1, 0.5, 0, 0), 1.5, "1.5"),
        ([3, None], (0, 3, 9), (1, 0.5, 0.5), 3, "3"),
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
def test_half_of_the_seeds_is_a_median_despite_rounding(half):
    assert times([*range(1, half + 1), *[None] * half]).median() == half


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
    found = log_rank(times([None] * 6).data, times([3, 4, 5, 6, 7, 8]).data)
    assert 0 < found.p < 0.01


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


THOUSANDTHS = st.integers(-7000, 7000).map(lambda x: x / 1000)


# --- the sign-flip test ---------------------------------------------------------------------------------------------


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


# --- comparisons ----------------------------------------------------------------------------------------------------


def test_the_ratio_is_that_of_the_geometric_means():
    found = comparison([40, 44, 50, 46, 41, 49], [18, 20, 19, 18, 20, 19])
    expected = scipy_stats.gmean([40, 44, 50, 46, 41, 49]) / scipy_stats.gmean([18, 20, 19, 18, 20, 19])
    assert found.ratio == pytest.approx(expected)
    assert found.interval[0] < found.ratio < found.interval[1]
    assert (found.p_two_sided, found.p_faster, found.share_faster, found.exact) == (2 / 64, 1 / 64, 1.0, True)
    assert found.bound == "estimate"
    assert found.warning is None


def test_swapping_the_patterns_inverts_the_ratio():
    a, b = [40, 44, 50, None, 41, 20, 31], [18, 20, 19, 18, 20, 39, 31]
    there, back = comparison(a, b), comparison(b, a)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.interval == pytest.approx((1 / there.interval[1], 1 / there.interval[0]))
    assert back.p_two_sided == there.p_two_sided
    assert back.share_faster == pytest.approx(1 - there.share_faster)
    assert (there.bound, back.bound) == ("at least", "at most")


def test_pairs_by_seed_and_names_what_is_left_out():
    a = times([10, 20, 30, 40], first_seed=0)
    b = times([5, 10, 15, 20], first_seed=1)  # seeds 1 to 4
    found = compare(a, b)
    assert found.seeds == (1, 2, 3)
    assert found.unpaired == (0, 4)
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


def test_share_faster_and_restricted_means():
    # faster; slower; tie; tie of two censored; convergence at the last epoch beats never
    found = comparison([40, 20, 30, None, None], [20, 40, 30, None, 100])
    assert found.share_faster == pytest.approx((1 + 0 + 0.5 + 0.5 + 1) / 5)
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


# --- verdicts -------------------------------------------------------------------------------------------------------


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


# --- accuracies and curves ------------------------------------------------------------------------------------------


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
    assert found.present.tolist() == [7] * 5
    assert found.incomplete == ()


def test_band_counts_what_is_missing():
    curves = {3: [1.0, 2.0, 3.0, None], 5: [3.0], 8: [5.0, math.nan, math.inf, None]}
    found = band(curves)
    assert found.present.tolist() == [3, 1, 1, 0]
    assert found.median[:3].tolist() == [3.0, 2.0, 3.0]
    assert math.isnan(found.median[3])
    assert found.incomplete == (3, 5, 8)
    with pytest.raises(ValueError, match="curves is empty"):
        band({})
    assert band({0: []}).median.tolist() == []


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
        "not interpretable", "not interpretable (both sides censored)", "undecided"
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
