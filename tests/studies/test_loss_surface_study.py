"""What the study of loss surfaces compares, and what it leaves out."""

import json

import pytest
import torch

from semfocus import load_run
from semfocus.lab.execute import ask, execute, on_this_machine
from semfocus.lab.results import Results
from semfocus.studies import loss_surface
from semfocus.studies.loss_surface import AROUND, NAME, LossSurface
from semfocus.training.progress import Progress

STUDY = LossSurface()
QUIET = Progress(None)


@pytest.fixture
def results(tmp_path):
    """One epoch, two seeds of full and of top-k: nothing is learnt."""
    small = ["train.epochs=1", "data.train=50", "data.heldout=50"]
    question = ask(STUDY, "smoke", None, small)
    return execute(STUDY, question, tmp_path, on_this_machine("cpu", 1, QUIET), lambda text: None)


def again(results):
    return Results(results.store, results.manifest)


def lines(results):
    (claim,) = STUDY.claims(results)
    return claim.evidence(results)


def end_with(run, accuracy):
    path = run.directory.path / "metrics.jsonl"
    *rows, last = map(json.loads, path.read_text().splitlines())
    text = [json.dumps(row) for row in (*rows, {**last, "train_accuracy": accuracy})]
    path.write_text("\n".join(text) + "\n")


def test_seeds_in_which_one_has_not_learnt_are_not_compared(results):
    STUDY.measure(results, "cpu", lambda text: None)
    (line,) = lines(again(results))
    assert (line.outcome, line.seeds) == ("undecided", 0)
    assert line.note == "in no seed did both reach 95 % of the training examples"
    for arm, run in results.every_run():
        end_with(run, 1.0 if (arm.label, run.seed) != ("full", 1) else 0.94)
    (line,) = lines(again(results))
    assert line.seeds == 1
    (table,) = STUDY.sections(again(results))[2].parts
    assert [row[1:3] for row in table.rows] == [("full", "1 of 2"), ("top-k(5)", "2 of 2")]


def test_runs_without_weights_do_not_stop_the_others(results):
    bare = results.arm("even_pairs, relu", "full").runs[0]
    (bare.directory.path / "weights.safetensors").unlink()
    said = []
    STUDY.measure(results, "cpu", said.append)
    found = {run.directory.run: set(run.measured) for _, run in again(results).every_run()}
    assert found.pop(bare.directory.run) == set()
    assert all(names == {NAME, AROUND} for names in found.values())
    assert said[0] == "loss_surface: 1 of 4 models came without weights; to measure them, train them again"


def test_what_nobody_measured_is_missing_and_counts(results):
    """Not "in no seed did both reach": nobody knows."""
    for _, run in results.every_run():
        (run.directory.path / "weights.safetensors").unlink()
        end_with(run, 1.0)
    STUDY.measure(results, "cpu", lambda text: None)
    (line,) = lines(again(results))
    assert (line.outcome, line.note) == ("missing", "not measured")


def test_the_surface_shown_is_the_first_that_is_kept(results):
    """Stored results keep the grid of one run of each arm, which may be replaced or deleted."""
    STUDY.measure(results, "cpu", lambda text: None)
    first = results.arms[0].runs[0]
    path = first.directory.path / "measured.json"
    found = json.loads(path.read_text())
    del found[NAME]["losses"]
    path.write_text(json.dumps(found))
    (figure,) = STUDY.sections(again(results))[0].parts
    assert "full, seed 1" in figure.svg
    assert "full, seed 0" not in figure.svg


def test_where_the_loss_is_not_finite_it_is_steepest(results, monkeypatch):
    """Such a seed stays in the comparison: leaving it out would favour whoever explodes."""
    top = results.arm("even_pairs, relu", "top-k(5)").runs[0]
    measure = loss_surface.Surface.measure

    def exploding(self, probe):
        found = measure(self, probe)
        if torch.equal(probe.model.embedding, load_run(top.directory.path).embedding):
            found["lipschitz"][-1]["p95"] = float("inf")
        return found

    monkeypatch.setattr(loss_surface.Surface, "measure", exploding)
    STUDY.measure(results, "cpu", lambda text: None)
    for _, run in results.every_run():
        end_with(run, 1.0)
    found = again(results)
    assert (
        found.arm("even_pairs, relu", "top-k(5)").runs[0].measured[NAME]["lipschitz"][-1]["p95"]
        == loss_surface.STEEPEST
    )
    (line,) = lines(found)
    assert line.seeds == 2
    assert all(isinstance(section.title, str) for section in STUDY.sections(found))
