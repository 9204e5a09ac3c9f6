"""Runs into directories: complete, plain, and undisturbed by what is measured beside them."""

import dataclasses
import json

import pytest
import torch
from interrupting import dying
from safetensors.torch import load_file

from semfocus import Full, TopK, Transformer
from semfocus.training.files import read_lines
from semfocus.training.population import Population
from semfocus.training.trainer import Trainer


def test_a_run_directory_is_complete_and_plain(tiny, tmp_path):
    run = tiny(TopK(3), data={"test": 10}, train={"probe_every": 2, "probe_epochs": 2, "probe_examples": 20})
    (directory,) = Trainer(tmp_path).run([run])
    assert directory.path == tmp_path / "runs" / run.hash
    assert json.loads((directory.path / "config.json").read_text()) == run.to_dict()
    facts = json.loads((directory.path / "environment.json").read_text())
    assert {"commit", "torch", "device", "precision", "implementation", "population"} <= facts.keys()
    rows = directory.metrics()
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
    assert {"train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy", "seconds"} <= rows[0].keys()
    assert "running_loss" in rows[1]
    summary = directory.summary()
    assert summary["status"] == "finished"
    assert summary["last_heldout_accuracy"] == rows[-1]["heldout_accuracy"]
    assert 0 <= summary["test_accuracy"] <= 1
    probes = read_lines(directory.path / "probe.jsonl")
    assert [(row["epoch"], row["step"]) for row in probes] == [(1, 2), (2, 4), (2, 6)]  # 3 steps an epoch, 2 epochs
    weights = load_file(directory.path / "weights.safetensors")
    model = Transformer(run.model_config(), run.pattern, run.seed)
    model.load_state_dict(weights)
    assert not list((tmp_path / "groups").glob("*"))


def test_the_last_line_is_what_the_saved_weights_give(tiny, tmp_path):
    run = tiny(TopK(3))
    (directory,) = Trainer(tmp_path).run([run])
    population = Population([run])
    weights = load_file(directory.path / "weights.safetensors")
    population.model.load_state_dict(weights)
    assert abs(population.evaluate("heldout").loss[0].item() - directory.metrics()[-1]["heldout_loss"]) < 1e-6


def test_finished_runs_are_not_repeated(tiny, tmp_path, monkeypatch):
    runs = [tiny(TopK(3), seed) for seed in range(2)]
    Trainer(tmp_path).run(runs[:1])
    before = (tmp_path / "runs" / runs[0].hash / "summary.json").stat().st_mtime_ns
    Trainer(tmp_path).run(runs)
    assert (tmp_path / "runs" / runs[0].hash / "summary.json").stat().st_mtime_ns == before
    dying(monkeypatch, epoch=0)
    Trainer(tmp_path).run(runs)  # nothing left to train


def wild_loss_is_finite(directory):
    return directory.metrics()[-1]["heldout_loss"] is not None


def test_a_diverged_run_is_recorded_and_its_neighbours_finish(tiny, tmp_path):
    wild = tiny(Full(), 1, data={"test": 10})
    wild = dataclasses.replace(wild, optimiser=dataclasses.replace(wild.optimiser, learning_rate=1e30, clip=0.0))
    runs = [tiny(Full(), data={"test": 10}), wild]
    first, second = Trainer(tmp_path).run(runs)
    assert first.summary()["status"] == "finished"
    assert 0 <= first.summary()["test_accuracy"] <= 1
    summary = second.summary()
    assert (summary["status"], summary["diverged_epoch"]) == ("diverged", 1)
    assert (summary["test_loss"], summary["test_accuracy"]) == (None, None)
    assert (summary["last_heldout_loss"], summary["last_heldout_accuracy"]) == (None, None) or wild_loss_is_finite(
        second
    )
    assert [row["epoch"] for row in second.metrics()] == [0, 1]
    assert [row["epoch"] for row in first.metrics()] == [0, 1, 2, 3]


def test_answers_of_a_model_that_broke_are_none(tiny, tmp_path, monkeypatch):
    """A probe may come before the divergence is noted; a test may break where held-out examples do not."""
    evaluate = Population.evaluate

    def broken(population, split, examples=None):
        found = evaluate(population, split, examples)
        probe = examples is not None
        return dataclasses.replace(found, loss=found.loss * torch.nan) if probe or split == "test" else found

    monkeypatch.setattr(Population, "evaluate", broken)
    run = tiny(Full(), data={"test": 10}, train={"probe_every": 3, "probe_epochs": 1, "probe_examples": 20})
    (directory,) = Trainer(tmp_path).run([run])
    (probe,) = read_lines(directory.path / "probe.jsonl")
    assert (probe["train_loss"], probe["train_accuracy"]) == (None, None)
    assert (directory.summary()["test_loss"], directory.summary()["test_accuracy"]) == (None, None)


def test_fewer_evaluations_on_request(tiny, tmp_path):
    run = tiny(TopK(3), train={"epochs": 5, "eval_every": 2})
    (directory,) = Trainer(tmp_path).run([run])
    assert [row["epoch"] for row in directory.metrics()] == [0, 2, 4, 5]


def test_threads_are_left_as_they_were(tiny, tmp_path):
    torch.set_num_threads(1)
    Trainer(tmp_path, threads=2).run([tiny(Full())])
    assert torch.get_num_threads() == 1


def test_the_implementation_that_ran_is_recorded(tiny, tmp_path):
    runs = [tiny(Full(), model={"mask_padding": False}), tiny(TopK(3), model={"mask_padding": False})]
    facts = [json.loads((d.path / "environment.json").read_text()) for d in Trainer(tmp_path).run(runs)]
    assert facts[0]["implementation"] == {"training": "reference", "evaluation": "sdpa"}  # dropout is counter-based
    assert facts[1]["implementation"] == {"training": "reference", "evaluation": "reference"}


def test_diagnostics_do_not_disturb_the_training(tiny, tmp_path):
    runs = {
        every: [tiny(p, train={"diagnose_every": every, "diagnose_examples": 8}) for p in (Full(), TopK(3))]
        for every in (0, 2)
    }
    plain = [d.metrics() for d in Trainer(tmp_path / "plain", threads=1).run(runs[0])]
    watched = [d.metrics() for d in Trainer(tmp_path / "watched", threads=1).run(runs[2])]
    for mine, theirs in zip(plain, watched, strict=True):
        assert [row["epoch"] for row in theirs if "diagnostics" in row] == [0, 2, 3]
        for a, b in zip(mine, theirs, strict=True):
            assert all(a[name] == b[name] for name in a if name != "seconds")  # bitwise
    full, top = (rows[0]["diagnostics"] for rows in watched)
    assert top["dispersion"]["q75"] < full["dispersion"]["q75"]
    assert full["separation"]["q0"] is None  # infinite: nothing is dropped
    assert top["in_degree"]["mean"] == pytest.approx(3.0)
    with pytest.raises(ValueError, match="diagnose_every is 3"):
        tiny(Full(), train={"diagnose_every": 3, "eval_every": 2})


def test_the_gradient_s_norm_is_recorded_before_clipping(tiny, tmp_path):
    (directory,) = Trainer(tmp_path, threads=1).run([tiny(Full(), optimiser={"clip": 1e-3})])
    first, *rest = directory.metrics()
    assert "gradient_norm" not in first  # nothing was trained yet
    assert all(row["gradient_norm"] > 1e-3 and row["gradient_deviation"] >= 0 for row in rest)
