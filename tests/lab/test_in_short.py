"""A claim's evidence in short."""

import dataclasses

import pytest

from semfocus.lab.claims import Contrast, Faster, Judged, Line, NoConsistentBenefit, in_short, listed
from semfocus.lab.stats import ConvergenceTimes, compare


def short(*lines, claim=Faster):
    found = in_short(Judged(claim("C1", "statement", ()), "undecided", "", lines))
    return [f"*{part.word}* {part.text}" if part.word else part.text for part in found]


def line(panel, subject="top-k(5) against full", outcome="confirmed", shown="2.00 (1.50 to 3.00)", seeds=10):
    return Line(panel, subject, shown if outcome != "missing" else "-", outcome, seeds=seeds)


def test_what_decides_comes_first_and_what_is_missing_last():
    found = short(line("a", outcome="missing"), line("b", outcome="undecided"), line("c"), line("d", outcome="refuted"))
    number = "2.00 (1.50 to 3.00)"
    assert found == [f"*refuted* d: {number}", f"*confirmed* c: {number}", f"*undecided* b: {number}", "*missing* a"]


def test_what_all_have_in_common_is_said_once():
    few = {"shown": "1.35 (no interval below 6 seeds)", "seeds": 3, "outcome": "undecided"}
    heads = short(line("listops, heads 1", **few), line("listops, heads 2", outcome="missing"))
    assert heads == ["On listops:", "*undecided* heads 1: 1.35 (3 seeds)", "*missing* heads 2"]
    quantiles = [f"top-k(5) over full, {q} % quantile" for q in (75, 90)]
    assert short(*(line("a", subject) for subject in quantiles)) == [
        "On a:",
        "*confirmed* 75 % quantile: 2.00 (1.50 to 3.00); 90 % quantile: 2.00 (1.50 to 3.00)",
    ]
    arms = short(line("a", "full x 2 against full"), line("b", "full, cosine scores against full"))
    assert arms == ["*confirmed* a, full x 2: 2.00 (1.50 to 3.00); b, full, cosine scores: 2.00 (1.50 to 3.00)"]
    assert short(line("a")) == ["On a:", "*confirmed* 2.00 (1.50 to 3.00)"]


@pytest.mark.parametrize("missing", [False, True])
def test_top_k_5_speaks_for_others_where_it_has_run(missing):
    focused = line("a", outcome="missing") if missing else line("a")
    found = short(focused, line("a", "top-k(9) against full"), line("a", "top-k(15) against full"))
    assert ("top-k(9)" in found[1], "without 2 other comparisons" in found[-1]) == (missing, not missing)


def test_many_are_counted_and_their_ends_shown():
    def ratio(fast, slow):
        full, other = (ConvergenceTimes(x, dict(enumerate(t)), 100) for x, t in (("full", slow), ("b", fast)))
        return compare(full, other)

    found = [
        ratio([10 + seed for seed in range(6)], [speed * (10 + seed) for seed in range(6)]) for speed in range(1, 5)
    ]
    lines = [
        Line(panel, f"banded({n}) against full", one.shown(), "refuted", comparison=one, seeds=6)
        for panel in "abc"
        for n, one in enumerate(found)
    ]
    lines[0] = dataclasses.replace(lines[0], outcome="confirmed")
    never = ratio([None] * 6, [None] * 6)
    lines[1:4] = [dataclasses.replace(one, comparison=never, shown=never.shown()) for one in lines[1:4]]
    ends = "1.00 (1.00 to 1.00) to 4.00 (4.00 to 4.00)"
    assert short(*lines, line("d", "banded(1) against full", "missing"), claim=NoConsistentBenefit) == [
        f"*slower* 11 of 13 (a, 3; b, 4: {ends}; c, 4: {ends})",
        "*faster* 1 of 13 (a, 1: 1.00 (1.00 to 1.00))",
        "*missing* d",
    ]


def test_nothing_is_lost():
    """Every comparison is named or counted, whatever the outcomes."""
    outcomes = ("confirmed", "refuted", "no difference", "undecided", "impossible", "missing")
    found = short(*(line(outcome, "x", outcome) for outcome in outcomes))
    assert sorted(part.split("*")[1] for part in found) == sorted(outcomes)


def test_numbers_without_outcomes():
    (part,) = listed([line("a", "", shown="1.10"), line("b", "", shown="0.90")])
    assert (part.text, part.word) == ("a: 1.10; b: 0.90", "")


def test_a_comparison_that_went_against_a_claim_is_not_called_confirmed():
    """A fixed pattern that is faster somewhere speaks against "no consistent benefit"."""
    claim = NoConsistentBenefit("C3", "statement", (Contrast("a", "full", "banded(5)"),))
    assert [claim.word(outcome) for outcome in ("confirmed", "refuted", "missing")] == ["faster", "slower", "missing"]
