"""Folders: what is written comes back, and nothing else becomes a file name."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import semfocus
from semfocus.cli import main
from semfocus.lab.cost import Clock, clock_key
from semfocus.lab.execute import ask, complete, execute, on_this_machine, plan
from semfocus.lab.results import Results
from semfocus.lab.store import Manifest, Question, Store, safe, stores
from semfocus.report.speed import section
from semfocus.studies.convergence import Convergence
from semfocus.studies.fair import Fair
from semfocus.studies.selection_stability import SelectionStability
from semfocus.training.files import StorageError, write_json
from semfocus.training.locks import try_lock
from semfocus.training.progress import Progress

QUIET = Progress(None)


def smoke(root, *, overrides=(), seeds=None, train=None):
    study = Convergence()
    question = ask(study, "smoke", seeds, overrides)
    return execute(study, question, root, train or on_this_machine("cpu", 1, QUIET), lambda _: None)


def test_a_manifest_comes_back(tmp_path):
    study = Convergence()
    manifest = plan(study, ask(study, "quick", None, ["model.width=16"]))
    store = Store(tmp_path, "convergence")
    store.write(manifest)
    assert store.names() == [manifest.question.name]
    assert store.manifest(manifest.question.name) == manifest
    assert manifest.question.name.startswith("quick-")


def test_names_tell_questions_apart():
    study = Convergence()
    plain = ask(study, "quick", None, [])
    assert plain.name == "quick"
    assert ask(study, "quick", study.sizes["quick"].seeds, []).name == "quick"
    names = {plain.name, *(ask(study, "quick", *rest).name for rest in ((3, []), (None, ["model.width=16"]), (4, [])))}
    assert len(names) == 4


def test_running_again_repeats_nothing(tmp_path):
    asked = []

    def counting(store, configs):
        asked.append([c.hash for c in configs if not store.run(c.hash).is_finished()])
        on_this_machine("cpu", 1, QUIET)(store, configs)

    first = smoke(tmp_path, train=counting)
    again = smoke(tmp_path, train=counting)
    assert len(asked[0]) == 10
    assert asked[1] == []
    assert first.manifest == again.manifest
    more = smoke(tmp_path, seeds=3, train=counting)  # another question shares the runs of the first
    assert len(asked[2]) == 5
    assert more.store.names() == sorted(["smoke", more.question.name])
    assert len(Results(first.store, first.store.manifest("smoke")).arms[0].runs) == 2  # and its page stays its own


def test_a_trained_model_comes_back(tmp_path, monkeypatch):
    found = smoke(tmp_path, overrides=["train.epochs=1"])
    run = found.arms[-1].runs[0]
    model = semfocus.load_run(run.directory.path)
    logits = model(semfocus.tasks.get("even_pairs").sample(__import__("numpy").random.default_rng(0), 4, 8).tokens)
    assert logits.shape == (1, 4, 1, 2)
    assert not model.training
    monkeypatch.chdir(run.directory.path)
    assert semfocus.load_run(".").patterns == model.patterns
    with pytest.raises(StorageError, match="no run directory"):
        semfocus.load_run(tmp_path)
    (run.directory.path / "weights.safetensors").unlink()
    with pytest.raises(StorageError, match="no weights"):
        semfocus.load_run(run.directory.path)


def test_pandas_needs_none_of_us(tmp_path):
    found = smoke(tmp_path, overrides=["train.epochs=1"])
    lines = (found.arms[0].runs[0].directory.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1]


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "a b", "x" * 200, "é", "a\n"])
def test_unsafe_names_are_refused(name):
    with pytest.raises(StorageError):
        safe(name)


def test_a_damaged_manifest_is_one_sentence(tmp_path):
    store = Store(tmp_path, "convergence")
    store.write(Manifest(Question("convergence", "quick", 1), ()))
    for text in ("{", "[]", '{"study": 1}'):
        store.manifest_path("quick").write_text(text)
        with pytest.raises(StorageError, match=r"quick\.json is damaged"):
            store.manifest("quick")
    for change in ({"seeds": None}, {"seeds": "1"}, {"created": None}):
        plain = Manifest(Question("convergence", "quick", 1), ()).to_dict() | change
        store.manifest_path("quick").write_text(json.dumps(plain))
        with pytest.raises(StorageError, match=r"quick\.json is damaged"):
            store.manifest("quick")


@pytest.mark.parametrize("wrong", [{}, {"train_accuracy": "high"}])
def test_a_curve_without_its_numbers(tmp_path, wrong):
    found = smoke(tmp_path, overrides=["train.epochs=1"])
    path = found.arms[0].runs[0].directory.path / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        del row["train_accuracy"]
    path.write_text("".join(json.dumps(row | wrong) + "\n" for row in rows))
    with pytest.raises(StorageError, match=r"metrics\.jsonl.*train_accuracy"):
        Results(found.store, found.manifest).arms[0].times()


def test_folders_without_a_study(tmp_path):
    with pytest.raises(StorageError, match="no such folder"):
        stores(tmp_path / "none")
    with pytest.raises(StorageError, match="holds no study"):
        stores(tmp_path)


def test_a_damaged_manifest_is_mended_by_running_again(tmp_path):
    first = smoke(tmp_path, overrides=["train.epochs=1"])
    path = first.store.manifest_path(first.question.name)
    path.write_text("{")
    smoke(tmp_path, overrides=["train.epochs=1"])
    assert first.store.manifest(first.question.name).arms == first.manifest.arms


@pytest.mark.parametrize("text", ["", "garbage\n", "[]\n", "{}\n", "null\n"])
def test_a_finished_run_without_its_curve_is_damaged_not_slow(tmp_path, text):
    found = smoke(tmp_path, overrides=["train.epochs=1"])
    run = found.arms[0].runs[0].directory.path
    (run / "metrics.jsonl").write_text(text)
    with pytest.raises(StorageError, match=r"metrics\.jsonl is damaged"):
        Results(found.store, found.manifest).arms[0].times()


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[1]", '"x"', "null"])
def test_damaged_summaries_and_other_tables(tmp_path, text):
    found = smoke(tmp_path, overrides=["train.epochs=1"])
    run = found.arms[0].runs[0].directory.path
    for name in ("measured.json", "environment.json"):
        (run / name).write_text(text)
    again = Results(found.store, found.manifest).arms[0].runs[0]
    assert again.measured == {}
    with pytest.raises(StorageError, match=r"environment\.json is damaged"):  # its origin is lost
        _ = again.environment
    (found.store.path / "clock.json").write_text(text)
    assert Clock(found.store.path / "clock.json").get(found.arms[0].config) is None
    (run / "summary.json").write_text(text)
    with pytest.raises(StorageError, match=r"summary\.json is damaged"):
        Results(found.store, found.manifest).statuses()


def test_a_clock_with_something_else_in_it(tmp_path):
    found = smoke(tmp_path, overrides=["train.epochs=1"])
    (found.store.path / "clock.json").write_text(json.dumps({"here": {clock_key(found.arms[0].config): 3.5}}))
    assert "Steps were timed" not in section(found, []).text


def test_follow_ups_survive_an_interrupted_second_run(tmp_path):
    study = Fair()
    question = ask(study, "smoke", None, ())
    train = on_this_machine("cpu", 1, QUIET)
    whole = execute(study, question, tmp_path, train, lambda _: None)

    def interrupted(store, configs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(study, question, tmp_path, interrupted, lambda _: None)
    assert whole.store.manifest("smoke").arms == whole.manifest.arms


def test_what_another_process_chose_meanwhile_is_what_is_trained(tmp_path, monkeypatch):
    """Its arm is the one that the manifest keeps."""
    choose = Fair.follow_up

    def too_late(study, size, results):
        ours = choose(study, size, results)
        config = ours[0].config
        theirs = replace(ours[0], config=replace(config, optimiser=replace(config.optimiser, learning_rate=0.0123)))
        results.store.write(results.store.manifest("smoke"), [theirs])
        return ours

    monkeypatch.setattr(Fair, "follow_up", too_late)
    study = Fair()
    train = on_this_machine("cpu", 1, QUIET)
    found = execute(study, ask(study, "smoke", None, ()), tmp_path, train, lambda _: None)
    assert 0.0123 in {a.config.optimiser.learning_rate for a in found.arms}
    assert all(run.summary is not None for _, run in found.every_run())


def test_what_is_not_complete_is_resumed(tmp_path, capsys):
    study = SelectionStability()
    execute(study, ask(study, "smoke", None, ()), tmp_path, on_this_machine("cpu", 1, QUIET), lambda _: None)
    assert main(["resume", str(tmp_path), "--device", "cpu", "--no-clock"]) == 0  # trained, but not yet measured
    assert "measuring" in capsys.readouterr().out
    assert main(["resume", str(tmp_path), "--device", "cpu", "--no-clock"]) == 0
    assert "nothing to resume" in capsys.readouterr().out


def test_other_plugins_are_other_questions(tmp_path):
    study = Convergence()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    names = set()
    for folder in "ab":
        path = tmp_path / folder / "p.py"
        path.write_text(f"x = {folder!r}")
        names.add(ask(study, "smoke", None, (), [str(path)]).name)
    assert len(names) == 2


def test_times_of_different_devices_do_not_mix(tmp_path):
    config = Convergence().runs("smoke")[0].config
    (tmp_path / "clock.json").write_text(json.dumps({"another machine": {clock_key(config): {"milliseconds": 99.0}}}))
    assert Clock(tmp_path / "clock.json", torch.device("cpu")).get(config) is None
    assert Clock(tmp_path / "clock.json").get(config) == 99.0  # only to read


def test_processes_that_time_steps_keep_each_other_s(tmp_path, monkeypatch):
    monkeypatch.setattr("semfocus.lab.cost.time_step", lambda config, device: 7.0)
    first, second = (arm.config for arm in Convergence().runs("smoke")[:3:2])
    path = tmp_path / "clock.json"
    mine, theirs = Clock(path, torch.device("cpu")), Clock(path, torch.device("cpu"))
    mine.measure(first)
    theirs.measure(second)  # read the file before mine was there
    assert [Clock(path, torch.device("cpu")).get(config) for config in (first, second)] == [7.0, 7.0]


def test_a_run_that_nobody_trains_is_not_called_running(made_up, capsys):
    store, manifest = made_up({("even_pairs", "full"): [5, 5, 5]}, missing=[("full", 2)])
    finished, begun, waiting = (config.hash for config in manifest.configs())
    (store.run(begun).path / "summary.json").unlink()

    def said():
        assert main(["status", str(store.path)]) == 0
        return capsys.readouterr().out.splitlines()[0].partition("3 runs, ")[2]

    assert said() == "1 finished, 1 stopped, 1 waiting"
    lock = store.path / "groups" / "g" / ".lock"
    with try_lock(lock):
        write_json(lock.with_name("group.json"), {"runs": [finished, begun, waiting]})
        assert said() == "1 finished, 2 running"
    assert said() == "1 finished, 1 stopped, 1 waiting"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("manifests", ["status"]),
        ("manifests", ["resume"]),
        ("runs", ["pack", "x.zip"]),
        ("manifests/quick.json", ["pack", "x.zip"]),
        ("runs/RUN/summary.json", ["pack", "x.zip"]),
        ("runs/RUN/config.json", ["results", "add", "--into", "x"]),
        ("runs/RUN/environment.json", ["results", "add", "--into", "x"]),
    ],
    ids=str,
)
def test_what_may_not_be_read_is_named(made_up, monkeypatch, capsys, file, words):
    store, manifest = made_up({("even_pairs", "full"): [1]}, epochs=2)
    closed = store.path / file.replace("RUN", manifest.configs()[0].hash)

    def guarded(function):
        def guard(path, *arguments, **options):
            if Path(path) == closed:
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *arguments, **options)

        return guard

    for owner, name in ((os, "listdir"), (Path, "read_bytes"), (Path, "read_text")):
        monkeypatch.setattr(owner, name, guarded(getattr(owner, name)))
    monkeypatch.chdir(store.path.parent)
    verb, *rest = words[1:] if words[0] == "results" else words
    assert main([*words[: words.index(verb) + 1], str(store.path), *rest]) == 2
    error = capsys.readouterr().err
    assert f"{closed}: Permission denied" in error
    assert "write" not in error
    assert error.count("\n") == 1


def test_a_study_s_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "convergence").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StorageError, match=r"cannot read .*convergence: Permission denied"):
        stores(tmp_path)


def test_an_archive_that_may_not_be_read_is_named(tmp_path, monkeypatch, capsys):
    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "x.zip").touch()
    monkeypatch.setattr("semfocus.lab.archive.zipfile.ZipFile", closed)
    assert main(["unpack", str(tmp_path / "x.zip"), str(tmp_path / "lab")]) == 2
    assert capsys.readouterr().err == f"semfocus: {tmp_path / 'x.zip'}: Permission denied\n"


def test_arms_that_two_processes_add_are_both_kept(made_up):
    """Each has read the manifest before the other wrote."""
    store, whole = made_up({("even_pairs", label): [10] for label in ("full", "top-k(5)", "top-k(9)")})
    plan, (one, two) = replace(whole, arms=whole.arms[:1]), whole.arms[1:]
    store.manifest_path("quick").unlink()
    first, second = store.write(plan), store.write(plan)
    assert store.write(first, [one]).arms == whole.arms[:2]
    assert store.write(second, [two]).arms == whole.arms
    complete(Results(store, plan))  # whoever ends last knows of one arm only
    assert store.manifest("quick") == replace(whole, complete=True)
    store.run(two.with_seed(0).hash).path.joinpath("summary.json").unlink()
    complete(Results(store, plan))
    assert not store.manifest("quick").complete
    other = replace(whole, arms=whole.arms[1:])  # another plan
    assert store.write(other).arms == other.arms


def test_a_curve_that_lacks_an_epoch_is_damaged(made_up):
    """The missing line might have been the one at which it converged."""
    store, manifest = made_up({("even_pairs", "full"): [40]})
    path = store.run(manifest.configs()[0].hash).path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:40] + lines[41:]))
    with pytest.raises(StorageError, match=r"metrics\.jsonl is damaged"):
        Results(store, manifest).arms[0].times()
