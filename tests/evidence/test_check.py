"""One row checked: its first epochs again, within the stated tolerance or not."""

import gzip
import json
from dataclasses import replace

import pytest
from two_tasks import contents

from semfocus.cli import main
from semfocus.evidence import rounding
from semfocus.evidence.check import OTHER, SAME, Checked, Compared, Tolerance, check, compared, find, tolerance_for
from semfocus.evidence.folder import add, load
from semfocus.evidence.rounding import spread, train_copies
from semfocus.lab.configs import config_of
from semfocus.lab.store import Store
from semfocus.training.files import StorageError
from semfocus.training.progress import Progress


@pytest.fixture
def folder(lab, tmp_path):
    return add(Store(lab, "two_tasks"), "quick", tmp_path / "results").path


def shift_loss(folder, run, by):
    """Changes the stored training loss after epoch 2."""
    lines = gzip.decompress((folder / "curves.csv.gz").read_bytes()).decode().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if line.startswith(f"{run},2,"))
    cells = lines[place].split(",")
    cells[2] = repr(float(cells[2]) + by)
    lines[place] = ",".join(cells)
    (folder / "curves.csv.gz").write_bytes(gzip.compress("".join(lines).encode()))


def test_every_arm_comes_back(folder):
    evidence = load(folder)
    runs = {arm["label"]: arm["runs"]["1"] for arm in evidence.manifest["arms"]}
    for run in runs.values():
        checked = check(evidence.records[run], 5, "cpu", 1)
        found = checked.values
        assert checked.tolerance is SAME
        assert len(found) == 3 * 4
        assert all(one.agrees for one in found)
        assert max(abs(one.stored - one.again) for one in found) < 1e-6  # its population had other members


def test_fewer_epochs_of_a_run_that_goes_on(folder):
    record = next(iter(load(folder).records.values()))
    assert {one.epoch for one in check(record, 1, "cpu", 1).values} == {0, 1}


def test_the_command_says_both_curves_and_ends_with_1_where_they_disagree(folder, capsys):
    run = next(iter(load(folder).records))
    before = contents(folder)
    arguments = ["results", "check", str(folder), run, "--device", "cpu", "--threads", "1"]
    assert main(arguments) == 0
    assert "all 12 values agree" in capsys.readouterr().out
    shift_loss(folder, run, 0.1)
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert printed.count("1 of 12 values disagree") == 2  # before and after the copies
    assert printed.count("DISAGREES") == 2
    assert contents(folder).keys() == before.keys()


def test_what_copies_reach_too_cannot_be_told_from_rounding(folder, capsys, monkeypatch):
    run = next(iter(load(folder).records))
    shift_loss(folder, run, 0.01)
    monkeypatch.setitem(rounding.UNITS, "ieee", 0.5)  # as if products were rounded to one digit
    assert main(["results", "check", str(folder), run, "--device", "cpu", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("DISAGREES") == printed.count("  sensitive\n") == 1
    assert "11 of 12 values agree, 1 cannot be told from rounding" in printed


def test_copies_that_are_not_moved_are_the_run(folder):
    record = next(iter(load(folder).records.values()))
    config = config_of(record.config)
    for curve in train_copies(config, 2, 0.0, "cpu", 1, Progress(None)):
        assert max(one.difference for one in compared(record.rows, curve, SAME)) < 1e-6
    moved = train_copies(config, 2, 0.1, "cpu", 1, Progress(None))
    assert len({curve[-1]["train_loss"] for curve in moved}) == rounding.COPIES
    assert 1e-4 < spread(moved, record.rows, 2, "train_loss") < 1


def test_a_copy_that_breaks_has_no_rows_from_there_on(folder):
    config = config_of(next(iter(load(folder).records.values())).config)
    broken = replace(config, optimiser=replace(config.optimiser, learning_rate=1e30))
    assert [[row["epoch"] for row in curve] for curve in train_copies(broken, 2, 0.0, "cpu", 1, Progress(None))] == [
        [0]
    ] * rounding.COPIES


def test_a_wrong_rate_is_no_rounding(folder):
    record = next(iter(load(folder).records.values()))
    config = config_of(record.config)
    wrong = replace(config, optimiser=replace(config.optimiser, learning_rate=config.optimiser.learning_rate * 1.5))
    stored = train_copies(wrong, 2, 0.0, "cpu", 1, Progress(None))[0]
    checked = Checked(config, compared(stored, record.rows, SAME), SAME, record.rows, rounding.UNITS["ieee"])
    assert checked.may_be_rounding
    assert checked.beside_copies("cpu", 1).wrong > 0


@pytest.mark.parametrize(
    ("difference", "copies", "agrees", "sensitive"),
    [(0.009, None, True, False), (0.02, None, False, False), (0.02, 0.007, False, True), (0.02, 0.006, False, False)],
)
def test_which_values_are_sensitive(difference, copies, agrees, sensitive):
    one = Compared(3, "train_loss", 0.5, 0.5 + difference, tolerance=0.01, copies=copies)
    assert (one.agrees, one.sensitive) == (agrees, sensitive)


def test_copies_explain_nothing_before_training_and_no_divergence(folder):
    record = next(iter(load(folder).records.values()))
    config, again = config_of(record.config), [{**row} for row in record.rows]
    again[0]["train_loss"] += 0.5
    early = Checked(config, compared(record.rows, again, SAME), SAME, again, 0.5)
    assert not early.may_be_rounding
    assert early.beside_copies("cpu", 1).wrong == 1
    assert not Compared(2, "train_loss", None, 0.5, 0.01, copies=1e9).sensitive


def test_what_rounding_is():
    gpu, cpu = {"cuda": "13.0", "precision": "tf32"}, {"cuda": None, "precision": "tf32"}
    exact = {"cuda": "13.0", "precision": "ieee"}
    assert rounding.unit(gpu, cpu, alike=False) == rounding.unit(cpu, gpu, alike=False) == 2**-10
    assert rounding.unit(gpu, gpu, alike=True) == rounding.unit(cpu, cpu, alike=True) == 2**-23
    assert rounding.unit(exact, cpu, alike=False) == 2**-23


def test_copies_that_broke_are_left_out():
    run = [{"epoch": epoch, "train_loss": 0.5} for epoch in range(4)]
    copy = [{"epoch": epoch, "train_loss": loss} for epoch, loss in enumerate([0.5, float("nan"), 0.75, float("inf")])]
    assert [spread([copy], run, epoch, "train_loss") for epoch in range(4)] == [0.0, 0.25, 0.25, 0.25]


def test_another_seed_is_noticed(folder):
    evidence = load(folder)
    one, other = (evidence.records[run] for run in list(evidence.manifest["arms"][0]["runs"].values()))
    for tolerance in (SAME, OTHER):
        assert not all(row.agrees for row in compared(one.rows, other.rows, tolerance))


def test_a_config_that_names_another_run(folder):
    record = next(iter(load(folder).records.values()))
    changed = type(record)(**{**record.__dict__, "config": {**record.config, "seed": 77}})
    with pytest.raises(StorageError, match="gives run"):
        check(changed, 1, "cpu", 1)


@pytest.mark.parametrize("run", ["../../x", "", "0123456789ABCDEF", "0123456789abcdef"])
def test_unknown_runs(folder, run, capsys):
    with pytest.raises(StorageError, match=r"runs\.csv"):
        find(load(folder), run)
    assert main(["results", "check", str(folder), run]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_language_model_comes_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "language_model", "--size", "smoke", "--device", "cpu", "--threads", "1"]
    assert main(arguments) == 0
    assert main(["results", "add", "lab"]) == 0
    record = list(load(tmp_path / "results" / "language_model-smoke").records.values())[-1]
    capsys.readouterr()
    options = ["--epochs", "1", "--device", "cpu", "--threads", "1"]
    assert main(["results", "check", "results/language_model-smoke", record.run, *options]) == 0
    assert "all 3 values agree" in capsys.readouterr().out  # at epoch 0 there is no training loss yet


def test_which_tolerance():
    cpu = {"cuda": None, "dtype": "float32", "device": "a", "implementation": "sdpa"}
    gpu = {"cuda": "13.0", "dtype": "float32", "device": "H200", "implementation": {"training": "fused"}}
    assert tolerance_for(cpu, {**cpu, "device": "b", "implementation": "reference"}) is SAME
    assert tolerance_for(cpu, {**cpu, "dtype": "float64"}) is OTHER
    assert tolerance_for(gpu, cpu) is OTHER
    assert tolerance_for(gpu, gpu) is SAME
    assert tolerance_for({**gpu, "commit": "907aa7d"}, {**gpu, "commit": "907aa7d1c0ff"}) is SAME  # written shorter
    assert tolerance_for({**gpu, "commit": "907aa7d"}, {**gpu, "commit": "907aa7d1c0ff+"}) is OTHER
    for change in ({"device": "A100"}, {"implementation": {"training": "sdpa"}}, {"commit": "abc"}, {"torch": "3"}):
        assert tolerance_for(gpu, {**gpu, **change}) is OTHER


def test_the_curve_may_be_an_epoch_early_elsewhere_and_not_here():
    stored = [{"epoch": e, "train_loss": loss} for e, loss in enumerate([0.7, 0.69, 0.4, 0.2])]
    early = [{"epoch": e, "train_loss": loss} for e, loss in enumerate([0.7, 0.6899, 0.25])]
    assert [one.agrees for one in compared(stored, early, OTHER)] == [True, True, True]
    assert [one.agrees for one in compared(stored, early, SAME)] == [True, True, False]
    late = [{"epoch": 0, "train_loss": 0.703}]  # before training there is nothing to be late for
    assert [one.agrees for one in compared(stored, late, OTHER)] == [False]


def test_values_that_are_not_finite():
    stored = [{"epoch": 0, "train_loss": None}, {"epoch": 1, "train_loss": 1.0}]
    again = [{"epoch": 0, "train_loss": None}, {"epoch": 1, "train_loss": None}]
    assert [one.agrees for one in compared(stored, again, SAME)] == [True, False]
    assert json.dumps(Tolerance(1e-3, 1e-2, 1.0).of("train_loss", [None, 4.0], 1)) == "0.004"
