"""Verdicts on curves whose truth is known, because they were made up."""

import pytest

from semfocus.lab.claims import AsAccurate, Below, Case, Contrast, Faster, Learns, NoConsistentBenefit, against
from semfocus.lab.results import Results
from semfocus.report.parts import Cell
from semfocus.report.speed import section

SLOW, FAST = [40, 50, 60, 44, 48, 70, 66, 52], [10, 12, 11, 14, 9, 13, 10, 12]
PANEL = "even_pairs"


def results(made_up, times, **more):
    store, manifest = made_up({(PANEL, label): values for label, values in times.items()}, **more)
    return Results(store, manifest)


def judge(claim, found):
    return claim.judge(found)


def faster(*bs):
    return Faster("x", "b is faster", against([PANEL], "full", bs))


def test_faster_is_confirmed_refuted_and_undecided(made_up, tmp_path):
    assert judge(faster("top-k(5)"), results(made_up, {"full": SLOW, "top-k(5)": FAST})).verdict == "confirmed"
    assert judge(faster("top-k(5)"), results(made_up, {"full": FAST, "top-k(5)": SLOW})).verdict == "refuted"
    mixed = [40, 12, 60, 14, 9, 70, 10, 52]
    assert judge(faster("top-k(5)"), results(made_up, {"full": SLOW, "top-k(5)": mixed})).verdict == "undecided"


def test_equal_times_are_no_difference(made_up):
    nearly = [time + 1 for time in SLOW]
    judged = judge(faster("top-k(5)"), results(made_up, {"full": nearly, "top-k(5)": SLOW}))
    assert judged.verdict in ("confirmed", "no difference")  # always one epoch ahead: certain, however small
    same = judge(faster("top-k(5)"), results(made_up, {"full": SLOW, "top-k(5)": SLOW}))
    assert same.verdict == "no difference"


def test_one_certain_opposite_refutes_the_whole(made_up):
    found = results(
        made_up, {"full": SLOW, "top-k(5)": FAST, "top-k(9)": [2 * time for time in SLOW[:5]] + [99, 98, 97]}
    )
    judged = judge(faster("top-k(5)", "top-k(9)"), found)
    assert [line.outcome for line in judged.lines] == ["confirmed", "refuted"]
    assert judged.verdict == "refuted"
    assert "1 confirmed" in judged.sentence


def test_the_paper_is_quoted_beside_its_own_panel(made_up):
    """Though another panel has the very same times."""
    times = {(panel, label): values for panel in ("a", "b") for label, values in (("full", SLOW), ("top-k(5)", FAST))}
    found = Results(*made_up(times))
    claims = [Faster(f"C{p}", "faster", against([p], "full", ["top-k(5)"]), paper="holds") for p in ("a", "b")]
    tables = section(found, [claim.judge(found) for claim in claims]).parts
    said = [[cell.text for row in table.rows for cell in row if isinstance(cell, Cell)] for table in tables]
    assert ["Ca: holds" in of for of in said] == [True, False]
    assert ["Cb: holds" in of for of in said] == [False, True]


def test_few_seeds_and_smoke_decide_nothing(made_up):
    assert judge(faster("top-k(5)"), results(made_up, {"full": SLOW[:5], "top-k(5)": FAST[:5]})).verdict == "undecided"
    found = results(made_up, {"full": SLOW, "top-k(5)": FAST}, size="smoke")
    assert judge(faster("top-k(5)"), found).verdict == "undecided"


def test_heavy_censoring_is_said_first(made_up):
    judged = judge(faster("top-k(5)"), results(made_up, {"full": [None] * 4 + SLOW[4:], "top-k(5)": FAST}))
    assert judged.verdict == "confirmed"
    assert "4 of 8 seeds of full" in judged.warnings[0]
    assert judged.lines[0].shown.startswith("at least")


def test_a_diverged_run_counts_as_unconverged(made_up):
    found = results(made_up, {"full": SLOW, "top-k(5)": FAST}, diverged={("top-k(5)", 3)})
    (line,) = judge(faster("top-k(5)"), found).lines
    assert line.comparison.b.censored_count == 1


def test_runs_that_are_not_over_are_missing_not_dropped(made_up):
    found = results(made_up, {"full": SLOW, "top-k(5)": FAST}, missing={("top-k(5)", seed) for seed in range(8)})
    judged = judge(faster("top-k(5)"), found)
    assert judged.lines[0].outcome == "missing"
    assert judged.verdict == "undecided"
    part = results(made_up, {"full": SLOW, "top-k(5)": FAST}, missing={("top-k(5)", 7)})
    assert len(judge(faster("top-k(5)"), part).lines[0].comparison.seeds) == 7


def test_no_consistent_benefit(made_up):
    claim = NoConsistentBenefit("x", "no benefit", against([PANEL, "other"], "full", ["top-k(5)"]))
    times = {(PANEL, "full"): SLOW, (PANEL, "top-k(5)"): FAST, ("other", "full"): SLOW, ("other", "top-k(5)"): FAST}
    assert judge(claim, Results(*made_up(times))).verdict == "refuted"  # faster everywhere: that is a benefit
    slower = {**times, ("other", "full"): FAST, ("other", "top-k(5)"): SLOW}
    assert judge(claim, Results(*made_up(slower))).verdict == "confirmed"
    unclear = {**times, ("other", "top-k(5)"): [40, 12, 60, 14, 9, 70, 10, 52]}
    assert judge(claim, Results(*made_up(unclear))).verdict == "undecided"


def test_one_of_many_patterns_is_easily_consistent(made_up):
    """With six seeds p = 1/32 at best: enough for one pattern, not for the best of two."""
    bs = ["top-k(5)", "top-k(9)"]
    times = {(PANEL, "full"): SLOW[:6], **{(PANEL, b): FAST[:6] for b in bs}}
    found = Results(*made_up(times))
    for names, verdict in ((bs[:1], "refuted"), (bs, "undecided")):
        assert judge(NoConsistentBenefit("x", "no benefit", against([PANEL], "full", names)), found).verdict == verdict


def test_equal_somewhere_by_chance(made_up):
    """Alone its interval is 0.81 to 1.16, inside 0.8 to 1.25; beside another task it is 0.79 to 1.18."""
    near = [34, 62, 56, 57, 42, 86, 55, 50]
    times = {(panel, "full"): SLOW for panel in (PANEL, "other")} | {(PANEL, "top-k(5)"): near}
    claim = NoConsistentBenefit("x", "no benefit", against([PANEL], "full", ["top-k(5)"]))
    assert [line.outcome for line in judge(claim, Results(*made_up(times))).lines] == ["no difference"]
    claim = NoConsistentBenefit("x", "no benefit", against([PANEL, "other"], "full", ["top-k(5)"]))
    assert [line.outcome for line in judge(claim, Results(*made_up(times))).lines] == ["undecided", "missing"]


def test_a_number_that_says_nothing_is_shown_and_not_judged(made_up):
    found = results(made_up, {"full": SLOW})
    low = {seed: -1.0 - 0.01 * seed for seed in range(8)}
    cases = (Case(PANEL, "a", lambda _: low), Case(PANEL, "b", lambda _: low, impossible="it cannot"))
    judged = judge(Below("x", "below", cases, 0.0), found)
    assert [(line.outcome, line.shown[:5]) for line in judged.lines] == [
        ("confirmed", "-1.03"),
        ("impossible", "-1.03"),
    ]
    assert judged.lines[0].note.startswith("p = 0.00781 after Holm")  # over one case
    assert judged.verdict == "confirmed"


def test_as_accurate(made_up):
    claim = AsAccurate("x", "as good", against([PANEL], "full", ["top-k(5)"]))
    times = {"full": FAST, "top-k(5)": FAST}

    def verdict(full, top_k):
        return judge(claim, results(made_up, times, heldout={"full": full, "top-k(5)": top_k})).verdict

    level = [0.97, 0.96, 0.98, 0.97, 0.96, 0.97, 0.98, 0.96]
    assert verdict(level, [x + 0.01 for x in level]) == "confirmed"
    assert verdict(level, [x - 0.01 for x in level]) == "confirmed"  # within the margin
    assert verdict(level, [x - 0.2 for x in level]) == "refuted"
    assert (
        verdict(level, [x + d for x, d in zip(level, (0.02, -0.3, 0.01, -0.2, 0.02, 0.01, -0.4, 0.02), strict=True)])
        == "undecided"
    )


@pytest.mark.parametrize("generalises", [(PANEL,), ()])
def test_learns(made_up, generalises):
    # 96 % of the training examples is not 99 %: no seed fits
    claim = Learns("x", "fits", "full", (PANEL,), generalises)
    judged = judge(claim, results(made_up, {"full": FAST}))
    fits, held_out = judged.lines
    assert fits.outcome == "refuted"
    assert held_out.outcome == ("confirmed" if generalises else "refuted")
    assert judged.verdict == "refuted"


def test_contrasts_are_made_for_every_panel_and_pattern():
    assert against(["p", "q"], "a", ["b", "c"]) == (
        Contrast("p", "a", "b"),
        Contrast("p", "a", "c"),
        Contrast("q", "a", "b"),
        Contrast("q", "a", "c"),
    )


def test_an_impossible_baseline_is_no_slow_one(tmp_path):
    from semfocus import Strided, TopK
    from semfocus.lab.store import Manifest, Question, Store
    from semfocus.lab.study import arm
    from semfocus.training.files import append_lines, write_json

    made = [arm("even_pairs", p, {"train": {"epochs": 20}}) for p in (Strided(5), TopK(5))]
    manifest = Manifest(Question("controls", "small", 8), tuple(made))
    store = Store(tmp_path, "controls")
    for a in made:
        for seed in range(8):
            path = store.run(a.with_seed(seed).hash).path
            right = a.label == "top-k(5)"
            rows = [{"epoch": e, "train_accuracy": 0.99 if right and e > 3 else 0.5} for e in range(21)]
            write_json(path / "summary.json", {"status": "finished", "epochs": 20})
            append_lines(path / "metrics.jsonl", rows)
    claim = Faster("x", "top-k is faster", against(["even_pairs"], "strided(5)", ["top-k(5)"]))
    judged = claim.judge(Results(store, manifest))
    assert judged.lines[0].outcome == "impossible"
    assert judged.verdict == "undecided"


def test_diverged_seeds_are_no_successes(made_up):
    claim = AsAccurate("x", "as good", against([PANEL], "full", ["top-k(5)"]))
    broken = {("top-k(5)", 7)}
    judged = judge(claim, results(made_up, {"full": FAST, "top-k(5)": FAST}, diverged=broken))
    assert judged.verdict == "undecided"
    assert "1 seeds of top-k(5) diverged" in judged.lines[0].note


def test_too_few_seeds_for_so_many_accuracies_are_undecided(made_up):
    level = {"full": [0.97] * 6, "top-k(5)": [0.6, 0.61, 0.6, 0.62, 0.6, 0.61]}
    found = results(made_up, {"full": FAST[:6], "top-k(5)": FAST[:6]}, heldout=level)
    one = AsAccurate("x", "as good", against([PANEL], "full", ["top-k(5)"]))
    assert judge(one, found).verdict == "refuted"
    many = AsAccurate("x", "as good", against([PANEL], "full", ["top-k(5)"] * 5))
    assert judge(many, found).verdict == "undecided"  # no interval at a fifth of the level


def test_what_has_not_run_yet_is_corrected_for(made_up):
    """Or a verdict could fall because the study goes on."""
    close = [30, 35, 40, 45, 30, 45, 40, 35]  # faster in seven of eight seeds
    found = results(made_up, {"full": SLOW, "top-k(5)": close})
    alone = judge(faster("top-k(5)"), found)
    assert alone.verdict == "confirmed"
    claim = Faster("x", "b is faster", against([PANEL, "not", "yet", "run"], "full", ["top-k(5)"]))
    (line, *rest) = judge(claim, found).lines
    assert {other.outcome for other in rest} == {"missing"}
    assert line.outcome == "undecided"
    assert line.adjusted_p == pytest.approx(4 * alone.lines[0].adjusted_p)
    assert line.together == 4
    cases = tuple(
        Case(panel, "x", lambda _, n=n: dict(enumerate(n))) for panel, n in ((PANEL, [-1.0] * 6), ("new", []))
    )
    lines = judge(Below("y", "below 0", cases, 0.0), found).lines
    assert [one.outcome for one in lines] == ["undecided", "missing"]  # 2 / 2^6, twice


def test_a_verdict_rests_on_what_censoring_leaves(made_up):
    """Both sides censored: whatever p says, nobody knows by how much either was late."""
    both = results(made_up, {"full": [80, 81, 82, 83, 84, 85, 86, 87, 88, None], "top-k(5)": [None] + [5] * 9})
    judged = judge(faster("top-k(5)"), both)
    assert judged.lines[0].shown == "not interpretable (never there: 1 and 1 of 10 seeds)"
    assert judged.lines[0].adjusted_p <= 0.05
    assert judged.verdict == "undecided"
    late = results(made_up, {"full": [80, 81, 82, 83, 84, 85, 86, 87, 88, 60], "top-k(5)": [5] * 9 + [None]})
    judged = judge(faster("top-k(5)"), late)
    assert judged.lines[0].shown.startswith("at most")
    assert judged.verdict == "undecided"


def test_accuracies_are_shown_with_the_interval_of_one_and_judged_by_that_of_all(made_up):
    heldout = {"full": [0.9] * 10, "top-k(5)": [0.9 + 0.002 * i for i in range(-5, 5)], "top-k(9)": [0.9] * 10}
    times = {label: [10] * 10 for label in heldout}
    found = results(made_up, times, heldout=heldout)
    one, two = (
        AsAccurate("x", "as good", against([PANEL], "full", bs)) for bs in (["top-k(5)"], ["top-k(5)", "top-k(9)"])
    )
    alone, together = (judge(claim, found).lines[0] for claim in (one, two))
    assert alone.shown == together.shown
    assert "judged by" not in alone.note
    assert "holds in all 2 comparisons together" in together.note
