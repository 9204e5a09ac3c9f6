"""Resumable at any moment, and robust against what goes wrong on real machines."""

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
from interrupting import Stop, curves, dying
from rich.console import Console

from semfocus import Banded, Full, RandomK, TopK
from semfocus.training import checkpoint
from semfocus.training.files import StorageError, append_lines, keep_lines, read_lines, write_atomic
from semfocus.training.group_training import GroupTraining
from semfocus.training.locks import begun, in_training
from semfocus.training.progress import Progress
from semfocus.training.run_directory import RunDirectory
from semfocus.training.trainer import Trainer


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


def test_dying_after_the_last_epoch_changes_no_test_result(tiny, tmp_path, monkeypatch):
    """What a random pattern draws on the test examples depends on the step, which no epoch sets any more."""
    run = tiny(RandomK(3), data={"test": 40})
    (whole,) = Trainer(tmp_path / "whole", threads=1).run([run])

    def die(training):
        raise Stop

    monkeypatch.setattr(GroupTraining, "_finish", die)
    with pytest.raises(Stop):
        Trainer(tmp_path / "cut", threads=1).run([run])
    monkeypatch.undo()
    (cut,) = Trainer(tmp_path / "cut", threads=1).run([run])
    assert cut.summary() == whole.summary()


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


def test_stopping_leaves_a_checkpoint_after_the_epoch(tiny, tmp_path):
    run = tiny(TopK(3), train={"epochs": 4})
    epochs = iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        Trainer(tmp_path, stopping=lambda: next(epochs), threads=1).run([run])
    assert len(RunDirectory(tmp_path, run.hash).metrics()) == 3
    Trainer(tmp_path, threads=1).run([run])
    Trainer(tmp_path / "whole", threads=1).run([run])
    assert curves(tmp_path, [run]) == curves(tmp_path / "whole", [run])


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


def test_a_death_while_a_group_is_removed_leaves_nothing_in_the_way(tiny, tmp_path, monkeypatch):
    run, later = tiny(TopK(3), train={"epochs": 2}), tiny(TopK(2), train={"epochs": 2})

    def dies(path, ignore_errors):
        (path / "group.json").unlink()  # in whatever order the files go
        raise Stop

    monkeypatch.setattr(checkpoint.shutil, "rmtree", dies)
    with pytest.raises(Stop):
        Trainer(tmp_path, threads=1).run([run])
    monkeypatch.undo()
    (rest,) = tmp_path.glob("groups/*")
    assert rest.name.startswith(".")
    assert begun(tmp_path) == in_training(tmp_path) == set()
    Trainer(tmp_path, threads=1).run([run, later])
    assert not list(tmp_path.glob("groups/*"))


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


def test_lost_probes_are_made_again(tiny, tmp_path, monkeypatch):
    run = tiny(TopK(3), train={"epochs": 6, "probe_every": 2, "probe_epochs": 5})
    Trainer(tmp_path / "whole", threads=1).run([run])
    dying(monkeypatch, epoch=5)
    with pytest.raises(Stop):
        Trainer(tmp_path / "cut", threads=1, checkpoint_epochs=2).run([run])
    monkeypatch.undo()
    whole, cut = (tmp_path / name / "runs" / run.hash / "probe.jsonl" for name in ("whole", "cut"))
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:2]))
    Trainer(tmp_path / "cut", threads=1).run([run])
    assert cut.read_text() == whole.read_text()


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
