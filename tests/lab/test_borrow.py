"""Studies of one folder share what they train."""

import json

import pytest
from test_store import QUIET, smoke

from semfocus.lab.execute import ask, execute, on_this_machine
from semfocus.lab.measure import measure_runs
from semfocus.report.page import build
from semfocus.studies.convergence import Convergence
from semfocus.studies.loss_surface import LossSurface


class Neighbour(Convergence):
    """Does the same study, under another name, train anything again?

    Refuted by a run that it trains.
    """


def run_neighbour(root, said):
    asked = []

    def counting(store, configs):
        asked.extend(c.hash for c in configs if not store.run(c.hash).path.exists())
        on_this_machine("cpu", 1, QUIET)(store, configs)

    study = Neighbour()
    return study, execute(study, ask(study, "smoke", None, []), root, counting, said.append), asked


def test_finished_runs_are_taken_and_unfinished_ones_are_not(tmp_path):
    first = smoke(tmp_path)
    runs = [run.directory.path for _, run in first.every_run()]
    (runs[0] / "summary.json").unlink()
    said = []
    study, results, trained = run_neighbour(tmp_path, said)
    assert trained == [runs[0].name]
    assert said == [f"{len(runs) - 1} runs are those of other studies in {tmp_path}, and are not trained again"]
    for path in runs[1:]:
        ours = results.store.run(path.name).path
        assert {p.name for p in ours.iterdir()} == {p.name for p in path.iterdir()}
        assert (ours / "metrics.jsonl").read_bytes() == (path / "metrics.jsonl").read_bytes()
    assert build(study, results).exists()
    said.clear()
    assert run_neighbour(tmp_path, said)[2] == []
    assert said == []


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "environment.json", "weights.safetensors"])
def test_damaged_runs_are_trained_not_taken(tmp_path, name):
    path = next(smoke(tmp_path).every_run())[1].directory.path / name
    path.write_bytes(path.read_bytes()[:40])
    _, results, trained = run_neighbour(tmp_path, [])
    assert trained == [path.parent.name]
    assert {run.status for _, run in results.every_run()} == {"finished"}


def test_one_study_s_measurements_stay_its_own(tmp_path):
    first = smoke(tmp_path)
    _, results, _ = run_neighbour(tmp_path, [])
    measure_runs([run for _, run in results.every_run()], "here", lambda run: {"x": 1}, lambda text: None)
    assert not any((run.directory.path / "measured.json").exists() for _, run in first.every_run())


def test_what_others_measure_meanwhile_stays(tmp_path):
    """Brought by ``unpack``, say, after this process has read what there was."""
    results = smoke(tmp_path)
    runs = [run for _, run in results.every_run()]
    path = runs[-1].directory.path / "measured.json"
    assert runs[-1].measured == {}

    def measured(run):
        path.write_text('{"theirs": {"y": 2}}')
        return {"x": 1}

    measure_runs(runs, "ours", measured, lambda text: None)
    assert json.loads(path.read_text()) == {"theirs": {"y": 2}, "ours": {"x": 1}}
    assert runs[-1].measured == {"theirs": {"y": 2}, "ours": {"x": 1}}


def test_who_measures_models_takes_none_without_weights(tmp_path):
    """Runs that were restored from stored results have none."""
    study = LossSurface()
    question = ask(study, "smoke", None, [])
    first = execute(study, question, tmp_path, on_this_machine("cpu", 1, QUIET), lambda text: None)
    for _, run in first.every_run():
        (run.directory.path / "weights.safetensors").unlink()
    first.store.path.rename(tmp_path / "restored")
    said = []
    again = execute(study, question, tmp_path, on_this_machine("cpu", 1, QUIET), said.append)
    assert said == []
    assert all(run.directory.has_weights() for _, run in again.every_run())
