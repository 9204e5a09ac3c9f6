from __future__ import annotations

import csv
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from semfocus import studies
from semfocus.cli import main
from semfocus.lab.results import Results, Run
from semfocus.lab.store import Store
from semfocus.lab.study import Arm
from semfocus.report.page import Cell, Figure, Section, Table, build
from semfocus.studies.convergence import Convergence
from semfocus.training.files import StorageError

SCRIPT, FORMULA, QUOTES = "<script>alert(1)</script>", "$x^2$ & $\\frac$", "\"'><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Every tag with its attributes, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def built(results: Results) -> str:
    """The page of what lies on disk now."""
    fresh = Results(results.store, results.manifest)
    return build(studies.get("convergence"), fresh).read_text(encoding="utf-8")


def folder_of(results: Results) -> Path:
    return results.store.page_path(results.question.name).with_suffix("")


def numbers(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_finished_study_has_every_section(results: Results) -> None:
    page = built(results)
    for title in ("Verdicts", "The question", "Epochs to 95 %", "Learning curves", "Not yet converged", "Speed-ups"):
        assert f"<h2>{title}" in page
    for title in (
        "Held-out accuracy",
        "Reach",
        "Every run",
        "Configuration",
        "Environment",
        "How the numbers are judged",
    ):
        assert f"<h2>{title}</h2>" in page
    assert "preliminary" not in page
    assert "diverged.</b>" not in page
    assert "10 of 10 over" in page
    assert "Not the paper's size." in page
    assert "semfocus run convergence --size smoke" in page
    for claim in studies.get("convergence").claims(results):
        assert claim.id in page
    assert page.count('<article class="card undecided"') == len(studies.get("convergence").claims(results))


def test_a_page_needs_nothing_else(results: Results) -> None:
    page = built(results)
    assert page.startswith("<!doctype html>")
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    for tag, attributes in Tags(page).found:
        assert tag not in ("script", "link", "iframe", "img", "object", "embed")
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    assert len(page) < 3_000_000


def test_ids_are_unique(results: Results) -> None:
    page = built(results)
    ids = [attributes["id"] for _, attributes in Tags(page).found if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)]*)\)", page)) | set(re.findall(r'href="#([^"]*)"', page))
    assert used <= set(ids)


def test_building_again_changes_nothing(results: Results) -> None:
    first = built(results)
    files = {path.name: path.read_bytes() for path in folder_of(results).iterdir()}
    assert built(results) == first
    assert {path.name: path.read_bytes() for path in folder_of(results).iterdir()} == files


def test_labels_are_text_and_nothing_else(results: Results) -> None:
    labels = [SCRIPT, FORMULA, QUOTES, "a\x00b", "../../etc/passwd"]
    hostile = [
        replace(arm, label=label, panel=SCRIPT) for arm, label in zip(results.manifest.arms, labels, strict=True)
    ]
    results.manifest = replace(results.manifest, arms=tuple(hostile))
    page = built(results)
    assert "<script" not in page
    assert "<img" not in page
    assert all(not name.startswith("on") for _, attributes in Tags(page).found for name in attributes)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "$x^2$ &amp; $\\frac$</text>" in page  # in a figure, as typed
    for path in folder_of(results).iterdir():
        assert re.fullmatch(r"[A-Za-z0-9_-]+\.(svg|csv|json)", path.name)
        if path.suffix == ".svg":
            assert not ElementTree.parse(path).findall(".//{http://www.w3.org/2000/svg}script")
    assert {row["arm"] for row in numbers(folder_of(results) / "runs.csv")} == set(labels)


def test_runs_that_are_missing_make_it_preliminary(results: Results) -> None:
    first, second, *_ = (run for _, run in results.every_run())
    shutil.rmtree(first.directory.path)
    (second.directory.path / "summary.json").unlink()
    page = built(results)
    assert "This page is preliminary." in page
    assert "8 of 10 runs are over, 1 have begun, 1 are waiting" in page
    assert "begun, at epoch 2" in page
    status = {row["run"]: row["status"] for row in numbers(folder_of(results) / "runs.csv")}
    assert len(status) == 9
    assert first.directory.run not in status
    assert "9 runs; 1 have not begun" in page


def test_a_study_that_has_not_begun_has_a_page(results: Results) -> None:
    shutil.rmtree(results.store.path / "runs")
    page = built(results)
    assert "0 of 10 runs are over" in page
    assert "No run has begun." in page


def test_runs_that_diverged_are_shown(results: Results) -> None:
    run = results.arms[-1].runs[0]
    diverge(run, epoch=1)
    page = built(results)
    assert "1 of 10 runs diverged." in page
    assert "diverged at epoch 1" in page
    assert f"Diverged (marked with a cross): {results.arms[-1].label}, seed 0." in page
    dots = numbers(folder_of(results) / "epochs-1-even_pairs.csv")
    assert [row["outcome"] for row in dots if row["arm"] == results.arms[-1].label] == ["diverged", "beyond"]


def diverge(run: Run, epoch: int) -> None:
    path = run.directory.path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[epoch:]:
        row |= {name: None for name in row if name.endswith(("loss", "accuracy"))}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = json.loads((run.directory.path / "summary.json").read_text())
    changes = {"status": "diverged", "diverged_epoch": epoch}
    (run.directory.path / "summary.json").write_text(json.dumps(summary | changes))


@pytest.mark.parametrize("column", ["train_accuracy", "heldout_accuracy", "train_loss"])
def test_the_numbers_beside_a_figure_are_those_of_the_runs(results: Results, column: str) -> None:
    built(results)
    rows = numbers(folder_of(results) / f"curves-1-{column}-even_pairs.csv")
    for arm in results.arms:
        mine = [row for row in rows if row["arm"] == arm.label]
        epochs, curves = arm.curves(column)
        assert [int(row["epoch"]) for row in mine] == epochs
        for seed, values in curves.items():
            assert [float(row[f"seed {seed}"]) for row in mine] == values
        assert [float(row["median"]) for row in mine] == np.median(list(curves.values()), axis=0).tolist()


def test_tables_lie_beside_the_page_too(results: Results) -> None:
    built(results)
    speed = numbers(folder_of(results) / "speed-1-even_pairs.csv")
    assert [row["arm"] for row in speed] == results.labels("even_pairs")
    assert speed[0]["speed-up in epochs"] == "compared with"
    reach = numbers(folder_of(results) / "reach.csv")
    assert next(row["even_pairs"] for row in reach if row["arm"] == "full") == "8 of 8"


class WithSections(Convergence):
    """Own parts."""

    parts: tuple[Figure | Table, ...] = ()

    def sections(self, results: Results) -> list[Section]:
        return [Section("Of its own", "Some words.", self.parts)]


def test_a_study_brings_its_own_sections(results: Results) -> None:
    study = WithSections()
    study.parts = (
        Table("mine", "A table", ("a", "b"), [[1, Cell(SCRIPT, "bad")]]),
        Figure("drawn", "A figure", '<svg width="9pt" height="9pt" viewBox="0 0 9 9"></svg>', ("x",), [[1.5]]),
    )
    page = build(study, results).read_text(encoding="utf-8")
    assert page.index("Of its own") < page.index("Learning curves")
    assert '<td class="bad">&lt;script&gt;' in page
    assert (folder_of(results) / "mine.csv").read_text() == f"a,b\n1,{SCRIPT}\n"
    assert (folder_of(results) / "drawn.csv").read_text() == "x\n1.5\n"
    study.parts = (Table("../mine", "A table", ("a",), []),)
    with pytest.raises(StorageError, match="file name"):
        build(study, results)


def test_all_pages_of_a_folder(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    """A question that cannot be read is named, and the others are treated."""
    lab, page = results.store.path.parent, results.store.page_path("smoke")
    assert main(["report", str(lab)]) == 0
    assert capsys.readouterr().out.split() == [str(page)]
    (results.store.path / "manifests" / "another.json").write_text("{")
    for command, shown in (("report", str(page)), ("status", "convergence, smoke: "), ("resume", "")):
        assert main([command, str(lab)]) == 2
        found = capsys.readouterr()
        assert shown in found.out
        assert "another.json is damaged" in found.err
    assert main(["report", str(lab / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_many_panels_and_a_third_split(results: Results) -> None:
    """Panels share arms by their label; accuracies on test examples appear where runs have them, and not all may."""
    arms: list[Arm] = []
    for panel in ("one", "two, with more words"):
        arms += [replace(arm, panel=panel) for arm in results.manifest.arms]
    for number, (_, run) in enumerate(results.every_run()):
        path = run.directory.path / "summary.json"
        test = {"test_accuracy": 0.625 if number else None}
        path.write_text(json.dumps(json.loads(path.read_text()) | test))
    store = Store(results.store.path.parent, "convergence")
    page = built(Results(store, replace(results.manifest, arms=tuple(arms))))
    assert "test examples" in page
    assert "62.5 %" in page
    assert page.count('<label data-arm="') == 2 * len(results.arms)  # a legend for each of two sections, not per panel
    assert (folder_of(results) / "curves-2-train_loss-two-with-more-words.svg").exists()
