"""Which runs train together, and what several processes do with one folder."""

import json
import os
import shutil

import pytest
import torch
from interrupting import Stop, curves, dying
from rich.console import Console

from semfocus import Banded, BottomK, Full, TopK
from semfocus.training.groups import Group, plan, recorded, shape_key
from semfocus.training.locks import in_training, try_lock
from semfocus.training.population import Population
from semfocus.training.progress import Progress
from semfocus.training.run_directory import RunDirectory
from semfocus.training.threads import choose_threads
from semfocus.training.trainer import Trainer, TrainingError


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


def test_what_another_process_ends_while_we_look_is_not_trained_again(tiny, tmp_path, monkeypatch):
    """Its group is recorded no longer, and the caller's list is older than that."""
    ended, waiting = tiny(Full(), 0), tiny(Full(), 1)
    Trainer(tmp_path / "elsewhere").run([ended])

    def ends_now(out, wanted):
        source = RunDirectory(tmp_path / "elsewhere", ended.hash).path
        shutil.copytree(source, RunDirectory(out, ended.hash).path, dirs_exist_ok=True)
        return recorded(out, wanted)

    monkeypatch.setattr("semfocus.training.trainer.recorded", ends_now)
    alone, _ = Trainer(tmp_path).run([ended, waiting])
    assert json.loads((alone.path / "environment.json").read_text())["population"] == 1
    assert curves(tmp_path, [ended]) == curves(tmp_path / "elsewhere", [ended])


def test_of_an_interrupted_group_only_what_is_not_over_goes_on(tiny, tmp_path, monkeypatch):
    """Some of its runs have come from another machine, finished; they are left as they came."""
    runs = [tiny(Full(), seed, train={"epochs": 4}) for seed in range(3)]
    Trainer(tmp_path / "whole", threads=1).run(runs)
    dying(monkeypatch, epoch=2)
    with pytest.raises(Stop):
        Trainer(tmp_path / "here", threads=1, checkpoint_epochs=1).run(runs)
    monkeypatch.undo()
    over = RunDirectory(tmp_path / "here", runs[1].hash).path
    shutil.rmtree(over)
    shutil.copytree(RunDirectory(tmp_path / "whole", runs[1].hash).path, over)
    (over / "environment.json").write_text('{"from": "elsewhere"}')
    sentences = []
    progress = Progress(None)
    progress.say = sentences.append
    Trainer(tmp_path / "here", threads=1, progress=progress).run(runs)
    assert sentences == ["going on with 2 runs after epoch 2"]
    assert json.loads((over / "environment.json").read_text()) == {"from": "elsewhere"}
    for run, rows in curves(tmp_path / "here", runs).items():
        wanted = curves(tmp_path / "whole", runs)[run]
        assert [row["epoch"] for row in rows] == [row["epoch"] for row in wanted]
        assert [row["train_loss"] for row in rows] == pytest.approx([row["train_loss"] for row in wanted], abs=1e-4)
    assert not list(tmp_path.glob("here/groups/*"))


def test_a_process_that_dies_before_it_tidies_up_leaves_nothing_for_ever(tiny, tmp_path, monkeypatch):
    run, other = tiny(Full()), tiny(Full(), task={"length": 9})

    def dies(folder):
        raise Stop

    monkeypatch.setattr("semfocus.training.checkpoint.remove", dies)
    with pytest.raises(Stop):
        Trainer(tmp_path).run([run])
    monkeypatch.undo()
    Group((other,)).record(tmp_path)  # not over: it stays
    assert len(list(tmp_path.glob("groups/*"))) == 2
    Trainer(tmp_path).run([run])
    assert list(tmp_path.glob("groups/*")) == [Group((other,)).folder(tmp_path)]


def test_with_one_step_an_epoch_threads_are_timed_all_the_same(tiny):
    """Nothing timed would leave the choice to noise."""
    population = Population([tiny(Full(), data={"train": 25}, train={"batch": 25})])
    before = [tensor.clone() for tensor in population.mutable()]
    timed = []
    step = population.train_step
    population.train_step = lambda: (timed.append(int(population.cursor)), step())
    assert choose_threads(population) in (1, os.cpu_count())
    assert len(timed) >= 5
    assert set(timed) == {0}
    assert all(map(torch.equal, before, population.mutable()))


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


def test_who_waits_for_another_process_can_be_stopped(tiny, tmp_path):
    run = tiny(Full())
    group = Group((run,))
    group.record(tmp_path)
    assert in_training(tmp_path) == set()
    with try_lock(group.folder(tmp_path) / ".lock"):
        assert in_training(tmp_path) == {run.hash}
        with pytest.raises(KeyboardInterrupt):
            Trainer(tmp_path, stopping=lambda: True).run([run])
