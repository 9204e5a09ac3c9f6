"""Evidence from a finished study: a real one of the smallest size, and a synthetic one of the paper's."""

import json
import shutil

import numpy as np
import pytest
from rich.console import Console

import semfocus
from semfocus import studies
from semfocus.diagnosis import Evidence, evidence_from
from semfocus.lab import execute
from semfocus.lab.predict import Cell, held_out_errors, score
from semfocus.report.page import build
from semfocus.report.parts import Figure
from semfocus.training.files import write_atomic, write_json
from semfocus.training.progress import Progress

TASKS = [f"task{i}" for i in range(7)]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The study itself, at its smallest."""
    root, study = tmp_path_factory.mktemp("mechanism"), studies.get("mechanism")
    with Progress(Console(quiet=True)) as progress:
        train = execute.on_this_machine("cpu", 1, progress)
        results = execute.execute(study, execute.ask(study, "smoke", None, []), root, train, lambda text: None)
        study.measure(results, "cpu", lambda text: None)
    execute.complete(results)
    build(study, results)
    return root


def synthetic(smoke, tmp_path, points):
    """The smoke study's folder as if it had been run at the paper's size and found these points."""
    shutil.copytree(smoke, tmp_path / "lab")
    folder = tmp_path / "lab" / "mechanism"
    manifest = json.loads((folder / "manifests" / "smoke.json").read_text())
    write_json(folder / "manifests" / "paper.json", manifest | {"name": "paper", "size": "paper", "seeds": 10})
    for number, (name, cells) in enumerate(points.items(), 1):
        rows = [(cell.task, cell.label, cell.x, cell.y) for cell in cells]
        figure = Figure("", "", "", ("task", "arm", name, "log speed-up of top-k"), rows)
        write_atomic(folder / "pages" / "paper" / f"candidate-{number}.csv", figure.csv().encode())
    return tmp_path / "lab"


def cells(noise, slope=2.0, tasks=TASKS):
    rng = np.random.default_rng(0)
    places = [(task, k, rng.uniform(0.1, 0.9)) for task in tasks for k in (1, 5, 9)]
    return [Cell(task, f"top-k({k})", x, 0.5 + slope * x + noise * rng.normal()) for task, k, x in places]


def test_the_smoke_study_has_nothing_to_score(smoke):
    found = evidence_from(smoke, "smoke")
    assert found == evidence_from(smoke / "mechanism", "smoke")
    assert (found.study, found.size, found.seeds, found.candidates) == ("mechanism", "smoke", 2, ())
    (run, *_) = (smoke / "mechanism" / "runs").glob("*/environment.json")
    assert found.commits == (json.loads(run.read_text())["commit"] or "unknown",)
    assert not found.counts


def test_scores_of_held_out_tasks(smoke, tmp_path):
    points = {"kept mass": cells(noise=0.1), "entropy lost": cells(noise=1.0, slope=0.0)}
    found = evidence_from(synthetic(smoke, tmp_path, points))
    assert found.counts
    good, useless = found.candidates
    assert (good.name, good.cases, good.tasks) == ("kept mass", 21, 7)
    assert good.skill == pytest.approx(1 - score(points["kept mass"]).relative_error)
    assert good.interval[0] <= good.skill <= good.interval[1]
    assert good.beats_a_constant
    assert good.skill > 0.9
    assert good.slope == pytest.approx(2.0, rel=0.2)
    assert good.intercept == pytest.approx(0.5, abs=0.2)
    ours = sum(error for error, _ in held_out_errors(points["kept mass"]).values())
    assert good.typical_error == pytest.approx((ours / 21) ** 0.5)
    assert 0.05 < good.typical_error < 0.2
    assert (good.low, good.high) == (min(c.x for c in points["kept mass"]), max(c.x for c in points["kept mass"]))
    assert useless.skill < 0.1
    assert not useless.beats_a_constant
    path = tmp_path / "evidence.json"
    found.write(path)
    assert Evidence.read(path) == found


def test_evidence_is_widened_for_the_number_of_candidates(smoke, tmp_path):
    noisy = cells(noise=0.35)
    one = evidence_from(synthetic(smoke, tmp_path / "one", {"kept mass": noisy})).candidates[0]
    many = evidence_from(synthetic(smoke, tmp_path / "many", {f"number {i}": noisy for i in range(3)})).candidates[0]
    assert one.skill == many.skill
    assert many.interval[0] < one.interval[0] < one.interval[1] < many.interval[1]


def test_two_tasks_score_nothing(smoke, tmp_path):
    assert evidence_from(synthetic(smoke, tmp_path, {"kept mass": cells(0.1, tasks=TASKS[:2])})).candidates == ()


def test_what_is_no_evidence_is_refused(smoke, tmp_path):
    lab = synthetic(smoke, tmp_path, {})
    with pytest.raises(ValueError, match="has no candidates beside it"):
        evidence_from(lab)
    path = lab / "mechanism" / "manifests" / "paper.json"
    manifest = json.loads(path.read_text())
    write_json(path, manifest | {"changed": True})
    with pytest.raises(ValueError, match="settings that are not the study's own"):
        evidence_from(lab)
    write_json(path, manifest | {"complete": False})
    with pytest.raises(ValueError, match="is not complete"):
        evidence_from(lab)
    path.unlink()
    with pytest.raises(ValueError, match=r"cannot read .*paper\.json"):
        evidence_from(lab)
    (lab / "mechanism").rename(lab / "convergence")
    with pytest.raises(ValueError, match="holds no study 'mechanism'"):
        evidence_from(lab)


def test_other_versions_are_refused(tmp_path):
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps({"version": 2}))
    with pytest.raises(ValueError, match="has version 2; this semfocus reads version 1"):
        Evidence.read(path)


def test_evidence_reaches_the_words(smoke, tmp_path):
    import torch

    evidence = evidence_from(synthetic(smoke, tmp_path, {"kept mass": cells(noise=0.1)}))
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 20, 8)
    found = semfocus.diagnose(layer, (x, x, x), ks=(4, 8), evidence=evidence)
    assert "Recommended: try TopK(8)" in found.words()
    assert f"21 cases of 7 tasks (study mechanism, size paper, 10 seeds, commit {evidence.commits[0]})" in found.words()
