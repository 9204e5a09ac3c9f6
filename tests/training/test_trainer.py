"""Runs into directories: complete, resumable at any moment, and robust against what goes wrong on real machines."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from semfocus import Banded, BottomK, Full, TopK, Transformer
from semfocus.training import checkpoint
from semfocus.training.files import StorageError, append_lines, keep_lines, read_lines, write_atomic
from semfocus.training.groups import Group, plan, shape_key
from semfocus.training.locks import in_training, try_lock
from semfocus.training.population import Population
from semfocus.training.progress import Progress
from semfocus.training.run_directory import RunDirectory
from semfocus.training.trainer import Trainer, TrainingError


def curves(out, runs):
    """The metrics of all runs without their timings."""
    rows = {run.hash: RunDirectory(out, run.hash).metrics() for run in runs}
    return {run: [{k: v for k, v in row.items() if k != "seconds"} for row in lines] for run, lines in rows.items()}


class Stop(BaseException):
    """Stands for the process dying."""


def dying(monkeypatch, *, epoch):
    """From now on the process dies when it begins that epoch (counted from 0); undo with monkeypatch.undo()."""
    original = Population.train_epoch

    def train_epoch(self, number, after_step=None):
        if number == epoch:
            raise Stop
        return original(self, number, after_step)

    monkeypatch.setattr(Population, "train_epoch", train_epoch)


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


@pytest.mark.parametrize("dies", [0, 1, 2, 4, 5])
def test_going_on_gives_the_curves_of_an_uninterrupted_run(tiny, tmp_path, monkeypatch, dies):
    runs = [tiny(pattern, seed, train={"epochs": 6}) for pattern in (Full(), TopK(3)) for seed in range(2)]
    runs[1] = dataclasses.replace(runs[1], optimiser=dataclasses.replace(runs[1].optimiser, name="adam"))
    Trainer(tmp_path / "whole", threads=1).run(runs)
    dying(monkeypatch, epoch=dies)
    with pytest.raises(Stop):
        Trainer(tmp_path / "cut", threads=1, checkpoint_epochs=2).run(runs)
    monkeypatch.undo()
    Trainer(tmp_path / "cut", checkpoint_epochs=2).run(runs)  # the group's record knows its threads
    assert curves(tmp_path / "cut", runs) == curves(tmp_path / "whole", runs)


SCRIPT = """
import json, sys
from semfocus.training import RunConfig
from semfocus.training.trainer import Trainer
runs = [RunConfig.from_dict(data) for data in json.loads(sys.argv[2])]
Trainer(sys.argv[1], threads=1, checkpoint_epochs=3).run(runs)
"""


def test_kill_dash_nine_at_any_moment(tiny, tmp_path):
    runs = [tiny(pattern, train={"epochs": 40}) for pattern in (Full(), TopK(3), Banded(3))]
    data = json.dumps([run.to_dict() for run in runs])
    Trainer(tmp_path / "whole", threads=1).run(runs)
    rng = random.Random(1)
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path / "cut"), data])
        deadline = time.monotonic() + 60
        while not list((tmp_path / "cut").glob("runs/*/metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "cut"), data], check=True)
    assert curves(tmp_path / "cut", runs) == curves(tmp_path / "whole", runs)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "all"])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(tiny, tmp_path, monkeypatch, damage, capsys):
    runs = [tiny(TopK(3), train={"epochs": 6})]
    Trainer(tmp_path / "whole", threads=1).run(runs)
    dying(monkeypatch, epoch=5)
    with pytest.raises(Stop):
        Trainer(tmp_path / "cut", threads=1, checkpoint_epochs=2).run(runs)
    monkeypatch.undo()
    files = sorted((tmp_path / "cut").glob("groups/*/epoch-*.safetensors"))
    assert [file.name for file in files] == ["epoch-2.safetensors", "epoch-4.safetensors"]
    for file in files if damage == "all" else files[-1:]:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    said = Console(width=200)
    Trainer(tmp_path / "cut", progress=Progress(said)).run(runs)
    output = capsys.readouterr().out
    assert "epoch-4.safetensors is damaged" in output
    assert ("after epoch 2" in output) == (damage != "all")
    assert ("starting from the beginning" in output) == (damage == "all")
    assert curves(tmp_path / "cut", runs) == curves(tmp_path / "whole", runs)


def wild_loss_is_finite(directory):
    return directory.metrics()[-1]["heldout_loss"] is not None


def test_a_diverged_run_is_recorded_and_its_neighbours_finish(tiny, tmp_path):
    wild = tiny(Full(), 1)
    wild = dataclasses.replace(wild, optimiser=dataclasses.replace(wild.optimiser, learning_rate=1e30, clip=0.0))
    runs = [tiny(Full()), wild]
    first, second = Trainer(tmp_path).run(runs)
    assert first.summary()["status"] == "finished"
    summary = second.summary()
    assert (summary["status"], summary["diverged_epoch"]) == ("diverged", 1)
    assert (summary["last_heldout_loss"], summary["last_heldout_accuracy"]) == (None, None) or wild_loss_is_finite(
        second
    )
    assert [row["epoch"] for row in second.metrics()] == [0, 1]
    assert [row["epoch"] for row in first.metrics()] == [0, 1, 2, 3]


@pytest.mark.parametrize("when", ["at once", "later"])
def test_running_out_of_memory_halves_the_group(tiny, tmp_path, monkeypatch, capsys, when):
    runs = [tiny(TopK(3), seed, train={"epochs": 4}) for seed in range(5)]
    Trainer(tmp_path / "whole", threads=1).run(runs)
    original = Population.train_epoch

    def short_of_memory(self, epoch, after_step=None):
        if len(self.configs) > 2 and epoch >= (2 if when == "later" else 0):
            raise torch.OutOfMemoryError("pretended")
        return original(self, epoch, after_step)

    monkeypatch.setattr(Population, "train_epoch", short_of_memory)
    trainer = Trainer(tmp_path / "cut", threads=1, checkpoint_epochs=1, progress=Progress(Console(width=200)))
    trainer.run(runs)
    assert "out of memory with 5 models at once" in capsys.readouterr().out
    sizes = [RunDirectory(tmp_path / "cut", run.hash).path / "environment.json" for run in runs]
    assert sorted(json.loads(path.read_text())["population"] for path in sizes) == [1, 2, 2, 2, 2]
    for run, rows in curves(tmp_path / "cut", runs).items():
        for row, wanted in zip(rows, curves(tmp_path / "whole", runs)[run], strict=True):
            assert row["epoch"] == wanted["epoch"]
            assert abs(row["train_loss"] - wanted["train_loss"]) < 1e-4
    monkeypatch.setattr(
        Population, "train_epoch", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("pretended"))
    )
    with pytest.raises(TrainingError, match="single model"):
        Trainer(tmp_path / "none").run(runs[:1])


def test_a_full_disk_is_one_sentence_and_leaves_earlier_results(tiny, tmp_path, monkeypatch):
    runs = [tiny(TopK(3), seed) for seed in range(2)]
    Trainer(tmp_path).run(runs[:1])
    earlier = curves(tmp_path, runs[:1])

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"No space left on device.*earlier results are intact"):
        Trainer(tmp_path).run(runs)
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.tmp"))
    assert curves(tmp_path, runs[:1]) == earlier
    Trainer(tmp_path).run(runs)
    assert len(curves(tmp_path, runs)[runs[1].hash]) == 4


def test_an_unwritable_folder_is_one_sentence(tiny, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="cannot write into"):
        Trainer(tmp_path / "file" / "out").run([tiny(Full())])


def test_two_trainers_share_a_folder_and_do_nothing_twice(tiny, tmp_path, monkeypatch):
    mine, other = tiny(Full()), tiny(Full(), task={"length": 9})
    original = Population.train_epoch
    trained = []

    def train_epoch(self, epoch, after_step=None):
        trained.extend((config.hash, epoch) for config in self.configs)
        if len(trained) == 1:  # in the middle of the first group another trainer comes along
            Trainer(tmp_path).run([other])
        return original(self, epoch, after_step)

    monkeypatch.setattr(Population, "train_epoch", train_epoch)
    Trainer(tmp_path).run([mine, other])
    assert sorted(trained) == sorted((run.hash, epoch) for run in (mine, other) for epoch in range(3))
    assert not list(tmp_path.glob("groups/*"))


def test_a_run_that_another_process_trains_is_waited_for(tiny, tmp_path, monkeypatch):
    run = tiny(Full())
    folder = Group((run,)).folder(tmp_path)
    held = try_lock(folder / ".lock")  # as another process would
    Group((run,)).record(tmp_path)
    sentences = []
    progress = Progress(None)
    progress.say = sentences.append
    monkeypatch.setattr("time.sleep", lambda _: held.close())  # ... which dies while we wait
    (directory,) = Trainer(tmp_path, progress=progress).run([run])
    assert directory.is_finished()
    assert any("another process" in sentence for sentence in sentences)


def test_stopping_leaves_a_checkpoint_after_the_epoch(tiny, tmp_path):
    run = tiny(TopK(3), train={"epochs": 4})
    epochs = iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        Trainer(tmp_path, stopping=lambda: next(epochs), threads=1).run([run])
    assert len(RunDirectory(tmp_path, run.hash).metrics()) == 3
    Trainer(tmp_path, threads=1).run([run])
    Trainer(tmp_path / "whole", threads=1).run([run])
    assert curves(tmp_path, [run]) == curves(tmp_path / "whole", [run])


def test_groups_share_shapes_and_keep_patterns_together(tiny):
    runs = [tiny(pattern, seed) for seed in range(3) for pattern in (TopK(3), Full())]
    longer = tiny(Full(), task={"length": 9})
    globals_ = tiny(Banded(3, global_tokens=1))
    groups = plan([*runs, longer, globals_], lambda _: 4)
    assert sorted(len(group.configs) for group in groups) == [1, 1, 3, 3]
    for group in groups:
        assert len({shape_key(config) for config in group.configs}) == 1
        labels = [config.pattern.label for config in group.configs]
        assert labels == sorted(labels)
    assert {run for group in groups for run in group.runs} == {run.hash for run in [*runs, longer, globals_]}


def test_patterns_without_a_fast_kernel_train_apart_on_a_gpu(tiny):
    patterns = (Full(), BottomK(3), TopK(3), Banded(3))
    runs = [tiny(pattern, model={"mask_padding": False}) for pattern in patterns]
    assert [len(group.configs) for group in plan(runs, lambda _: 9)] == [4]
    apart = plan(runs, lambda _: 9, on_gpu=True)
    assert sorted([c.pattern.label for c in group.configs] for group in apart) == [
        ["banded(width=3)", "full()", "top_k(k=3)"],
        ["bottom_k(k=3)"],
    ]
    masked = [tiny(pattern, model={"mask_padding": True}) for pattern in (Full(), Banded(3))]
    assert len(plan(masked, lambda _: 9, on_gpu=True)) == 2


def test_groups_that_do_not_concern_a_call_are_left_alone(tiny, tmp_path, monkeypatch):
    first, second = tiny(Full(), 1), tiny(Full(), 2)
    dying(monkeypatch, epoch=2)
    with pytest.raises(Stop):
        Trainer(tmp_path, checkpoint_epochs=1).run([first])
    monkeypatch.undo()
    Trainer(tmp_path).run([second])
    assert (Group((first,)).folder(tmp_path) / "group.json").exists()
    Trainer(tmp_path).run([first])
    assert len(curves(tmp_path, [first])[first.hash]) == 4


def test_checkpoints_keep_the_newest_two(tmp_path):
    for epoch in (1, 2, 3):
        checkpoint.save(tmp_path, epoch, {"x": torch.full((2,), float(epoch))})
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        "epoch-2.safetensors",
        "epoch-3.safetensors",
    ]
    epoch, state = checkpoint.load(tmp_path, print)
    assert epoch == 3
    assert state["x"].tolist() == [3.0, 3.0]
    (tmp_path / "index.json").write_text("{ nonsense")
    assert checkpoint.load(tmp_path, print) is None


def test_lines_cut_short_are_dropped_and_nan_becomes_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_lines(path, [{"epoch": 0, "loss": float("nan")}, {"epoch": 1, "loss": 0.5}])
    with open(path, "a") as file:
        file.write('{"epoch": 2, "lo')
    assert read_lines(path) == [{"epoch": 0, "loss": None}, {"epoch": 1, "loss": 0.5}]
    keep_lines(path, 0)
    assert path.read_text() == '{"epoch": 0, "loss": null}\n'


def test_atomic_writes_leave_the_old_file_when_they_fail(tmp_path, monkeypatch):
    write_atomic(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(StorageError, match="Input/output error"):
        write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_progress_tells_epochs_and_time_left(tiny, tmp_path, capsys):
    Trainer(tmp_path, progress=Progress(Console(width=300))).run([tiny(TopK(3), seed) for seed in range(3)])
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert "epoch 3/3" in last
    assert "median loss" in last
    assert "time left 0:00" in last


def test_progress_within_long_epochs(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("semfocus.training.progress.LINE_EVERY", 0.0)
    Trainer(tmp_path, progress=Progress(Console(width=300))).run([tiny(TopK(3))])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("runs 0/1  evaluating, train: step 1 of ")
    assert any(line.startswith("runs 0/1  training, epoch 3: step 2 of ") for line in lines)


def test_progress_within_long_epochs_in_a_terminal(monkeypatch):
    monkeypatch.setattr("semfocus.training.progress.LINE_EVERY", 0.0)
    console = Console(width=150, force_terminal=True, record=True, legacy_windows=False)
    with Progress(console) as progress:
        progress.within("training, epoch 1", 3, 10)
        progress.epoch(1, 5, [{"train_loss": 1.0, "heldout_loss": 1.0}], 1)
        progress.within("training, epoch 2", 4, 10)
    text = console.export_text()
    assert "1/5" in text
    assert "training, epoch 2: step 4 of 10" in text


def test_progress_in_a_terminal_is_a_live_table(tiny, tmp_path):
    console = Console(width=150, force_terminal=True, record=True, legacy_windows=False)
    with Progress(console) as progress:
        Trainer(tmp_path, progress=progress).run([tiny(TopK(3))])
    text = console.export_text()
    assert "median member" in text
    assert "3/3" in text
    assert "1/1" in text


def test_fewer_evaluations_on_request(tiny, tmp_path):
    run = tiny(TopK(3), train={"epochs": 5, "eval_every": 2})
    (directory,) = Trainer(tmp_path).run([run])
    assert [row["epoch"] for row in directory.metrics()] == [0, 2, 4, 5]


def test_damaged_records_are_passed_over(tiny, tmp_path, monkeypatch):
    run = tiny(TopK(3), train={"epochs": 4})
    dying(monkeypatch, epoch=3)
    with pytest.raises(Stop):
        Trainer(tmp_path, checkpoint_epochs=1, threads=1).run([run])
    monkeypatch.undo()
    (record,) = tmp_path.glob("groups/*/group.json")
    record.write_text("{}")
    metrics = tmp_path / "runs" / run.hash / "metrics.jsonl"
    metrics.write_text("garbage\n" + metrics.read_text())
    Trainer(tmp_path, threads=1).run([run])
    assert [row["epoch"] for row in RunDirectory(tmp_path, run.hash).metrics()] == [0, 1, 2, 3, 4]


def test_what_may_not_be_read_is_not_taken_for_damaged(tiny, tmp_path, monkeypatch):
    run = tiny(TopK(3), train={"epochs": 4})
    dying(monkeypatch, epoch=3)
    with pytest.raises(Stop):
        Trainer(tmp_path, checkpoint_epochs=1, threads=1).run([run])
    monkeypatch.undo()
    (record,) = tmp_path.glob("groups/*/group.json")
    kept, read = sorted(record.parent.iterdir()), Path.read_bytes

    def refused(path):
        if path == record:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(StorageError, match=r"cannot read .*group.json: Permission denied"):
        Trainer(tmp_path, threads=1).run([run])
    assert sorted(record.parent.iterdir()) == kept  # the checkpoint too


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


@pytest.mark.parametrize("damage", ["a line cut short", "the end gone", "all gone"])
def test_a_curve_with_a_gap_is_trained_again(tiny, tmp_path, monkeypatch, damage, capsys):
    runs = [tiny(pattern, train={"epochs": 6}) for pattern in (Full(), TopK(3))]
    Trainer(tmp_path / "whole", threads=1).run(runs)
    dying(monkeypatch, epoch=5)
    with pytest.raises(Stop):
        Trainer(tmp_path / "cut", threads=1, checkpoint_epochs=2).run(runs)
    monkeypatch.undo()
    path = tmp_path / "cut" / "runs" / runs[1].hash / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    changed = {
        "a line cut short": [*lines[:2], lines[2][:9] + "\n", *lines[3:]],
        "the end gone": lines[:3],
        "all gone": [],
    }
    path.write_text("".join(changed[damage]))
    said = []
    trainer = Trainer(tmp_path / "cut", checkpoint_epochs=2)
    monkeypatch.setattr(trainer.progress, "say", said.append)
    trainer.run(runs)
    assert said == [f"the curve of run {runs[1].hash} lacks epochs up to 4; starting its group from the beginning"]
    assert curves(tmp_path / "cut", runs) == curves(tmp_path / "whole", runs)


def test_who_waits_for_another_process_can_be_stopped(tiny, tmp_path):
    run = tiny(Full())
    group = Group((run,))
    group.record(tmp_path)
    assert in_training(tmp_path) == set()
    with try_lock(group.folder(tmp_path) / ".lock"):
        assert in_training(tmp_path) == {run.hash}
        with pytest.raises(KeyboardInterrupt):
            Trainer(tmp_path, stopping=lambda: True).run([run])
