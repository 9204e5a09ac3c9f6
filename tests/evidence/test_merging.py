"""Adding again: more runs, longer ones, newer ones; and studies that are only partly there."""

import json
import shutil
import threading
from dataclasses import replace
from itertools import permutations

import pytest
from two_tasks import TwoTasks, contents, evidence, find, folders, unfinished

from semfocus.evidence.build import build_all
from semfocus.evidence.folder import add, merged_manifest
from semfocus.lab.execute import with_what_was_recorded
from semfocus.lab.missing import missing
from semfocus.lab.results import Results
from semfocus.lab.store import Manifest, Store
from semfocus.report.page import build
from semfocus.training.files import StorageError, write_json
from semfocus.training.locks import locked_folder


def test_more_runs_later(store, tmp_path):
    whole = contents(store.path)
    runs = sorted(folders(store))
    for run in runs[:3]:
        shutil.rmtree(store.path / "runs" / run)
    unfinished(store.path / "runs" / runs[3])
    first = add(store, "quick", tmp_path / "results")
    assert (first.new, len(evidence(tmp_path).records)) == (7, 7)
    assert evidence(tmp_path).records[runs[3]].status == "unfinished"
    for name, data in whole.items():
        (store.path / name).parent.mkdir(parents=True, exist_ok=True)
        (store.path / name).write_bytes(data)
    second = add(store, "quick", tmp_path / "results")
    assert (second.new, second.better, second.kept) == (3, 1, 6)
    now = evidence(tmp_path)
    assert {record.status for record in now.records.values()} == {"finished"}
    add(store, "quick", tmp_path / "at-once")
    assert contents(tmp_path / "at-once") == contents(tmp_path / "results")


def test_nothing_is_lost_to_a_poorer_folder(store, tmp_path):
    add(store, "quick", tmp_path / "results")
    before = contents(tmp_path / "results")
    runs = folders(store)
    for folder in list(runs.values())[:5]:
        unfinished(folder)
    for folder in list(runs.values())[5:]:
        shutil.rmtree(folder)
    poorer = add(store, "quick", tmp_path / "results")
    assert (poorer.new, poorer.better, poorer.kept, poorer.files) == (0, 0, 5, 0)
    assert contents(tmp_path / "results") == before


def changed(folder, date, loss):
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, "date": date}))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[-1]["train_loss"] = loss
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_newer_of_two_complete_runs_wins(store, tmp_path):
    run, folder = next(iter(folders(store).items()))
    changed(folder, "2026-05-05T00:00:00+00:00", 0.5)
    add(store, "quick", tmp_path / "results")
    changed(folder, "2026-04-04T00:00:00+00:00", 0.4)
    assert add(store, "quick", tmp_path / "results").better == 0
    assert evidence(tmp_path).records[run].rows[-1]["train_loss"] == 0.5
    changed(folder, "2026-06-06T00:00:00+00:00", 0.6)
    assert add(store, "quick", tmp_path / "results").better == 1
    assert evidence(tmp_path).records[run].rows[-1]["train_loss"] == 0.6


def test_of_two_incomplete_runs_the_longer_stays(store, tmp_path):
    run, folder = next(iter(folders(store).items()))
    text = (folder / "metrics.jsonl").read_text()
    unfinished(folder, 2)
    add(store, "quick", tmp_path / "results")
    (folder / "metrics.jsonl").write_text(text.splitlines(keepends=True)[0])
    assert add(store, "quick", tmp_path / "results").better == 0
    assert evidence(tmp_path).records[run].epoch == 1
    (folder / "metrics.jsonl").write_text(text)
    assert add(store, "quick", tmp_path / "results").better == 1
    assert evidence(tmp_path).records[run].epoch == 2


def test_measurements_of_the_same_training_join(store, tmp_path):
    run, folder = next(iter(folders(store).items()))
    (folder / "measured.json").write_text('{"a": {"x": 1.0}}')
    add(store, "quick", tmp_path / "results")
    (folder / "measured.json").write_text('{"b": {"y": 2.0}}')
    add(store, "quick", tmp_path / "results")
    assert evidence(tmp_path).records[run].measured == {"a": {"x": 1.0}, "b": {"y": 2.0}}


def test_manifests_join(store):
    plain = store.manifest("quick").to_dict()
    fewer = {**plain, "arms": plain["arms"][:2], "complete": False, "created": "2020-01-01T00:00:00+00:00"}
    for old, new in ((plain, fewer), (fewer, plain)):
        both = merged_manifest(old, new)
        assert sorted(arm["label"] for arm in both["arms"]) == sorted(arm["label"] for arm in plain["arms"])
        assert both["created"] == fewer["created"]
    assert merged_manifest(fewer, plain)["complete"]
    assert not merged_manifest(plain, fewer)["complete"]  # the newer one was planned anew, with fewer arms
    assert merged_manifest(plain, plain) == plain


def test_where_plans_differ_the_later_one_stands(store):
    """Whichever lab is added to the other: a run that is planned otherwise has another name."""
    early = store.manifest("quick").to_dict() | {"created": "2026-01-01T00:00:00+00:00"}
    arm = early["arms"][0]
    changed = {**arm, "runs": {"0": "a" * 16}, "config": {**arm["config"], "seed": 7}}
    late = {**early, "arms": [changed, *early["arms"][1:]], "created": "2026-02-01T00:00:00+00:00", "complete": False}
    for old, new in ((early, late), (late, early)):
        both = merged_manifest(old, new)
        assert both["arms"][0] == changed
        assert both["created"] == late["created"]
        assert not both["complete"]
    assert merged_manifest(late, {**early, "created": late["created"]})["arms"][0] == arm  # of one date: the second


def test_every_arm_has_the_date_of_its_own_plan(store):
    """Of three plans the last one of each arm stands, in whatever order they are joined, and after a lab wrote them."""
    plain = store.manifest("quick").to_dict()
    first, second = plain["arms"][:2]
    again, changed = ({**arm, "config": {**arm["config"], "seed": 7}} for arm in (first, second))
    january = {**plain, "arms": [first, second], "created": "2026-01-01T00:00:00+00:00", "complete": True}
    february = {**january, "arms": [first, changed], "created": "2026-02-01T00:00:00+00:00"}
    march = {**january, "arms": [again], "created": "2026-03-01T00:00:00+00:00"}
    for one, two, three in permutations((january, february, march)):
        store.manifest_path("quick").unlink()
        for manifest in (one, two):
            store.add_manifest(manifest)
        store.write(store.manifest("quick"))
        store.add_manifest(three)
        both = json.loads(store.manifest_path("quick").read_text())
        found = {(arm["panel"], arm["label"]): arm["config"] for arm in both["arms"]}
        assert [found[arm["panel"], arm["label"]] for arm in (again, changed)] == [again["config"], changed["config"]]
        assert not both["complete"]


def test_a_question_asked_again_keeps_the_dates_of_its_arms(store):
    now = store.manifest("quick")
    before = {**now.to_dict(), "arms": now.to_dict()["arms"][:1], "created": "2020-01-01T00:00:00+00:00"}
    store.add_manifest(before)
    both = json.loads(store.manifest_path("quick").read_text())
    assert both["created"] == before["created"]
    assert {arm["planned"] for arm in both["arms"]} == {now.created}
    asked = with_what_was_recorded(store, Manifest(now.question, now.arms))
    assert store.write(asked).to_dict()["arms"] == both["arms"]


def test_a_later_plan_keeps_its_seeds_whichever_is_added_last(store):
    early = store.manifest("quick").to_dict() | {"created": "2026-01-01T00:00:00+00:00"}
    late = {**early, "seeds": early["seeds"] + 1, "created": "2026-02-01T00:00:00+00:00"}
    both = merged_manifest(early, late)
    for again in (both, merged_manifest(late, early), merged_manifest(both, early)):
        assert (again["seeds"], again["created"]) == (late["seeds"], late["created"])


def test_a_plan_made_again_is_as_late_as_that(store):
    """Joined with its repetition a plan keeps its first date, and yet none made in between takes its place."""
    plain = store.manifest("quick").to_dict() | {"complete": False}
    arm = plain["arms"][0]
    others = [{**arm, "config": {**arm["config"], "seed": 7}}, *plain["arms"][1:]]
    first, third = ({**plain, "created": f"2026-01-0{day}T00:00:00+00:00"} for day in (1, 3))
    second = {**plain, "arms": others, "seeds": plain["seeds"] + 2, "created": "2026-01-02T00:00:00+00:00"}
    for one, two, three in permutations((first, second, third)):
        both = merged_manifest(merged_manifest(one, two), three)
        assert (both["seeds"], both["arms"][0]["config"]) == (plain["seeds"], arm["config"])


def test_arms_that_another_process_added_keep_their_dates(store):
    """Two processes plan the same question; the first one's follow-up has a date of its own."""
    now = store.manifest("quick")
    begun = replace(now, arms=now.arms[:-1], created="2020-01-01T00:00:00+00:00")
    store.manifest_path("quick").unlink()
    store.write(begun)
    written = json.loads(store.manifest_path("quick").read_text())
    last = now.to_dict()["arms"][-1] | {"planned": "2020-02-01T00:00:00+00:00"}
    write_json(store.manifest_path("quick"), {**written, "arms": [*written["arms"], last]})
    store.write(begun)
    assert json.loads(store.manifest_path("quick").read_text())["arms"][-1]["planned"] == last["planned"]


def test_a_full_disk_leaves_the_folder_as_it_was(store, tmp_path, monkeypatch):
    run = sorted(folders(store))[0]
    shutil.move(store.path / "runs" / run, tmp_path / run)
    add(store, "quick", tmp_path / "results")
    before = contents(tmp_path / "results")
    shutil.move(tmp_path / run, store.path / "runs" / run)
    synced = []

    def full(handle):
        synced.append(handle)
        if len(synced) > 1:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            add(store, "quick", tmp_path / "results")
    assert contents(tmp_path / "results") == before
    assert add(store, "quick", tmp_path / "results").new == 1


def test_two_who_add_wait_for_each_other(store, tmp_path):
    adding = threading.Thread(target=add, args=(store, "quick", tmp_path / "results"))
    with locked_folder(tmp_path / "results"):
        adding.start()
        adding.join(0.3)
        assert adding.is_alive()
        assert not (tmp_path / "results" / "two_tasks-quick").exists()
    adding.join()
    assert evidence(tmp_path).records


def test_restoring_joins_the_plans(store, tmp_path):
    add(store, "quick", tmp_path / "results")
    plain = store.manifest("quick").to_dict()
    arm = plain["arms"][0]
    early = {**arm, "config": {**arm["config"], "seed": 7}, "runs": {"0": "a" * 16}}
    other = {**plain, "arms": [early, *plain["arms"][1:-1]], "created": "2020-01-01T00:00:00+00:00"}
    there = Store(tmp_path / "there", "two_tasks")
    for text in (json.dumps(other), "{"):  # an earlier plan, a damaged one
        there.manifest_path("quick").parent.mkdir(parents=True, exist_ok=True)
        there.manifest_path("quick").write_text(text)
        evidence(tmp_path).restore(tmp_path / "there")
        assert json.loads(there.manifest_path("quick").read_text())["arms"] == plain["arms"]


def test_a_config_of_another_run_is_refused(store, tmp_path):
    run, folder = next(iter(folders(store).items()))
    config = json.loads((folder / "config.json").read_text())
    for wrong in ({}, {**config, "model": {**config["model"], "blocks": 9}}):
        (folder / "config.json").write_text(json.dumps(wrong))
        with pytest.raises(StorageError, match=f"{run}.*config.json"):
            add(store, "quick", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_runs_of_an_earlier_plan_go(store, tmp_path):
    add(store, "quick", tmp_path / "results")
    plain = store.manifest("quick").to_dict()
    arm = plain["arms"][0]
    config = {**arm["config"], "train": {**arm["config"]["train"], "probe_every": 1, "probe_epochs": 1}}
    plain["arms"][0] = {**arm, "config": config, "runs": {"0": "a" * 16, "1": "b" * 16}}
    store.manifest_path("quick").write_text(json.dumps(plain))
    added = add(store, "quick", tmp_path / "results")
    assert (added.new, added.dropped) == (0, 2)
    assert not set(arm["runs"].values()) & set(evidence(tmp_path).records)
    assert len(evidence(tmp_path).records) == added.kept


def test_a_partial_study_says_what_is_missing(store, tmp_path):
    manifest = store.manifest("quick")
    parity = [arm for arm in manifest.arms if arm.panel == "parity_check"]
    gone = [manifest.run_of(arm, seed) for arm in parity for seed in (0, 1)]
    begun = manifest.run_of(manifest.arms[0], 1)
    for run in gone:
        shutil.rmtree(store.path / "runs" / run)
    unfinished(store.path / "runs" / begun)
    said = missing(Results(store, manifest))
    assert said == [
        "even_pairs: 5 of 6 runs are over; full has 1 of 2 seeds",
        "parity_check: none of its 4 runs is over",
    ]
    page = build(TwoTasks(), Results(store, manifest)).read_text()
    assert all(sentence in page for sentence in said)
    (tmp_path / "README.md").write_text("<!-- results:begin -->\n<!-- results:end -->\n")
    add(store, "quick", tmp_path / "results")
    lines = []
    build_all(tmp_path / "results", find, lines.append, tmp_path)
    made = {
        name: data.decode()
        for name, data in contents(tmp_path / "results" / "two_tasks-quick").items()
        if ".gz" not in name
    }
    for name in ("claims.md", "claims.json", "index.html"):
        assert all(sentence in made[name] for sentence in said), name
    assert len(made["runs.csv"].splitlines()) == 1 + 6  # those that have begun
    assert f"{begun},even_pairs,full,full(),1,unfinished,1,2," in made["runs.csv"]
    assert "parity_check: none of its 4 runs is over" in "\n".join(lines)
    assert "Partly run: two_tasks, quick (5 of 10 runs are over)" in (tmp_path / "README.md").read_text()
    assert "| parity_check | top-k(5) against full | - | missing |" in made["claims.md"]
    assert "| parity_check | as trained here | full | top-k(5) | not over and not over | - |" in made["speed.md"]
