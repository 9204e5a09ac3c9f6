"""Exponents and distances on stores whose truth is known, because they were made up."""

import json
import math

import pytest
import torch

from semfocus import studies
from semfocus.lab.cost import steps_per_epoch
from semfocus.lab.drift import distance
from semfocus.lab.execute import ask, execute, on_this_machine, plan
from semfocus.lab.results import Results
from semfocus.lab.store import Store
from semfocus.report.page import build
from semfocus.studies.plateau import _on_common_lengths, exponent, exponents, time_of, times
from semfocus.studies.twins import log_ratio_at_the_end, log_ratio_matched, matched, twin_of
from semfocus.training.files import StorageError, append_lines, write_json
from semfocus.training.progress import Progress

SEEDS = 6


def made_up(root, study, accuracy, overrides=()):
    """A store of size quick in which a run's training accuracy at an epoch is ``accuracy(arm, seed, epoch)``."""
    manifest = plan(study, ask(study, "quick", None, overrides))
    store = Store(root, study.name)
    store.write(manifest)
    for arm in manifest.arms:
        for seed in manifest.seeds_of(arm):
            directory = store.run(manifest.run_of(arm, seed))
            write_json(directory.path / "config.json", arm.with_seed(seed).to_dict())
            rows = [
                {
                    "epoch": epoch,
                    "train_loss": 0.1,
                    "train_accuracy": (found := accuracy(arm, seed, epoch)),
                    "heldout_loss": 0.1,
                    "heldout_accuracy": found - 0.1,
                }
                for epoch in range(arm.config.train.epochs + 1)
            ]
            append_lines(directory.path / "metrics.jsonl", rows)
            per_epoch = steps_per_epoch(arm.config)
            probes = [
                {"epoch": -(-step // per_epoch), "step": step, "train_accuracy": accuracy(arm, seed, step // per_epoch)}
                for step in arm.config.train.probed_steps(per_epoch)
            ]
            append_lines(directory.path / "probe.jsonl", probes)
            (directory.path / "summary.json").write_text(json.dumps({"status": "finished"}))
    return Results(store, manifest)


# --- plateau ---

#: Exponents of the made-up times; T = (length / 6) ** b * 4, in epochs.
EXPONENTS = {"full": 2.0, "full x 4": 0.5, "top-k(5)": 1.0}


def power_law(never=lambda label, length, seed: False):
    def accuracy(arm, seed, epoch):
        length = arm.config.task.length
        time = 4 * (length / 6) ** (EXPONENTS[arm.label] + 0.05 * (seed - 2.5))
        return 0.96 if epoch >= round(time) and not never(arm.label, length, seed) else 0.5

    return accuracy


def test_the_slope_of_a_power_law():
    assert exponent({10: 3.0, 20: 12.0, 40: 48.0}) == pytest.approx(2.0)
    assert exponent({10: 3.0, 20: None, 40: 48.0, 80: 192.0}) == pytest.approx(2.0)  # what is censored is left out
    assert exponent({10: 3.0, 20: 12.0, 40: None, 80: None}) is None


def test_exponents_are_found_and_judged(tmp_path):
    study = studies.get("plateau")
    results = made_up(tmp_path, study, power_law())
    for label, wanted in EXPONENTS.items():
        found = exponents(results, "even_pairs", label)
        assert sorted(found) == list(range(SEEDS))
        assert sum(found.values()) / SEEDS == pytest.approx(wanted, abs=0.15)  # times are whole epochs
    judged = [claim.judge(results) for claim in study.claims(results)]
    assert [j.verdict for j in judged] == ["confirmed"] * 3
    assert judged[0].lines[0].shown.startswith("-")  # "above 0" is judged as "minus it below 0"
    assert "exponent" in build(study, results).read_text()


def test_sharper_is_refuted_where_it_grows_faster(tmp_path):
    study = studies.get("plateau")
    swapped = {"full": "full x 4", "full x 4": "full", "top-k(5)": "full x 4"}
    law = power_law()

    def accuracy(arm, seed, epoch):
        exchanged = type(arm)(arm.panel, swapped[arm.label], arm.config)
        return law(exchanged, seed, epoch)

    results = made_up(tmp_path, study, accuracy)
    assert [claim.judge(results).verdict for claim in study.claims(results)] == ["confirmed", "refuted", "undecided"]


def test_censored_seeds_are_counted_and_those_with_two_lengths_have_no_exponent(tmp_path):
    study = studies.get("plateau")
    results = made_up(
        tmp_path, study, power_law(lambda label, n, seed: label == "full" and n > (8 if seed == 0 else 12))
    )
    assert sorted(exponents(results, "even_pairs", "full")) == [1, 2, 3, 4, 5]
    assert times(results, "even_pairs", "full")[0][12] is None
    common = _on_common_lengths(results, "even_pairs", "top-k(5)")
    assert sorted(common) == [1, 2, 3, 4, 5]
    same = {n: times(results, "even_pairs", "top-k(5)")[3][n] for n in (6, 8, 12)}
    assert common[3] == pytest.approx(exponent(same) - exponents(results, "even_pairs", "full")[3])
    judged = [claim.judge(results) for claim in study.claims(results)]
    assert {j.verdict for j in judged} == {"undecided"}  # five seeds decide nothing
    assert "7 of 24: 1 at length 12, 6 at length 16" in build(study, results).read_text()


def test_no_exponent_at_all_is_said_and_not_called_unfinished(tmp_path):
    study = studies.get("plateau")
    results = made_up(tmp_path, study, lambda arm, seed, epoch: 0.5)
    for claim in study.claims(results):
        (line,) = claim.judge(results).lines
        assert (line.outcome, line.note) == ("undecided", "no seed converged at 3 lengths or more")


def test_probes_tell_times_within_an_epoch(tmp_path):
    results = made_up(tmp_path, studies.get("plateau"), power_law())
    arm = results.arms[0]
    run, steps = arm.runs[0], steps_per_epoch(arm.config)
    assert time_of(run, steps) == 4.0
    probes = [{"epoch": 3, "step": 2 * steps + 20, "train_accuracy": 0.96}]
    append_lines(run.directory.path / "probe.jsonl", probes)
    again = Results(results.store, results.manifest).arms[0]
    assert time_of(again.runs[0], steps) == pytest.approx(2 + 20 / steps)
    times = again.times()  # what pages and claims compare
    assert (times.times[again.runs[0].seed], times.resolution) == (2 + 20 / steps, 20 / steps)
    assert again.times("heldout").resolution == 1.0


def test_where_no_probe_is_ever_made_evaluations_alone_count(tmp_path):
    results = made_up(tmp_path, studies.get("plateau"), power_law(), ["train.probe_every=100000"])
    assert not (results.arms[0].runs[0].directory.path / "probe.jsonl").read_text()
    assert results.arms[0].times().resolution == 1.0


def test_a_run_without_all_its_probes_is_damaged(tmp_path):
    results = made_up(tmp_path, studies.get("plateau"), power_law())
    path = results.arms[0].runs[0].directory.path / "probe.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(StorageError, match=r"probe\.jsonl is damaged"):
        Results(results.store, results.manifest).arms[0].times()


# --- twins ---


def test_distances_by_hand():
    one = {"a": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([[4.0]])}
    other = {"a": torch.tensor([[3.0, 2.0]]), "b": torch.tensor([[5.0]])}
    assert distance(one, other) == pytest.approx({"distance": 5**0.5, "norm": 5.0, "relative": 5**0.5 / 5})
    assert distance(one, one)["distance"] == 0.0
    with pytest.raises(ValueError, match=r"\['b'\]"):
        distance(one, {"a": one["a"]})


#: Full attention climbs by a hundredth an epoch and drifts twice as fast as top-k, which climbs by two.
CLIMB = {"full": 0.01, "full x 4": 0.02, "banded(5)": 0.0, "top-k(5)": 0.02}
DRIFT = {"full": 0.2, "full x 4": 0.1, "banded(5)": 0.1, "top-k(5)": 0.1}


@pytest.fixture
def drifting(tmp_path):
    results = made_up(
        tmp_path,
        studies.get("twins"),
        lambda arm, seed, epoch: 0.5 + CLIMB[arm.label.removesuffix(", twin")] * epoch,
        ["train.epochs=20"],
    )
    for arm in results.arms:
        label = arm.label.removesuffix(", twin")
        if label != arm.label:
            for run in arm.runs:
                drift = DRIFT[label] * (1 + 0.01 * run.seed)
                found = {str(epoch): {"relative": drift * epoch, "loss_mean": drift} for epoch in range(21)}
                write_json(run.directory.path / "measured.json", {"twins": found})
    return Results(results.store, results.manifest)


def test_the_end_and_equal_accuracy_are_two_comparisons(drifting):
    study = studies.get("twins")
    ends = log_ratio_at_the_end(drifting, "even_pairs", "top-k(5)")
    assert ends == pytest.approx(dict.fromkeys(range(SEEDS), math.log(1 / 2)))
    # Full attention ends at 0.7, where top-k was after half as many epochs.
    ours, full = matched(drifting, "even_pairs", "top-k(5)")[0]
    assert (ours[0], full[0]) == (10, 20)
    assert log_ratio_matched(drifting, "even_pairs", "top-k(5)")[0] == pytest.approx(math.log(1 / 4))
    # A pattern that learns nothing is compared at its first snapshot after the beginning, where twins differ.
    assert [point[0] for point in matched(drifting, "even_pairs", "banded(5)")[0]] == [1, 1]
    judged = [claim.judge(drifting) for claim in study.claims(drifting)]
    assert [j.verdict for j in judged] == ["confirmed", "confirmed"]
    assert [j.lines[0].shown.split(" ")[0] for j in judged] == ["0.5", "0.25"]
    page = build(study, drifting).read_text()
    assert "70.0\u00a0%" in page or "70.0 %" in page


def test_a_real_pair_is_measured_once(tmp_path):
    study = studies.get("twins")
    question = ask(study, "smoke", None, ())
    results = execute(study, question, tmp_path, on_this_machine("cpu", 1, Progress(None)), lambda _: None)
    said = []
    study.measure(results, "cpu", said.append)
    assert any("8 trained models" in line for line in said)
    twin = results.arm("even_pairs", twin_of("full")).runs[0]
    first = results.arm("even_pairs", "full").runs[0]
    found = json.loads((twin.directory.path / "measured.json").read_text())["twins"]
    assert list(found) == ["0", "1", "2"]
    assert (found["0"]["distance"], found["0"]["loss_max"]) == (0.0, 0.0)  # twins begin equal
    a, b = (run.directory.weights_after(2) for run in (first, twin))
    apart = torch.cat([(a[name] - b[name]).double().flatten() for name in a]).norm()
    norm = torch.cat([a[name].double().flatten() for name in a]).norm()
    assert found["2"]["relative"] == pytest.approx(float(apart / norm), rel=1e-6)
    assert 0 < found["2"]["loss_mean"] <= found["2"]["loss_max"]
    # The page needs the store alone: neither weights nor snapshots.
    said.clear()
    study.measure(Results(results.store, results.manifest), "cpu", said.append)
    assert said == []
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    again = Results(results.store, results.manifest)
    study.measure(again, "cpu", said.append)
    assert said == []
    assert log_ratio_at_the_end(again, "even_pairs", "top-k(5)").keys() == {0, 1}
