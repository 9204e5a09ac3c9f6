"""What README and docs/reproduction.md say, and in which order."""

import dataclasses
import json

import pytest
from made_up import trained
from two_tasks import find

from semfocus import Full, TopK
from semfocus.evidence.build import build_all, evidence_of_all
from semfocus.evidence.claims import ClaimRow, Place
from semfocus.evidence.cost import Cost, cost_of
from semfocus.evidence.folder import add, load
from semfocus.evidence.markdown import fill_file, table
from semfocus.evidence.reproduction import agreement
from semfocus.evidence.speed import races
from semfocus.evidence.summary import Built, Summary, _clock_verdict
from semfocus.lab.claims import Faster, Judged, Line
from semfocus.lab.cost import clock_key
from semfocus.lab.results import Results
from semfocus.lab.stats import ConvergenceTimes, compare
from semfocus.lab.store import Manifest, Question, Store
from semfocus.report.speed import scaled
from semfocus.training.files import StorageError, write_json


def row(study, claim, verdict, paper="holds"):
    line = Line("even_pairs", "top-k(5) against full", "2.00 (1.50 to 3.00)", "confirmed", seeds=10)
    judged = Judged(
        Faster(claim, f"statement of {claim}", (), paper=paper), verdict, "One comparison: confirmed.", (line,)
    )
    return ClaimRow(study, "paper", judged)


def built(tmp_path, study, *rows, size="paper", over=4):
    results = Results(Store(tmp_path, study), Manifest(Question(study, size, 2), ()))
    cost = Cost(4, over, 60.0, ("GPU",), 0.0, 0, 0, None)
    return Built(f"{study}-{size}", results, rows, (), cost, Place(("abc",), ("GPU",), ("2",), ("tf32",)), ())


def order(text, *words):
    places = [text.index(word) for word in words]
    return places == sorted(places)


def test_the_paper_first_then_best_against_best_then_the_explanation(tmp_path):
    rows = [
        built(tmp_path, "mechanism", row("mechanism", "lowering helps", "undecided")),
        built(tmp_path, "fair", row("fair", "C1, tuned", "no difference", "not asked")),
        built(
            tmp_path, "convergence", row("convergence", "C1", "confirmed"), row("convergence", "C1, rival", "refuted")
        ),
        built(tmp_path, "language_model", row("language_model", "less time", "refuted"), size="small"),
    ]
    text = Summary(rows).readme()
    assert order(
        text, "Each claim as the paper judges it", "statement of C1 ", "Best scale and learning", "of C1, rival ",
        "of C1, tuned ", "On the clock", "of less time ", "The paper's explanation", "Not run yet: activations",
    )  # fmt: skip
    assert "fails" not in text
    assert "2.00 (1.50 to 3.00)" in text
    assert "commit abc on GPU" in text


@pytest.mark.parametrize(
    ("study", "claim", "verdict", "fails"),
    [
        ("mechanism", "lowering helps", "refuted", True),
        ("mechanism", "lowering helps", "confirmed", False),
        ("mechanism", "raising helps", "confirmed", True),
        ("mechanism", "raising helps", "refuted", False),
        ("dispersion", "C5, dispersion", "refuted", True),
        ("dispersion", "C5, W", "refuted", False),  # the paper says so itself of one task
        ("loss_surface", "C5, steepness", "refuted", True),
        ("convergence", "C1", "refuted", False),
    ],
)
def test_where_the_explanation_fails_it_stands_first(tmp_path, study, claim, verdict, fails):
    other = built(tmp_path, "activations", row("activations", "C4, faster", "confirmed"))
    text = Summary([other, built(tmp_path, study, row(study, claim, verdict))]).readme()
    assert text.startswith("**The paper's explanation fails here:**") == fails
    if fails:
        assert f"is {verdict} ({study}, paper)." in text
        assert order(text, f"statement of {claim}", "**The paper's explanation**", "Each claim as the paper judges it")


@pytest.mark.parametrize(("verdict", "beaten"), [("refuted", True), ("confirmed", False), ("undecided", False)])
def test_a_rival_that_wins_stands_before_the_claims(tmp_path, verdict, beaten):
    rows = [row("convergence", "C1", "confirmed"), row("convergence", "C1, rival", verdict)]
    text = Summary([built(tmp_path, "convergence", *rows)]).readme()
    assert text.startswith("**A cheaper rival is as fast or faster:**") == beaten
    if beaten:
        assert order(text, "statement of C1, rival", "Each claim as the paper judges it")


def test_agreement(tmp_path):
    rows = [
        row("mechanism", "raising helps", "confirmed"),
        row("convergence", "C1", "confirmed"),
        row("convergence", "C2", "refuted"),
        row("convergence", "C3", "undecided"),
        row("convergence", "C1, rival", "confirmed", "not asked"),
        row("dispersion", "C5, W", "refuted"),
    ]
    text = agreement(Summary([built(tmp_path, "convergence", *rows)]))
    assert order(
        text, "Does not agree", "raising helps", "C2", "Agrees", "C1", "Differs from", "C5, W", "Not decided", "C3"
    )
    assert "rival" not in text
    assert "smaller size" not in text
    assert agreement(Summary([])) == "not run yet"


def test_smaller_sizes_are_neither_agreement_nor_the_paper_s(tmp_path):
    quick = built(tmp_path, "ablations", row("ablations", "C4, depth", "confirmed"), size="quick")
    text = agreement(Summary([quick]))
    assert order(text, "Agrees:\n\n- nothing", "At a smaller size than the paper's", "C4, depth")
    readme, index = Summary([quick]).readme(), Summary([quick]).index()
    assert "Not at the paper's size yet: ablations, quick." in readme
    assert ("statement of C4, depth" in readme, "statement of C4, depth" in index) == (False, True)
    whole = built(tmp_path, "ablations", row("ablations", "C4, depth", "confirmed"))
    assert "Not at the paper's size" not in Summary([quick, whole]).readme()


def test_places_are_filled_and_the_rest_stays(lab, tmp_path):
    text = "# Title\n\n<!-- results:begin -->\nbefore it\n<!-- results:end -->\nafter\n"
    (tmp_path / "README.md").write_text(text)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "reproduction.md").write_text("a\n<!-- results:cost:begin -->\n<!-- results:cost:end -->\nb\n")
    add(Store(lab, "two_tasks"), "quick", tmp_path / "results")
    build_all(tmp_path / "results", find, lambda sentence: None, tmp_path)
    readme, docs = (tmp_path / "README.md").read_text(), (tmp_path / "docs" / "reproduction.md").read_text()
    assert readme.startswith("# Title\n\n<!-- results:begin -->\n")
    assert readme.endswith("<!-- results:end -->\nafter\n")
    assert "before it" not in readme
    assert "C1: Top-k is faster" in readme  # a study that is not ours, whatever its size
    index = (tmp_path / "results" / "README.md").read_text()
    assert "[claims](two_tasks-quick/claims.md)" in index
    assert "C1: Top-k is faster" in index
    assert "| two_tasks | quick | 10 of 10 |" in docs
    build_all(tmp_path / "results", find, lambda sentence: None, tmp_path)
    assert ((tmp_path / "README.md").read_text(), (tmp_path / "docs" / "reproduction.md").read_text()) == (readme, docs)


def test_a_document_with_half_a_place(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("<!-- results:begin -->\n")
    with pytest.raises(StorageError, match="each once"):
        fill_file(path, {"": "body"})
    path.write_text("nothing here\n")
    assert not fill_file(path, {"": "body"})


def test_cells_end_no_row_and_begin_no_tag():
    made = table(("a",), [("x | y\nz <script> 1<br>2",)])
    assert made.splitlines()[2] == "| x \\| y z &lt;script> 1<br>2 |"


@pytest.fixture
def scales(tmp_path):
    """Full attention at two scales and top-k(5), six seeds."""
    return trained(tmp_path, (Full(), 1.0), (Full(), 4.0), (TopK(5), 1.0))


def test_races_as_trained_and_best_against_best(tmp_path):
    made = trained(tmp_path, (Full(), 1.0), (Full(), 4.0), (TopK(5), 1.0), (TopK(5), 4.0))
    plain, best = races(Results(*made))
    assert (plain.kind, plain.a.label, plain.b.label) == ("as trained here", "full", "top-k(5)")
    assert plain.median.low == pytest.approx((42 / 12 + 43 / 13) / 2)
    assert plain.median.interval == (45 / 15, 40 / 10)
    assert plain.clock.ratio == pytest.approx(plain.mean.ratio / 2)
    assert (best.kind, best.a.label, best.b.label) == ("best scale", "full x 4", "top-k(5)")
    assert best.median.low < 1 < plain.median.low


def test_no_best_scale_unless_both_had_a_choice(scales):
    assert [race.kind for race in races(Results(*scales))] == ["as trained here"]


def test_as_the_paper_trains_is_its_size_and_its_settings(scales):
    store, manifest = scales
    question = Question("controls", "paper", 6)

    def kinds(panel):
        arms = tuple(dataclasses.replace(one, panel=panel) for one in manifest.arms)
        return [race.kind for race in races(Results(store, Manifest(question, arms)))]

    assert kinds("even_pairs") == ["as the paper trains"]
    assert kinds("even_pairs, random labels") == ["as trained here"]


def test_a_claim_names_the_seeds_it_rests_on():
    lines = [Line("a", "b", "-", "undecided", seeds=n) for n in (6, 0, 10)]

    def seeds(*some):
        judged = dataclasses.replace(row("fair", "C1", "undecided").judged, lines=some)
        return ClaimRow("fair", "paper", judged).seeds

    assert (seeds(*lines), seeds(lines[0]), seeds(lines[1]), seeds()) == ("6 to 10", "6", "0", "0")


def test_a_claim_says_where_its_verdict_comes_from():
    def line(panel, arm, outcome):
        return Line(panel, f"{arm} against full", "-", outcome, seeds=6)

    lines = [
        line("a", "top-k(5)", "refuted"), line("a", "top-k(9)", "refuted"), line("b", "top-k(5)", "undecided"),
        line("b", "top-k(9)", "refuted"), line("c", "top-k(5)", "refuted"), line("c", "top-k(9)", "missing"),
        line("d", "top-k(5)", "confirmed"),
    ]  # fmt: skip
    judged = dataclasses.replace(row("mechanism", "lowering helps", "refuted").judged, lines=tuple(lines))
    found = ClaimRow("mechanism", "paper", judged)
    assert (found.scope, found.missing, found.planned) == ("paper; a, b (top-k(9) alone), c", 1, 7)
    assert ClaimRow("mechanism", "paper", dataclasses.replace(judged, lines=tuple(lines[:2]))).scope == "paper"


def test_a_run_of_two_arms_counts_once(scales):
    store, manifest = scales
    twice = dataclasses.replace(manifest.arms[0], label="full, tuned")
    results = Results(store, dataclasses.replace(manifest, arms=(*manifest.arms, twice)))
    assert len(list(results.every_run())) == 24
    assert results.statuses() == {"finished": 18}


def test_what_it_cost(scales, tmp_path):
    store, manifest = scales
    records = load(add(store, "quick", tmp_path / "results").path).records
    whole = cost_of(Results(store, manifest), records.values())
    assert whole.measured == 18 * 51 * 2.0 / 2
    assert whole.extrapolated == whole.measured
    assert whole.alone == pytest.approx((12 * 1.0 + 6 * 2.0) / 1000 * 50 * 2)  # 2 steps an epoch
    assert whole.one_at_a_time == "0.0 min"
    write_json(store.path / "clock.json", {"GPU": {clock_key(manifest.arms[0].config): {"milliseconds": 1.0}}})
    fewer = cost_of(Results(store, manifest), records.values())
    assert fewer.alone == pytest.approx(12 * 1.0 / 1000 * 50 * 2)
    assert fewer.one_at_a_time == "0.0 min (without 6 runs, not timed)"
    half = {run: record for i, (run, record) in enumerate(sorted(records.items())) if i % 2}
    gone = [run for run in records if run not in half]
    for run in gone:
        (store.run(run).path / "summary.json").unlink()
    partly = cost_of(Results(store, manifest), half.values())
    assert (partly.over, partly.planned, partly.unknown) == (9, 18, 0)
    assert partly.extrapolated == pytest.approx(whole.measured)
    begun = {**half, gone[0]: dataclasses.replace(records[gone[0]], summary=None, seconds=40.0)}
    assert cost_of(Results(store, manifest), begun.values()).extrapolated == pytest.approx(whole.measured)
    none = cost_of(Results(store, manifest), ())
    assert (none.over, none.extrapolated, none.unknown) == (0, None, 18)


def test_times_of_steps_serve_all_studies_of_a_device(scales, lab, tmp_path):
    """One ran on a "GPU", one on this machine; the other's clock has times of both."""
    store, _ = scales
    (store.path / "clock.json").unlink()
    add(store, "quick", tmp_path / "results")
    other = Store(lab, "two_tasks")
    here, own = next(iter(json.loads((other.path / "clock.json").read_text()).items()))
    write_json(other.path / "clock.json", {here: own, "GPU": {"a shape": {"milliseconds": 1.0}}})
    add(other, "quick", tmp_path / "results")
    controls, two_tasks = evidence_of_all(tmp_path / "results")
    assert controls.clock == {"GPU": {"a shape": {"milliseconds": 1.0}}}
    assert two_tasks.clock[here] == own
    assert not (tmp_path / "results" / "controls-quick" / "clock.json").exists()


def test_a_shape_that_has_not_run_is_guessed_by_its_slowest_kin(scales, tmp_path):
    store, manifest = scales
    records = load(add(store, "quick", tmp_path / "results").path).records
    top = {run.directory.run for arm, run in Results(store, manifest).every_run() if arm.label.startswith("top-k")}
    assert 0 < len(top) < 18
    for run in top:
        (store.run(run).path / "summary.json").unlink()
    rest = {run: record for run, record in records.items() if run not in top}
    slow = next(iter(rest))
    rest[slow] = dataclasses.replace(rest[slow], seconds=3 * rest[slow].seconds)
    found = cost_of(Results(store, manifest), rest.values())
    assert (found.over, found.guessed, found.unknown) == (18 - len(top), len(top), 0)
    assert found.remaining is not None
    assert found.remaining > len(top) * 51 * 2.0 / 2  # each at the pace of the slow one's shape
    assert found.reservations == f" ({len(top)} runs of other shapes at the pace of the slowest as long)"
    assert dataclasses.replace(found, guessed=0, unknown=2).reservations == (
        " (without 2 runs of lengths or models that have not run)"
    )


def test_the_clock_is_judged_by_limits_that_censoring_leaves_valid():
    def clock(a, b, cost_a=1.0, cost_b=1.0):
        full, top = (ConvergenceTimes(name, dict(enumerate(x)), 100) for name, x in (("full", a), ("top-k(5)", b)))
        return scaled(compare(full, top), cost_a, cost_b)

    def judged(found, planned=None):
        return _clock_verdict(found, planned or len(found))

    slow, fast = [60.0, 62, 64, 66, 68, 70, 72], [20.0, 21, 22, 23, 24, 25, 26]
    assert judged([clock(slow, fast)]) == "confirmed"
    assert judged([clock(slow, fast, 1.0, 9.0)]) == "refuted"
    assert judged([clock(slow, fast), clock(fast, slow)]) == "refuted"
    six = clock(fast[:6], slow[:6])
    assert judged([six]) == "refuted"
    assert judged([six, clock(slow, fast)]) == "undecided"  # six seeds cannot tell one of two
    late = [*slow[:-2], None, None]
    assert judged([clock(late, fast)]) == "confirmed"  # at least so much
    assert judged([clock(late, fast, 1.0, 9.0)]) == "undecided"  # nobody knows how much more
    assert judged([clock(slow, [*fast[:-1], None], 9.0, 1.0)]) == "undecided"

    assert judged([clock(slow, slow, 1.06)]) == "confirmed"
    assert judged([clock(slow, slow, 1.04)]) == "undecided"  # a step is not timed to a few percent
    assert judged([clock(slow, slow, 1.0, 1.06)]) == "refuted"
    assert judged([clock(slow, slow, 1.0, 1.04)]) == "undecided"
    assert judged([clock(slow, fast)], planned=2) == "undecided"  # the other has not run
    assert judged([six], planned=2) == "undecided"
