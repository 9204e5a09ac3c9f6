"""What runs cost whose populations shared a device, went on later or began anew."""

import json
import shutil

import pytest
from two_tasks import contents, evidence, folders, unfinished

from semfocus.evidence.folder import add, load
from semfocus.training.files import StorageError


def test_processes_that_shared_a_device(store, tmp_path):
    """Their times add up to more than passed; what passed is what the runs cost."""
    total = sum(record.own_seconds for record in evidence_of(store, tmp_path / "plain").records.values())
    add(store, "quick", tmp_path / "results", wall=total / 4)
    records = evidence(tmp_path).records.values()
    assert {record.environment["sharing"] for record in records} == {4.0}
    assert sum(record.own_seconds for record in records) == pytest.approx(total / 4)
    add(store, "quick", tmp_path / "results")  # again, without it: what is known stays
    assert {record.environment["sharing"] for record in evidence(tmp_path).records.values()} == {4.0}
    with pytest.raises(StorageError, match="--wall"):
        add(store, "quick", tmp_path / "other", wall=2 * total)


@pytest.mark.parametrize("wall", [None, 0.5])
def test_processes_that_shared_a_device_and_went_on_later(store, tmp_path, wall):
    """The times before and after are each divided by how many shared the device then."""
    whole = contents(store.path)
    runs = sorted(folders(store))
    for run in runs[:3]:
        shutil.rmtree(store.path / "runs" / run)
    for run in runs[3:5]:
        unfinished(store.path / "runs" / run)
    before = sum(one.own_seconds for one in evidence_of(store, tmp_path / "before").records.values())
    add(store, "quick", tmp_path / "results", wall=before / 4)
    for name, data in whole.items():
        (store.path / name).parent.mkdir(parents=True, exist_ok=True)
        (store.path / name).write_bytes(data)
    total = sum(one.own_seconds for one in evidence_of(store, tmp_path / "plain").records.values())
    rest = (total - before) * (wall or 1.0)
    added = add(store, "quick", tmp_path / "results", wall=rest if wall else None)
    assert (added.new, added.better) == (3, 2)
    records = evidence(tmp_path).records
    assert sum(record.own_seconds for record in records.values()) == pytest.approx(before / 4 + rest, rel=1e-3)
    assert {records[run].environment.get("sharing") for run in runs[:3]} == {wall and 2.0}
    assert {records[run].environment["sharing"] for run in runs[5:]} == {4.0}
    with pytest.raises(StorageError, match="--wall"):  # nothing is new
        add(store, "quick", tmp_path / "results", wall=1.0)


def test_a_run_that_began_anew_costs_all_it_took(store, tmp_path):
    """Before training the curves of both are equal; what it took before, it took for nothing."""
    run = min(folders(store))
    whole = contents(store.path / "runs" / run)
    unfinished(store.path / "runs" / run)
    begun = json.loads((store.path / "runs" / run / "metrics.jsonl").read_text().splitlines()[-1])
    add(store, "quick", tmp_path / "results", wall=1e-3)
    for name, data in whole.items():
        (store.path / "runs" / run / name).write_bytes(data)
    path = store.path / "runs" / run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["train_loss"] += 0.125 * (row["epoch"] == begun["epoch"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    add(store, "quick", tmp_path / "results")
    record = evidence(tmp_path).records[run]
    assert record.own_seconds == record.share_of_population


def test_a_population_that_grew(store, tmp_path):
    """Its members' shares got smaller: the time since is not below 0."""
    run = min(folders(store))
    whole = contents(store.path / "runs" / run)
    unfinished(store.path / "runs" / run)
    add(store, "quick", tmp_path / "results")
    for name, data in whole.items():
        (store.path / "runs" / run / name).write_bytes(data)
    path = store.path / "runs" / run / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "population": 1000}))
    with pytest.raises(StorageError, match="took 0 s one by one"):
        add(store, "quick", tmp_path / "results", wall=1.0)
    assert add(store, "quick", tmp_path / "results").better == 1


def evidence_of(store, into):
    add(store, "quick", into)
    return load(into / "two_tasks-quick")
