"""The page above all pages: what it says is theirs, and nothing in it is run."""

import html
import json
import re
from dataclasses import replace
from urllib.parse import unquote

import pytest
from test_page import FORMULA, QUOTES, SCRIPT, Tags

from semfocus import studies
from semfocus.cli import main
from semfocus.lab.results import Results
from semfocus.lab.store import Store
from semfocus.report import index
from semfocus.report.page import build, judged_claims

STUDY = studies.get("convergence")


def indexed(results: Results) -> str:
    build(STUDY, results)
    return index.build(results.store.path.parent).read_text(encoding="utf-8")


def entry_of(results: Results):
    return results.store.page_path(results.question.name).with_suffix("") / index.CLAIMS


def links(text: str) -> list[str]:
    return [str(attributes["href"]) for tag, attributes in Tags(text).found if tag == "a"]


def test_every_claim_links_to_where_it_is_explained(results: Results) -> None:
    text = html.unescape(indexed(results))
    judged = judged_claims(STUDY, results)
    assert [one.claim.statement in text and one.verdict in text for one in judged] == [True] * len(judged)
    assert "10 of 10 runs are over" in text
    assert "preliminary" not in text
    assert "not the paper's size" in text
    page = results.store.page_path("smoke")
    ids = {f"#{found}" for found in re.findall(r'\bid="([^"]*)"', page.read_text(encoding="utf-8"))}
    assert len(links(text)) == 1 + len(judged)
    for link in links(text):
        path, mark, anchor = unquote(link).partition("#")
        assert results.store.path.parent / path == page
        assert mark + anchor in ids | {""}


def test_runs_that_are_missing_make_it_preliminary(results: Results) -> None:
    run = next(run for _, run in results.every_run())
    (run.directory.path / "summary.json").unlink()
    text = indexed(Results(results.store, results.manifest))
    assert "9 of 10 runs are over" in text
    assert "preliminary" in text


def test_what_a_study_says_is_text_and_nothing_else(results: Results) -> None:
    build(STUDY, results)
    path = entry_of(results)
    entry = json.loads(path.read_text())
    hostile = {"id": SCRIPT, "statement": QUOTES, "verdict": FORMULA, "found": [[SCRIPT, QUOTES]]}
    path.write_text(json.dumps({**entry, "title": SCRIPT, "study": QUOTES, "name": SCRIPT, "claims": [hostile]}))
    text = index.build(results.store.path.parent).read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert not {"script", "img"} & {tag for tag, _ in Tags(text).found}
    assert all(not name.startswith("on") for _, attributes in Tags(text).found for name in attributes)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", b"\xff", '{"claims": 1}', {"claims": [{}]}, {"claims": 1}, {"over": "1"}],
)
def test_what_is_damaged_is_left_out(results: Results, text: object) -> None:
    """The index is no reason for a page not to be written."""
    build(STUDY, results)
    whole, damaged = entry_of(results), results.store.path / "pages" / "older" / index.CLAIMS
    damaged.parent.mkdir()
    damaged.parent.with_name("older.html").write_text("a page")
    if isinstance(text, dict):
        text = json.dumps({**json.loads(whole.read_text()), **text})
    damaged.write_bytes(text if isinstance(text, bytes) else str(text).encode())
    assert set(links(indexed(results))) == {link for link in links(indexed(results)) if "smoke.html" in link}


def test_a_page_that_is_gone_is_left_out(results: Results) -> None:
    build(STUDY, results)
    results.store.page_path("smoke").unlink()
    assert links(index.build(results.store.path.parent).read_text(encoding="utf-8")) == []


def test_names_with_dots_and_several_questions(results: Results) -> None:
    question = replace(
        results.question, overrides=("train.lr=0.5", "model.width=32"), changed=True, given_name="quick.2"
    )
    store = Store(results.store.path.parent, "convergence")
    other = Results(store, replace(results.manifest, question=question))
    build(STUDY, other)
    text = indexed(results)
    found = {unquote(link).partition("#")[0] for link in links(text)}
    assert found == {f"convergence/pages/{name}.html" for name in ("quick.2", "smoke")}
    assert all((results.store.path.parent / path).is_file() for path in found)
    assert "semfocus run convergence --size smoke --seeds 2 train.lr=0.5 model.width=32</code>" in text


def test_the_command_writes_it(results: Results) -> None:
    lab = results.store.path.parent
    assert main(["report", str(lab)]) == 0
    assert len(links((lab / index.NAME).read_text(encoding="utf-8"))) > 1


def test_anothers_file_stays_and_is_no_reason_to_fail(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    lab = results.store.path.parent
    path = lab / index.NAME
    path.write_text("<h1>my site</h1>")
    assert main(["report", str(lab)]) == 0
    found = capsys.readouterr()
    assert found.out.split() == [str(results.store.page_path("smoke"))]
    assert "index.html is another's file and stays" in found.err
    assert path.read_text() == "<h1>my site</h1>"
    path.unlink()
    path.mkdir()
    assert main(["report", str(lab)]) == 0
    assert "no index of all pages: cannot write" in capsys.readouterr().err
