"""Runs whose data differ in one example, and weights kept on the way."""

import pytest
import torch
from safetensors.torch import load_file

from semfocus import Banded, Full, TopK
from semfocus.training.data import make_split
from semfocus.training.files import StorageError
from semfocus.training.groups import shape_key
from semfocus.training.population import Population
from semfocus.training.run_directory import RunDirectory
from semfocus.training.trainer import Trainer


def rows_that_differ(a, b, split):
    made = zip(make_split(a, split), make_split(b, split), strict=True)
    return torch.stack([(x != y).any(1) for x, y in made]).any(0).nonzero().flatten().tolist()


@pytest.mark.parametrize("task", ["even_pairs", "cycle_navigation", "solve_equation"])
@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("twin", [1, 17, 60])
def test_exactly_one_training_example_differs(tiny, task, labels, twin):
    sections = {"task": {"name": task, "length": 30}, "data": {"random_labels": labels, "test": 20}}
    run = tiny(Full(), 3, **sections)
    other = tiny(Full(), 3, **{**sections, "data": {**sections["data"], "twin": twin}})
    assert rows_that_differ(run, other, "train") == [twin - 1]
    assert rows_that_differ(run, other, "heldout") == rows_that_differ(run, other, "test") == []
    assert run.hash != other.hash


def test_an_example_is_never_replaced_by_itself(tiny):
    """Even Pairs at length 1 has two examples, so one draw in two is the old one."""
    for seed in range(8):
        run, other = (tiny(Full(), seed, task={"length": 1}, data={"twin": twin}) for twin in (0, 5))
        assert rows_that_differ(run, other, "train") == [4]


def test_twins_share_a_population_weights_order_and_dropout(tiny):
    run, other = (tiny(TopK(3), 2, data={"twin": twin}) for twin in (0, 7))
    assert shape_key(run) == shape_key(other)
    population = Population([run, other])
    first, second = population.weights_of(0), population.weights_of(1)
    assert all(torch.equal(first[name], second[name]) for name in first)
    population.start_epoch(0)
    assert torch.equal(population.order[0], population.order[1])
    batch = population.batch
    meets = int((population.order[0] == 6).nonzero()) // batch  # the step that sees the example
    for step in range(population.steps_per_epoch):
        population.train_step()
        first, second = population.weights_of(0), population.weights_of(1)
        same = all(torch.equal(first[name], second[name]) for name in first)
        assert same == (step < meets)  # equal, dropout included, until then


def test_snapshots_do_not_disturb_the_training(tiny, tmp_path):
    patterns = (Full(), TopK(3), Banded(3))
    plain = Trainer(tmp_path / "plain", threads=1).run([tiny(p, train={"epochs": 5}) for p in patterns])
    runs = [tiny(p, train={"epochs": 5, "keep_weights_every": 2}) for p in patterns]
    kept = Trainer(tmp_path / "kept", threads=1).run(runs)
    for mine, theirs in zip(plain, kept, strict=True):
        for a, b in zip(mine.metrics(), theirs.metrics(), strict=True):
            assert all(a[name] == b[name] for name in a if name != "seconds")  # bitwise
        assert sorted(theirs.snapshots()) == [0, 2, 4, 5]  # the first and the last among them
        last = load_file(theirs.path / "weights.safetensors")
        snapshot = theirs.weights_after(5)
        assert last.keys() == snapshot.keys()
        assert all(torch.equal(last[name], snapshot[name]) for name in last)
        start = Population([theirs.config()]).weights_of(0)
        assert all(torch.equal(start[name], tensor) for name, tensor in theirs.weights_after(0).items())
        assert not mine.snapshots()


def test_going_on_writes_the_same_snapshots(tiny, tmp_path, monkeypatch):
    run = tiny(TopK(3), train={"epochs": 6, "keep_weights_every": 1})
    Trainer(tmp_path / "whole", threads=1).run([run])
    original = Population.train_epoch

    def dying(self, epoch, after_step=None):
        if epoch == 5:
            raise KeyboardInterrupt
        return original(self, epoch, after_step)

    monkeypatch.setattr(Population, "train_epoch", dying)
    with pytest.raises(KeyboardInterrupt):
        Trainer(tmp_path / "cut", threads=1, checkpoint_epochs=2).run([run])  # one snapshot past the checkpoint
    monkeypatch.undo()
    assert sorted(RunDirectory(tmp_path / "cut", run.hash).snapshots()) == [0, 1, 2, 3, 4, 5]
    Trainer(tmp_path / "cut", threads=1).run([run])
    whole, cut = (RunDirectory(tmp_path / name, run.hash) for name in ("whole", "cut"))
    assert sorted(whole.snapshots()) == sorted(cut.snapshots()) == list(range(7))
    for name in whole.snapshots().values():
        assert (whole.path / name).read_bytes() == (cut.path / name).read_bytes()


def test_a_diverged_run_keeps_what_it_had(tiny, tmp_path):
    wild = tiny(Full(), train={"keep_weights_every": 1}, optimiser={"learning_rate": 1e30, "clip": 0.0})
    (directory,) = Trainer(tmp_path).run([wild])
    assert directory.summary()["status"] == "diverged"
    assert sorted(directory.snapshots()) == [0]


def test_a_damaged_or_missing_snapshot_is_one_sentence(tiny, tmp_path):
    directory = RunDirectory(tmp_path, "0123456789abcdef")
    with pytest.raises(StorageError, match=r"cannot read .*epoch-3\.safetensors"):
        directory.weights_after(3)
    directory.keep_weights(3, {"w": torch.ones(1, 2)})
    (directory.path / "snapshots" / "epoch-3.safetensors").write_bytes(b"nonsense")
    with pytest.raises(StorageError, match="damaged"):
        directory.weights_after(3)
