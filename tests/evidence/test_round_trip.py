"""From a lab's folder to small files and back: nothing that a page shows is lost, and equal content is equal bytes."""

import gzip
import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from two_tasks import TwoTasks, contents, find

from semfocus import studies
from semfocus.cli import main
from semfocus.evidence import record
from semfocus.evidence.build import build_all
from semfocus.evidence.folder import add, load
from semfocus.lab.execute import ask, complete, execute, on_this_machine, plan
from semfocus.lab.results import Results
from semfocus.lab.store import Store
from semfocus.report.page import build
from semfocus.training import checkpoint
from semfocus.training.files import StorageError
from semfocus.training.groups import Group
from semfocus.training.progress import Progress
from semfocus.training.protocol import RunConfig


def added(lab, into, study="two_tasks", name="quick"):
    return add(Store(lab, study), name, into)


@pytest.fixture
def every_digit(monkeypatch):
    """Rounding apart, a page must not change at all."""
    monkeypatch.setattr(record, "DIGITS", 17)


def pages(root, study):
    return contents(root / study.name / "pages")


@pytest.mark.usefixtures("every_digit")
def test_the_page_is_the_same_from_the_restored_folder(lab, tmp_path):
    study, store = TwoTasks(), Store(lab, "two_tasks")
    build(study, Results(store, store.manifest("quick")))
    assert added(lab, tmp_path / "results").new == 10
    again = load(tmp_path / "results" / "two_tasks-quick").restore(tmp_path / "again")
    build(study, again)
    ours, theirs = pages(lab, study), pages(tmp_path / "again", study)
    assert ours == theirs
    assert any(name.endswith(".svg") for name in ours)
    assert not list((tmp_path / "again").rglob("*.safetensors"))


@pytest.mark.usefixtures("every_digit")
def test_the_page_that_is_kept_differs_in_what_lies_beside_it_alone(lab, tmp_path):
    store = Store(lab, "two_tasks")
    page = build(TwoTasks(), Results(store, store.manifest("quick"))).read_text()
    added(lab, tmp_path / "results")
    build_all(tmp_path / "results", find, lambda text: None)
    kept = (tmp_path / "results" / "two_tasks-quick" / "index.html").read_text()
    beside = re.compile(r'<p class="prose">(Every figure|Most figures) [^<]*</p>')
    assert beside.sub("", kept) == beside.sub("", page)
    assert "semfocus results check results/two_tasks-quick RUN" in kept


@pytest.mark.usefixtures("every_digit")
@pytest.mark.parametrize("name", ["language_model", "mechanism", "plateau", "loss_surface"])
def test_studies_with_losses_diagnostics_probes_and_measurements(name, tmp_path, monkeypatch):
    """Language models have no accuracies; grids of the loss are kept for the first run of each arm."""
    monkeypatch.setattr(record, "LARGE", 10)
    study = studies.get(name)
    train = on_this_machine("cpu", 1, Progress(None))
    results = execute(study, ask(study, "smoke", None, []), tmp_path / "lab", train, lambda text: None)
    study.measure(results, "cpu", lambda text: None)
    complete(results)
    build(study, Results(results.store, results.store.manifest("smoke")))
    added(tmp_path / "lab", tmp_path / "results", name, "smoke")
    evidence = load(tmp_path / "results" / f"{name}-smoke")
    build(study, evidence.restore(tmp_path / "again"))
    assert pages(tmp_path / "lab", study) == pages(tmp_path / "again", study)
    if name == "loss_surface":
        grids = [one.run for one in evidence.records.values() if "losses" in one.measured["loss_surface"]]
        assert set(grids) == {arm.runs[0].directory.run for arm in results.arms}
        assert len(evidence.records) == 2 * len(grids)
    build_all(tmp_path / "results", studies.get, lambda text: None)
    if name == "plateau":
        shutil.copytree(tmp_path / "results", tmp_path / "less")
        (tmp_path / "less" / "plateau-smoke" / "probes.csv.gz").unlink()
        with pytest.raises(StorageError, match=r"its probes in probes\.csv\.gz are not all there"):
            load(tmp_path / "less" / "plateau-smoke")
    made = contents(tmp_path / "results" / f"{name}-smoke")
    assert {"claims.md", "claims.json", "speed.md", "runs.csv", "index.html"} <= made.keys()
    assert made["runs.csv"].count(b"semfocus results check") == sum(1 for _ in results.every_run())


def test_equal_content_is_equal_bytes(lab, tmp_path):
    for folder in ("one", "two"):
        added(lab, tmp_path / folder / "results")
        build_all(tmp_path / folder / "results", find, lambda text: None)
    first = contents(tmp_path / "one")
    assert first == contents(tmp_path / "two")
    again = added(lab, tmp_path / "one" / "results")
    assert (again.new, again.better, again.kept, again.files) == (0, 0, 10, 0)
    build_all(tmp_path / "one" / "results", find, lambda text: None)
    assert contents(tmp_path / "one") == first
    header = (tmp_path / "one/results/two_tasks-quick/curves.csv.gz").read_bytes()[:10]
    assert header[3:8] == bytes(5)  # no name, no time


def test_curves_keep_six_digits(lab, tmp_path):
    added(lab, tmp_path / "results")
    records = load(tmp_path / "results" / "two_tasks-quick").records
    store = Store(lab, "two_tasks")
    for run, kept in records.items():
        lines = (store.run(run).path / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        for row, stored in zip(rows, kept.rows, strict=True):
            assert stored == pytest.approx({name: row[name] for name in stored}, rel=5e-6, abs=0.0)
            assert len(repr(stored["heldout_loss"]).replace("0.", "").lstrip("0")) <= 6
            assert {"train_loss", "heldout_accuracy", "epoch"} <= stored.keys()
        assert kept.seconds == pytest.approx(sum(row["seconds"] for row in rows), abs=1e-3)
    text = gzip.decompress((tmp_path / "results/two_tasks-quick/curves.csv.gz").read_bytes()).decode()
    assert text.startswith("run,epoch,train_loss,train_accuracy,heldout_loss,heldout_accuracy")
    assert text.count("\n") == 1 + 10 * 3


def test_a_value_that_is_not_finite_is_not_a_value_that_is_absent(lab, tmp_path):
    store = Store(lab, "two_tasks")
    broken = store.run(store.manifest("quick").configs()[0].hash)
    rows = broken.metrics()
    rows[-1]["train_loss"] = None
    (broken.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    added(lab, tmp_path / "results")
    kept = load(tmp_path / "results" / "two_tasks-quick").records[broken.run].rows
    assert kept[-1]["train_loss"] is None
    assert "gradient_norm" in kept[1]
    assert "gradient_norm" not in kept[0]


def test_restoring_leaves_what_is_finished_there(lab, tmp_path):
    added(lab, tmp_path / "results")
    before = contents(lab)
    load(tmp_path / "results" / "two_tasks-quick").restore(lab)
    assert contents(lab) == before


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["results", "build", "results"]) == 2
    assert "results: no such folder" in capsys.readouterr().err
    (tmp_path / "results").mkdir()
    assert main(["results", "build", "results"]) == 0
    assert "nothing was written" in capsys.readouterr().out
    assert not list((tmp_path / "results").iterdir())
    assert main(["run", "convergence", "--size", "smoke", "--device", "cpu", "--threads", "1", "--no-clock"]) == 0
    assert main(["results", "add", "lab"]) == 0
    assert main(["results", "build"]) == 0
    capsys.readouterr()
    assert main(["results", "restore", "results/convergence-smoke", "there"]) == 0
    assert "10 of 10 runs restored" in capsys.readouterr().out
    assert main(["status", "there"]) == 0
    assert "10 finished" in capsys.readouterr().out
    assert main(["results", "add", "lab", "--size", "paper"]) == 2
    assert "it has convergence smoke" in capsys.readouterr().err


def test_restoring_never_shortens_a_curve_and_keeps_the_time(lab, tmp_path):
    added(lab, tmp_path / "results")
    evidence = load(tmp_path / "results" / "two_tasks-quick")
    restored = evidence.restore(tmp_path / "again")
    added(tmp_path / "again", tmp_path / "more")
    copied = load(tmp_path / "more" / "two_tasks-quick").records
    assert {run: one.seconds for run, one in copied.items()} == {
        run: one.seconds for run, one in evidence.records.items()
    }
    assert all(one.seconds > 0 for one in copied.values())
    run = restored.arms[0].runs[0].directory
    (run.path / "summary.json").unlink()
    whole = (run.path / "metrics.jsonl").read_text()
    shorter = replace(evidence.records[run.run], summary=None, rows=evidence.records[run.run].rows[:-1])
    record.write_run(shorter, run)
    assert (run.path / "metrics.jsonl").read_text() == whole
    record.write_run(evidence.records[run.run], run)  # one that is over replaces it
    assert run.is_finished()


def test_a_disk_that_is_full_leaves_no_half_of_a_run(lab, tmp_path, monkeypatch):
    """An empty summary would keep the run out for ever."""
    added(lab, tmp_path / "results")
    evidence = load(tmp_path / "results" / "two_tasks-quick")
    opened = open

    def full(path, mode="r", *rest, **named):
        if "w" in mode and "summary" in str(path):
            raise OSError(28, "No space left on device")
        return opened(path, mode, *rest, **named)

    monkeypatch.setattr("builtins.open", full)
    monkeypatch.setattr("pathlib.Path.write_text", lambda path, *_, **__: full(path, "w"))
    with pytest.raises(StorageError, match=r"summary\.json: No space left"):
        evidence.restore(tmp_path / "again")
    assert not [path for path in (tmp_path / "again").rglob("runs/*/*") if path.is_file()]
    monkeypatch.undo()
    assert evidence.restore(tmp_path / "again").statuses() == {"finished": 10}


def test_restoring_leaves_the_curves_of_runs_that_go_on_from_a_checkpoint_here(lab, tmp_path):
    """Cut back to the checkpoint, a curve would be joined from two trainings."""
    added(lab, tmp_path / "results")
    evidence = load(tmp_path / "results" / "two_tasks-quick")
    over, half = list(evidence.records)[:2]
    evidence.records[half] = replace(evidence.records[half], summary=None, rows=evidence.records[half].rows[:-1])
    there = Store(tmp_path / "there", "two_tasks")
    configs = [RunConfig.from_dict(evidence.records[run].config) for run in (over, half)]
    group = Group(tuple(configs))
    group.record(there.path)
    checkpoint.save(group.folder(there.path), 1, {"x": torch.zeros(2)})
    for run in (over, half):
        there.run(run).path.mkdir(parents=True)
        there.run(run).append("metrics.jsonl", [{"epoch": 0, "train_loss": 9.0}])
    evidence.restore(tmp_path / "there")
    assert there.run(over).is_finished()  # it was over: nothing is trained on top of it
    assert there.run(half).metrics() == [{"epoch": 0, "train_loss": 9.0}]
    checkpoint.remove(group.folder(there.path))
    evidence.restore(tmp_path / "there")
    assert len(there.run(half).metrics()) == len(evidence.records[half].rows)


def test_a_study_of_which_nothing_has_begun_is_not_listed(tmp_path, capsys):
    study = TwoTasks()
    lab = Store(tmp_path / "lab", "two_tasks")
    lab.write(plan(study, ask(study, "quick", None, [])))
    assert main(["results", "add", str(tmp_path / "lab"), "--into", str(tmp_path / "results")]) == 0
    assert "no run of it has begun" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()
