"""One run after another: data, curves, interruptions, breakdowns."""

import json
import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

import semfocus
from semfocus import Banded, Full, RandomK, TopK
from semfocus.language.data import Batches, refuse_to_plan, text_of
from semfocus.language.decoder import Decoder
from semfocus.language.load import load_decoder
from semfocus.language.run import LanguageRun
from semfocus.language.schedule import rate
from semfocus.language.trainer import LanguageTrainer
from semfocus.text.tokens import prepared
from semfocus.training.files import StorageError
from semfocus.training.strict import ConfigError
from semfocus.training.trainer import TrainingError

CPU = torch.device("cpu")


def train(config, out, **options):
    (directory,) = LanguageTrainer(out, **options).run([config])
    return directory


def curve(directory):
    """Everything but the clock."""
    return [{k: v for k, v in row.items() if k != "train_seconds"} for row in directory.metrics()]


def test_no_sequence_is_seen_twice_and_the_order_depends_on_the_seed_alone(tiny):
    def begins(**sections):
        config = tiny(**sections)
        return Batches(config, text_of(config), CPU).order.tolist()

    plain = begins()
    assert max(Counter(plain).values()) == 1
    assert len(plain) == 1280 // 16
    assert all(place % 16 == 0 for place in plain)
    for other in ({"pattern": TopK(3)}, {"model": {"attention_scale": 4.0}}, {"optimiser": {"learning_rate": 0.1}}):
        assert begins(**other) == plain
    assert begins(seed=1) != plain


def test_targets_are_the_next_tokens_and_validation_is_the_same_for_all_seeds(tiny):
    config = tiny()
    tokens = text_of(config)
    batches = Batches(config, tokens, CPU)
    ids, targets = batches.at(3)
    assert ids.shape == targets.shape == (4, 16)
    assert torch.equal(ids[:, 1:], targets[:, :-1])
    start = int(batches.order[3 * 4])
    assert tokens.train[start : start + 17].tolist() == [*ids[0].tolist(), int(targets[0, -1])]
    assert torch.equal(batches.evaluated, Batches(tiny(seed=5), tokens, CPU).evaluated)
    assert batches.evaluations == 2


@pytest.mark.parametrize("pattern", [Full(), TopK(3), Banded(3)], ids=lambda pattern: pattern.label)
def test_a_run_learns_and_leaves_its_curve(tiny, tmp_path, pattern):
    config = tiny(pattern=pattern, train={"tokens": 6400}, optimiser={"learning_rate": 0.01})
    directory = train(config, tmp_path)
    rows, summary = directory.metrics(), directory.summary()
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["tokens"] for row in rows] == [0, 1600, 3200, 4800, 6400]
    assert rows[0]["heldout_loss"] == pytest.approx(math.log(256), abs=0.2)
    assert rows[-1]["heldout_loss"] < rows[0]["heldout_loss"] - 1.0
    assert summary["best_heldout_loss"] == min(row["heldout_loss"] for row in rows)
    assert 0 < rows[1]["train_seconds"] < rows[-1]["train_seconds"]
    assert {"dispersion", "entropy", "kept_mass"} <= rows[0]["diagnostics"].keys() == rows[-1]["diagnostics"].keys()
    assert len(rows[-1]["diagnostics"]["kept_mass"]["layers"]) == 2
    if pattern == Full():
        assert rows[-1]["diagnostics"]["kept_mass"]["q50"] == pytest.approx(1.0, abs=1e-5)
        assert rows[-1]["diagnostics"]["mass_of_top_16"]["q50"] == pytest.approx(1.0, abs=1e-5)
    assert (directory.path / "weights.safetensors").is_file()
    environment = json.loads((directory.path / "environment.json").read_text())
    assert environment["implementation"] in ("sdpa", "reference")
    assert "Python sources" in environment["text"]
    assert not list(tmp_path.glob("groups/*"))


def test_the_validation_loss_is_the_mean_over_its_tokens(tiny, tmp_path):
    config = tiny()
    tokens = text_of(config)
    run = LanguageRun(config, tokens, tmp_path, CPU, LanguageTrainer(tmp_path).place, 1)
    total = count = 0
    with torch.no_grad():
        for number in range(run.batches.evaluations):
            ids, targets = run.batches.heldout_at(number)
            chosen = run.model(ids).log_softmax(-1).gather(-1, targets[..., None])
            total, count = total - float(chosen.sum()), count + chosen.numel()
    assert run.evaluate() == pytest.approx(total / count, rel=1e-5)
    assert count == 128


@pytest.mark.parametrize("pattern", [TopK(3), RandomK(3)], ids=lambda pattern: pattern.label)
def test_stopped_and_resumed_is_bitwise_as_if_nothing_had_happened(tiny, tmp_path, pattern):
    config = tiny(pattern=pattern)
    whole = curve(train(config, tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", stopping=lambda: True)
    (folder,) = (tmp_path / "cut" / "groups").iterdir()
    assert not list(folder.glob("*.pt"))
    assert (folder / "epoch-1.safetensors").is_file()
    # Lines after the last checkpoint are written anew.
    (metrics,) = tmp_path.glob("cut/runs/*/metrics.jsonl")
    with open(metrics, "a") as file:
        file.write('{"epoch": 2, "heldout_loss": 9.9}\n{"epoch": 3, "heldo')
    assert curve(train(config, tmp_path / "cut")) == whole
    first, second = (next(tmp_path.glob(f"{name}/runs/*/weights.safetensors")) for name in ("whole", "cut"))
    assert first.read_bytes() == second.read_bytes()


def test_checkpoints_do_not_change_a_run(tiny, tmp_path):
    config = tiny()
    assert curve(train(config, tmp_path / "a", checkpoint_seconds=0.0)) == curve(train(config, tmp_path / "b"))


def test_finished_runs_are_not_repeated(tiny, tmp_path):
    directory = train(tiny(), tmp_path)
    before = (directory.path / "summary.json").stat().st_mtime_ns
    train(tiny(), tmp_path)
    assert (directory.path / "summary.json").stat().st_mtime_ns == before


def test_a_run_that_breaks_is_recorded_as_such(tiny, tmp_path):
    config = tiny(optimiser={"learning_rate": 1e30, "clip": 1e30})
    directory = train(config, tmp_path)
    summary = directory.summary()
    assert summary["status"] == "diverged"
    assert summary["diverged_epoch"] >= 1
    assert directory.metrics()[-1]["heldout_loss"] is None


@pytest.mark.parametrize("width", [10**12, 2**53])  # no allocator promises so much
def test_a_model_beyond_all_memory_is_said_in_a_sentence(tiny, tmp_path, width):
    with pytest.raises(TrainingError, match=r"out of memory in run [0-9a-f]{16}; use a smaller train.batch, model"):
        train(tiny(model={"width": width}), tmp_path)


def test_nobody_s_generator_is_drawn_from(tiny, tmp_path):
    before = torch.get_rng_state()
    train(tiny(pattern=RandomK(3)), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("pattern", [TopK(3), RandomK(3)], ids=lambda pattern: pattern.label)
def test_a_trained_decoder_comes_back(tiny, tmp_path, pattern):
    config = tiny(pattern=pattern)
    directory = train(config, tmp_path)
    again = LanguageRun(config, text_of(config), tmp_path, CPU, LanguageTrainer(tmp_path).place, 1)
    again.model.load_state_dict(load_decoder(directory.path).state_dict())
    assert again.evaluate() == directory.summary()["last_heldout_loss"]


def test_diagnose_sees_a_decoder_and_load_run_points_to_it(tiny, tmp_path):
    config = tiny(pattern=TopK(3))
    directory = train(config, tmp_path)
    with pytest.raises(StorageError, match=r"holds a language model: semfocus.language.load.load_decoder gives it ba"):
        semfocus.load_run(directory.path)
    ids, _ = Batches(config, text_of(config), CPU).at(0)
    found = semfocus.diagnose(load_decoder(directory.path), ids, ks=(2, 4))
    assert len(found.layers) == config.model.blocks
    (directory.path / "config.json").write_text(json.dumps({"task": {"name": "even_pairs"}}))
    with pytest.raises(StorageError, match=r"holds a classifier: semfocus.load_run gives it back"):
        load_decoder(directory.path)
    (directory.path / "config.json").write_text("{")
    with pytest.raises(StorageError, match=r"config.json: "):
        load_decoder(directory.path)


def test_weights_may_be_left_out(tiny, tmp_path):
    directory = train(tiny(train={"keep_weights": False, "diagnose": 0}), tmp_path)
    assert not (directory.path / "weights.safetensors").exists()
    assert "diagnostics" not in directory.metrics()[0]
    with pytest.raises(StorageError, match=r"holds no weights; train the run to its end with train.keep_weights=true"):
        load_decoder(directory.path)


def test_attention_is_measured_on_as_many_sequences_as_asked(tiny, tmp_path):
    """Also on more than a batch has: in two batches they are the same ones as in one."""

    def measured(batch):
        config = tiny(train={"batch": batch, "diagnose": 7})
        run = LanguageRun(config, text_of(config), tmp_path, CPU, LanguageTrainer(tmp_path).place, 1)
        entropy = run._diagnosed()["entropy"]
        return [entropy["count"], entropy["mean"], *entropy["layers"]]

    assert measured(4) == pytest.approx(measured(8), rel=1e-5)
    assert measured(4)[0] == 7 * 2 * 2 * 16  # sequences, layers, heads, queries


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"train": {"diagnose": 9}}, r"train.diagnose is 9; 8 validation sequences are evaluated, so ask for 8 "),
        ({"optimiser": {"warm_up": 0.96}}, r"warm_up is 0.96; of 20 steps it leaves 1, and the rate needs 2"),
        ({"optimiser": {"warm_up": 0.99}}, r"it must be at most 0.9"),
    ],
)
def test_what_is_not_planned_any_more_is_trained_all_the_same(tiny, tmp_path, sections, says):
    config = tiny(**sections)
    for tokens in (text_of(config), None):
        with pytest.raises(ConfigError, match=says):
            refuse_to_plan(config, tokens)
    rows = train(config, tmp_path).metrics()
    assert rows[0]["diagnostics"]["entropy"]["count"] == min(config.train.diagnose, 8) * 2 * 2 * 16
    assert len(rows) == config.train.epochs + 1


def test_every_step_and_every_validation_batch_draws_anew(tiny, tmp_path, monkeypatch):
    """A random pattern's keys depend on the step; an evaluation draws the same each time."""
    config, drawn, noise = tiny(pattern=RandomK(3)), [], Decoder._noise

    def watched(self, step, rows):
        drawn.append((self.training, int(step)))
        return noise(self, step, rows)

    monkeypatch.setattr(Decoder, "_noise", watched)
    train(config, tmp_path)
    assert [step for training, step in drawn if training] == [0, *range(config.steps)]  # the first one warms up
    assert {step for training, step in drawn if not training} == {0, 1}


def test_attention_is_measured_on_the_keys_that_an_evaluation_draws(tiny, tmp_path, monkeypatch):
    """A sequence has the same batch and row in both."""
    config, drawn, noise = tiny(pattern=RandomK(3), train={"diagnose": 7}), [], Decoder._noise

    def watched(self, step, rows):
        drawn.append((int(step), rows.tolist()))
        return noise(self, step, rows)

    monkeypatch.setattr(Decoder, "_noise", watched)
    run = LanguageRun(config, text_of(config), tmp_path, CPU, LanguageTrainer(tmp_path).place, 1)
    drawn.clear()
    run.evaluate()
    evaluated = drawn.copy()
    drawn.clear()
    run._diagnosed()
    assert drawn == evaluated == [(0, [0, 1, 2, 3]), (1, [0, 1, 2, 3])]


def test_half_precision_trains(tiny, tmp_path):
    config = tiny(precision="bfloat16", pattern=TopK(3), train={"tokens": 6400}, optimiser={"learning_rate": 0.01})
    rows = train(config, tmp_path).metrics()
    assert rows[-1]["heldout_loss"] < rows[0]["heldout_loss"] - 1.0


def test_more_than_one_pass_is_refused(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"train.tokens is 900000; the training text is too short for one pass"):
        train(tiny(train={"tokens": 900_000}), tmp_path)


def test_a_validation_text_too_short_for_a_batch_and_the_advice_on_it(tiny, tmp_path):
    (tmp_path / "short.txt").write_text("one two three four\n" * 100)
    shape = {"corpus": str(tmp_path / "short.txt"), "model": {"context": 8}}
    with pytest.raises(
        ConfigError, match=r"train.batch is 40; .* 320 tokens: it has 168 in .* or lower train.batch or"
    ):
        text_of(tiny(**shape, train={"tokens": 320, "batch": 40, "epochs": 1, "heldout": 320}))
    text_of(tiny(**shape, train={"tokens": 320, "batch": 168 // 8, "epochs": 1, "heldout": 320}))


def test_attention_on_more_sequences_than_there_are_and_the_advice_on_it(tiny, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("a short line\n" * 250)
    shape = {"corpus": str(path), "train": {"diagnose": 99, "heldout": 64}}
    with pytest.raises(ConfigError, match=r"so ask for 4 or fewer, or raise train.heldout"):
        refuse_to_plan(tiny(**shape), text_of(tiny(**shape)))
    shape["train"]["heldout"] = 10_000  # it is the text that is short
    with pytest.raises(ConfigError, match=r"so ask for 16 or fewer, or raise text.megabytes or give a longer corpus"):
        refuse_to_plan(tiny(**shape), text_of(tiny(**shape)))


def test_another_text_than_planned_is_refused(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"text.sha256 is 000000000000\.\.\.; the text is another one now"):
        train(tiny(text={"sha256": "0" * 64}), tmp_path)


def test_byte_pairs_train_too(tiny, tmp_path):
    config = tiny(text={"tokenizer": "bpe", "vocabulary": 300})
    assert prepared("", 0.2, "bpe", 300).vocabulary == 300
    assert train(config, tmp_path).metrics()[0]["heldout_loss"] == pytest.approx(math.log(300), abs=0.2)


def test_the_schedule_rises_and_falls(tiny):
    config = tiny()
    rates = [rate(config, step) for step in range(config.steps)]
    assert rates.index(max(rates)) in (1, 2)
    assert max(rates) == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(rates[2:]))
