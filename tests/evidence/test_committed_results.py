"""What is committed under results/ is what its data give: tables, the README's claims and docs/reproduction.md."""

from pathlib import Path

from semfocus import studies
from semfocus.evidence.build import INDEX, MOST, README, REPRODUCTION, evidence_of_all, folders, judge, tables
from semfocus.evidence.markdown import filled, marks
from semfocus.evidence.overview import NAME as OVERVIEW
from semfocus.evidence.overview import overview
from semfocus.evidence.reproduction import documents
from semfocus.evidence.summary import BY_CLAIM, BY_STUDY, FAILS, Summary

ROOT = Path(__file__).parents[2]


def test_the_committed_tables_are_what_the_committed_data_give(tmp_path):
    """Text for text. Pages and figures are left out: they depend on the version of matplotlib."""
    found = folders(ROOT / "results")
    if not found:
        print("there are no committed results yet: nothing to compare")
        assert "\nNot run yet: " in (ROOT / README).read_text()
        return
    built = []
    for evidence in evidence_of_all(ROOT / "results"):
        path = evidence.path
        assert (path / "index.html").is_file()
        one = judge(evidence, tmp_path / path.name, studies.get)
        built.append(one)
        for name, text in tables(one, evidence, f"results/{path.name}").items():
            assert (path / name).read_text() == text, f"{path / name} is stale; run `make results`"
    summary = Summary(built)
    assert (ROOT / "results" / INDEX).read_text() == summary.index(), "results/README.md is stale; run `make results`"
    assert (overview(summary) is not None) == (ROOT / "results" / OVERVIEW).is_file()
    for name, bodies in ((README, {"": summary.readme()}), (REPRODUCTION, documents(summary))):
        text = (ROOT / name).read_text()
        for place, body in bodies.items():
            assert filled(text, place, body, name) == text, f"{name} is stale; run `make results`"


def test_committed_results_stay_small():
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST


def test_the_documents_have_their_places():
    for name, places in ((README, [""]), (REPRODUCTION, list(documents(Summary())))):
        text = (ROOT / name).read_text()
        for place in places:
            assert all(text.count(mark) == 1 for mark in marks(place)), (name, place)


def test_the_groups_name_studies_and_claims_that_exist():
    assert set(BY_STUDY) <= set(studies.registry.own_names())
    from semfocus.lab.execute import ask, plan
    from semfocus.lab.results import Results
    from semfocus.lab.store import Store

    for study, claim in {*BY_CLAIM, *FAILS}:
        asked = studies.get(study)
        manifest = plan(asked, ask(asked, "smoke", None, ()))
        known = {c.id for c in asked.claims(Results(Store(Path(), study), manifest))}
        assert claim in known
