"""Stores that travel: whole, in parts, without weights, only what is new."""

import json
import zipfile

import pytest
import torch

from semfocus.cli import main
from semfocus.lab import archive
from semfocus.lab.archive import pack, unpack
from semfocus.lab.results import Results
from semfocus.training.files import StorageError
from semfocus.training.locks import try_lock


def contents(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in (".lock", "packed.json")
    }


def test_there_and_back(store, tmp_path):
    found, manifest = store
    packed = pack(found.path.parent, tmp_path / "x.zip")
    assert (packed.runs, packed.files) == (5, (tmp_path / "x.zip",))
    assert unpack(tmp_path / "x.zip", tmp_path / "there").runs == 5
    assert contents(tmp_path / "there" / "convergence") == contents(found.path)
    again = unpack(tmp_path / "x.zip", tmp_path / "there")
    assert (again.runs, again.skipped) == (0, 5)
    there = type(found)(tmp_path / "there", "convergence")
    assert Results(there, there.manifest("quick")).statuses() == Results(found, manifest).statuses()


def test_a_study_goes_back_into_its_own_folder(store, tmp_path):
    found, _ = store
    pack(found.path, tmp_path / "x.zip")
    own, other = (tmp_path / "there" / name for name in ("convergence", "budget"))
    (own / "manifests").mkdir(parents=True)
    assert unpack(tmp_path / "x.zip", own).runs == 5
    assert contents(own) == contents(found.path)
    (other / "manifests").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"holds the study 'convergence', and .*budget is another one"):
        unpack(tmp_path / "x.zip", other)
    assert contents(other) == {}


def test_parts_stay_below_the_limit(store, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "LARGEST", 4_000)
    packed = pack(store[0].path, tmp_path / "x.zip")
    assert len(packed.files) > 1
    assert all(file.stat().st_size <= 4_000 for file in packed.files)
    assert unpack(tmp_path / "x.zip", tmp_path / "there").runs == 5
    assert contents(tmp_path / "there" / "convergence") == contents(store[0].path)
    monkeypatch.setattr(archive, "LARGEST", 100)
    with pytest.raises(StorageError, match="alone is larger"):
        pack(store[0].path, tmp_path / "y.zip")


def test_only_what_is_new_and_without_weights(store, tmp_path):
    found, manifest = store
    for folder in (found.path / "runs").iterdir():
        (folder / "weights.safetensors").write_bytes(b"weights")
    pack(found.path, tmp_path / "first.zip")
    late = found.run(manifest.configs()[2].hash).path  # the missing one arrives
    late.mkdir(parents=True)
    (late / "config.json").write_text("{}")
    (late / "weights.safetensors").write_bytes(b"weights")
    (late / "summary.json").write_text(json.dumps({"status": "finished"}))
    packed = pack(found.path, tmp_path / "second.zip", only_new=True, weights=False)
    assert packed.runs == 1
    names = zipfile.ZipFile(tmp_path / "second.zip").namelist()
    assert f"convergence/runs/{late.name}/summary.json" in names
    assert not any("weights" in name for name in names)
    before = (tmp_path / "second.zip").read_bytes()
    with pytest.raises(StorageError, match=r"second\.zip exists"):  # what it holds counts as packed
        pack(found.path, tmp_path / "second.zip", only_new=True)
    assert (tmp_path / "second.zip").read_bytes() == before


def test_manifests_of_plugins_are_merged_without_them(store, tmp_path):
    found, manifest = store
    path = found.manifest_path(manifest.question.name)
    ours = json.loads(path.read_text()) | {"plugins": ["mine.py"]}
    extra = {**ours["arms"][0], "label": "mine"}
    extra = {**extra, "config": {**extra["config"], "pattern": {"name": "nobody_knows"}}}
    path.write_text(json.dumps({**ours, "arms": [*ours["arms"], extra]}))
    pack(found.path.parent, tmp_path / "x.zip")
    path.write_text(json.dumps(ours))
    unpack(tmp_path / "x.zip", found.path.parent)
    assert [a["label"] for a in json.loads(path.read_text())["arms"]] == [*(a["label"] for a in ours["arms"]), "mine"]


def test_snapshots_travel_as_weights_do(store, tmp_path):
    found, manifest = store
    run = found.run(manifest.configs()[0].hash)
    for epoch in (0, 10):
        run.keep_weights(epoch, {"w": torch.full((1, 2), float(epoch))})
    (run.path / "snapshots" / ".epoch-20.safetensors.1.tmp").write_bytes(b"half")  # left behind by a crash
    pack(found.path, tmp_path / "with.zip")
    unpack(tmp_path / "with.zip", tmp_path / "there")
    there = type(found)(tmp_path / "there", "convergence").run(run.run)
    assert sorted(there.snapshots()) == [0, 10]
    assert there.weights_after(10)["w"].tolist() == [[10.0, 10.0]]
    assert len(list((there.path / "snapshots").iterdir())) == 2
    pack(found.path, tmp_path / "without.zip", weights=False)
    assert not any("snapshots" in name for name in zipfile.ZipFile(tmp_path / "without.zip").namelist())


def test_a_finished_run_replaces_one_that_was_begun(store, tmp_path):
    found, _ = store
    pack(found.path, tmp_path / "x.zip")
    run = sorted(folder.name for folder in (found.path / "runs").iterdir())[0]
    begun = tmp_path / "there" / "convergence" / "runs" / run
    begun.mkdir(parents=True)
    (begun / "metrics.jsonl").write_text("half")
    assert unpack(tmp_path / "x.zip", tmp_path / "there").runs == 5
    assert (begun / "summary.json").exists()
    assert contents(begun) == contents(found.path / "runs" / run)


def test_what_came_later_follows(store, tmp_path):
    """Measurements after an earlier pack, and a manifest that has grown."""
    found, manifest = store
    pack(found.path, tmp_path / "first.zip")
    unpack(tmp_path / "first.zip", tmp_path / "there")
    run = sorted(folder for folder in (found.path / "runs").iterdir())[0]
    (run / "measured.json").write_text('{"x": 1}')
    grown = json.loads(found.manifest_path("quick").read_text())
    grown["arms"].append({**grown["arms"][0], "label": "one more"})
    found.manifest_path("quick").write_text(json.dumps(grown))
    (found.path / "clock.json").write_text(json.dumps({"here": {"a": {"milliseconds": 1}}}))
    (tmp_path / "there" / "convergence" / "clock.json").write_text(json.dumps({"there": {"b": {"milliseconds": 2}}}))
    assert pack(found.path, tmp_path / "second.zip", only_new=True).runs == 1
    unpack(tmp_path / "second.zip", tmp_path / "there")
    there = tmp_path / "there" / "convergence"
    assert (there / "runs" / run.name / "measured.json").read_text() == '{"x": 1}'
    assert len(json.loads((there / "manifests" / "quick.json").read_text())["arms"]) == len(manifest.arms) + 1
    assert set(json.loads((there / "clock.json").read_text())) == {"here", "there"}
    unpack(tmp_path / "first.zip", tmp_path / "there")  # the older archive takes nothing away
    assert len(json.loads((there / "manifests" / "quick.json").read_text())["arms"]) == len(manifest.arms) + 1


def test_what_is_measured_after_a_run_was_packed_first_is_added(store, tmp_path):
    found, _ = store
    run = min((found.path / "runs").iterdir())
    (run / "measured.json").write_text('{"x": 1}')
    pack(found.path, tmp_path / "first.zip")
    unpack(tmp_path / "first.zip", tmp_path / "there")
    there = tmp_path / "there" / "convergence" / "runs" / run.name / "measured.json"
    there.write_text('{"x": 1, "here": 2}')
    (run / "measured.json").write_text('{"x": 5, "y": NaN}')
    assert pack(found.path, tmp_path / "second.zip", only_new=True).runs == 1
    unpack(tmp_path / "second.zip", tmp_path / "there")
    assert json.loads(there.read_text()) == {"x": 1, "here": 2, "y": None}  # what is there stays
    written = there.stat().st_mtime_ns
    unpack(tmp_path / "second.zip", tmp_path / "there")
    assert there.stat().st_mtime_ns == written


def test_a_run_that_was_trained_again_is_packed_as_a_whole(store, tmp_path):
    found, _ = store
    run = min((found.path / "runs").iterdir())
    (run / "environment.json").write_text('{"date": "2026-01-01"}')
    pack(found.path, tmp_path / "first.zip")
    (run / "environment.json").write_text('{"date": "2026-01-02"}')  # as large as before, like its config
    assert pack(found.path, tmp_path / "second.zip", only_new=True).runs == 1
    unpacked = unpack(tmp_path / "second.zip", tmp_path / "there")
    assert (unpacked.runs, unpacked.skipped, unpacked.left) == (1, 0, 0)
    assert contents(tmp_path / "there" / "convergence" / "runs" / run.name) == contents(run)


def test_a_part_of_a_run_that_is_not_here_is_left_out(store, tmp_path, capsys):
    found, _ = store
    pack(found.path, tmp_path / "first.zip")
    (min((found.path / "runs").iterdir()) / "measured.json").write_text('{"x": 1}')
    pack(found.path, tmp_path / "second.zip", only_new=True)
    assert main(["unpack", str(tmp_path / "second.zip"), str(tmp_path / "there")]) == 0
    assert "0 runs added" in (said := capsys.readouterr().out)
    assert "1 left out: in training here, or only a part of them is in the archive" in said


def test_files_of_another_training_are_not_mixed_in(store, tmp_path):
    """Weights that do not belong to a curve would be measured as if they did."""
    found, _ = store
    run = min((found.path / "runs").iterdir())
    pack(found.path, tmp_path / "bare.zip")
    for name in ("ours", "theirs"):
        unpack(tmp_path / "bare.zip", tmp_path / name)
    (run / "weights.safetensors").write_bytes(b"weights")
    pack(found.path, tmp_path / "whole.zip")
    theirs = tmp_path / "theirs" / "convergence" / "runs" / run.name / "summary.json"
    theirs.write_text(json.dumps(json.loads(theirs.read_text()) | {"diverged_epoch": 7}))
    for name in ("ours", "theirs"):
        unpack(tmp_path / "whole.zip", tmp_path / name)
    assert (tmp_path / "ours" / "convergence" / "runs" / run.name / "weights.safetensors").exists()
    assert not (theirs.parent / "weights.safetensors").exists()
    (run / "measured.json").write_text('{"x": 1}')
    assert pack(found.path, tmp_path / "later.zip", only_new=True).runs == 1
    for name in ("ours", "theirs", "empty"):
        unpack(tmp_path / "later.zip", tmp_path / name)
    assert (tmp_path / "ours" / "convergence" / "runs" / run.name / "measured.json").exists()
    assert not (theirs.parent / "measured.json").exists()
    assert not (tmp_path / "empty" / "convergence" / "runs").exists()  # what was measured on a run is no run


def test_nothing_of_others_is_touched(store, tmp_path):
    (tmp_path / "x-2.zip").write_text("precious")
    half = store[0].path / "runs" / ".0123456789abcdef.1.tmp"
    half.mkdir()
    (half / "summary.json").write_text("{}")
    packed = pack(store[0].path, tmp_path / "x.zip")
    assert packed.runs == 5
    assert (tmp_path / "x-2.zip").read_text() == "precious"
    assert not any(".tmp" in name for name in zipfile.ZipFile(tmp_path / "x.zip").namelist())
    (tmp_path / "folder.zip").mkdir()
    with pytest.raises(StorageError):
        pack(store[0].path, tmp_path / "folder.zip")
    assert not list(tmp_path.glob(".folder.zip*"))


def test_a_run_that_is_being_trained_is_left_to_its_trainer(store, tmp_path):
    found, _ = store
    pack(found.path, tmp_path / "x.zip")
    run = sorted(folder.name for folder in (found.path / "runs").iterdir())[0]
    there = tmp_path / "there" / "convergence"
    group = there / "groups" / "0123456789abcdef"
    group.mkdir(parents=True)
    (group / "group.json").write_text(json.dumps({"runs": [run], "configs": [], "threads": 1}))
    with try_lock(group / ".lock"):
        assert unpack(tmp_path / "x.zip", tmp_path / "there").left == 1
        assert not (there / "runs" / run).exists()  # it has been claimed, and begins any moment
        (there / "runs" / run).mkdir()
        (there / "runs" / run / "metrics.jsonl").write_text("")
        assert unpack(tmp_path / "x.zip", tmp_path / "there").skipped > 0
        assert (there / "runs" / run / "metrics.jsonl").read_text() == ""
    assert unpack(tmp_path / "x.zip", tmp_path / "there").runs == 1


def test_arms_of_two_archives_come_together(made_up, tmp_path):
    """Two machines that each chose a follow-up of their own."""
    for number, label in enumerate(("top-k(5)", "top-k(9)")):
        there, _ = made_up({("even_pairs", "full"): [40], ("even_pairs", label): [10]})
        pack(there.path, tmp_path / f"{number}.zip")
        unpack(tmp_path / f"{number}.zip", tmp_path / "both")
    both = type(there)(tmp_path / "both", "convergence")
    manifest = both.manifest("quick")
    assert [arm.label for arm in manifest.arms] == ["full", "top-k(5)", "top-k(9)"]
    assert Results(both, manifest).statuses() == {"finished": 3}
