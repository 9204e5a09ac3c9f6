"""A part of a question now, the rest later: the same runs in the end, and until then the page says what is missing."""

import shutil

import pytest

from semfocus.cli import main
from semfocus.lab.results import Results
from semfocus.lab.store import Store

STUDY = ["run", "convergence", "--size", "smoke", "--device", "cpu", "--no-clock"]


def finished(out):
    store = Store(out, "convergence")
    (name,) = store.names()
    manifest = store.manifest(name)
    results = Results(store, manifest)
    return manifest, {(arm.label, run.seed) for arm, run in results.every_run() if run.status == "finished"}


def test_a_part_then_the_rest(tmp_path, capsys):
    small = ["--out", str(tmp_path), "train.epochs=1", "data.train=50", "data.heldout=50"]
    assert (
        main([*STUDY, "--only", "even_pairs:full", "--only", "even_pairs:top-k(5)", "--first-seeds", "1", *small]) == 0
    )
    manifest, there = finished(tmp_path)
    assert there == {("full", 0), ("top-k(5)", 0)}
    assert not manifest.complete
    shown = capsys.readouterr().out
    assert "2 of its" in shown
    assert "missing: even_pairs" in shown
    assert main([*STUDY, "--only", "even_pairs", *small]) == 0
    manifest, there = finished(tmp_path)
    assert manifest.complete
    assert {label for label, _ in there} == {arm.label for arm in manifest.arms}


def test_settings_are_not_chosen_by_half_a_grid(tmp_path):
    study = ["run", "fair", "--size", "smoke", "--device", "cpu", "--no-clock", "--out", str(tmp_path)]
    small = ["train.epochs=1", "data.train=50", "data.heldout=50"]
    full, top = "even_pairs, full, tuning", "even_pairs, top-k(5), tuning"
    store = Store(tmp_path, "fair")
    assert main([*study, "--only", full, "--first-seeds", "1", *small]) == 0
    (name,) = store.names()
    assert {arm.panel for arm in store.manifest(name).arms} == {full, top}
    assert main([*study, "--only", full, *small]) == 0
    followed = [arm.label for arm in store.manifest(name).arms if arm.panel == "even_pairs"]
    assert followed == ["full"]  # each pattern's settings are chosen as soon as its own grid is done
    manifest = store.manifest(name)
    for config in manifest.configs():
        if config.seed in (0, 1):  # as if the chosen ones had been interrupted
            shutil.rmtree(store.path / "runs" / config.hash)
    assert main([*study, "--only", "even_pairs", *small]) == 0  # the panel of what was chosen
    results = Results(store, store.manifest(name))
    assert all(run.summary is not None for run in results.arm("even_pairs", "full").runs)
    assert main([*study, "--only", top, *small]) == 0
    assert {arm.panel for arm in store.manifest(name).arms} == {full, top, "even_pairs"}
    assert store.manifest(name).complete


@pytest.mark.parametrize(
    ("name", "near"), [("even_pair", "'even_pairs'"), ("even_pairs:top-k(4)", "'even_pairs:top-k(5)'")]
)
def test_what_no_arm_has_is_one_sentence(name, near, capsys, tmp_path):
    assert main([*STUDY, "--out", str(tmp_path), "--only", name]) != 0
    error = capsys.readouterr().err
    assert repr(name) in error
    assert near in error
    assert "Traceback" not in error


def test_a_part_also_measures_what_an_earlier_one_left(tmp_path, monkeypatch):
    """Or a study would be called complete although half of its models were never measured."""
    from semfocus.studies import loss_surface

    study = ["run", "loss_surface", "--size", "smoke", "--device", "cpu", "--no-clock", "--out", str(tmp_path)]
    small = ["train.epochs=1", "data.train=50", "data.heldout=50"]
    with monkeypatch.context() as patch:
        patch.setattr(loss_surface, "measure_runs", lambda *given: None)  # as if it had been killed
        assert main([*study, "--only", "even_pairs, relu:full", *small]) == 0
    assert main([*study, "--only", "even_pairs, relu:top-k(5)", *small]) == 0
    store = Store(tmp_path, "loss_surface")
    (name,) = store.names()
    results = Results(store, store.manifest(name))
    assert results.manifest.complete
    assert all("loss_surface" in run.measured for _, run in results.every_run())
