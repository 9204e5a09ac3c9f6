"""The study of language models: what its arms share, what it refuses, and the paper's Penn Treebank setting."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from semfocus import Banded, Full, TopK, studies
from semfocus.cli import main
from semfocus.lab.execute import ask, execute, plan, with_what_was_recorded
from semfocus.lab.losses import log_ratio, reached
from semfocus.lab.results import Results, Run
from semfocus.lab.stats import seeds_needed
from semfocus.lab.store import Store
from semfocus.lab.study import Arm
from semfocus.language.config import LanguageConfig
from semfocus.language.trainer import LanguageTrainer
from semfocus.report.page import build
from semfocus.studies import _penn_treebank
from semfocus.studies.language_model import BUDGETS, PANEL, SIZES, TUNING, WIDTHS, LanguageModel
from semfocus.text import corpus, next_token
from semfocus.training.files import append_lines, write_json
from semfocus.training.protocol import RunConfig
from semfocus.training.strict import ConfigError, laid_over

STUDY = LanguageModel()
SMOKE = ["run", "language_model", "--size", "smoke", "--device", "cpu"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "own.txt"
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(50)]
    path.write_text("\n".join(" ".join(rng.choice(words, 8)) for _ in range(800)))
    return path


# --- what is planned ---


def test_equal_parameters_tokens_and_search_for_every_pattern():
    for size in SIZES:
        arms = STUDY.runs(size)
        by_pattern = {}
        for arm in arms:
            config = arm.config
            by_pattern.setdefault(config.pattern, set()).add(
                (config.optimiser.learning_rate, config.model.attention_scale, config.parameters, config.train)
            )
        assert len(by_pattern) == 2 + len(BUDGETS[size])
        at_scale_1 = {frozenset(x for x in found if x[1] == 1.0) for found in by_pattern.values()}
        assert len(at_scale_1) == 1  # every pattern tries the same learning rates
        assert by_pattern[Full()] == by_pattern[TopK(BUDGETS[size][0])] > by_pattern[Banded(WIDTHS[size])]
        assert {arm.config.train.tokens for arm in arms} == {SIZES[size]["train"]["tokens"]}  # as long as reported runs
        assert len({config.parameters for config in (arm.config for arm in arms)}) == 1
    assert {TopK(k) for k in (5, 16, 64, 256)} < {arm.config.pattern for arm in STUDY.runs("small")}


def test_small_is_ten_million_parameters_and_more_tokens():
    config = LanguageConfig.from_dict(SIZES["small"])
    assert 9e6 < config.parameters < 12e6
    assert config.steps * config.step_tokens == config.train.tokens >= config.parameters


def test_fewer_tokens_than_parameters_are_refused_at_small():
    config = LanguageConfig.from_dict(laid_over(SIZES["small"], {"train": {"tokens": 10_000_000}}))
    with pytest.raises(ConfigError, match=r"train.tokens is 10000000; .* at least as many tokens as the model has p"):
        STUDY.settled("small", [Arm(PANEL, "full", config)])


def test_every_plan_records_the_hash_of_its_text(text):
    manifest = plan(STUDY, ask(STUDY, "smoke", None, [f"corpus={text}"]))
    (digest,) = {config.text.sha256 for config in manifest.configs()}
    assert len(digest) == 64
    assert {config.corpus for config in manifest.configs()} == {str(text)}
    text.write_text(text.read_text() + "more\n" * 100)
    corpus.load.cache_clear()
    again = plan(STUDY, ask(STUDY, "smoke", None, [f"corpus={text}"]))
    assert digest not in {config.text.sha256 for config in again.configs()}


@pytest.mark.parametrize(
    ("size", "overrides", "says"),
    [
        ("quick", ["train.tokens=4096"], "train.tokens is 4096; 10 epochs need at least 10240"),
        ("smoke", ["train.batch=1", "train.heldout=16"], "train.diagnose is 2; 1 validation sequences are evaluated"),
    ],
)
def test_what_only_the_chosen_runs_would_refuse_is_refused_at_the_start(text, size, overrides, says):
    with pytest.raises(ConfigError, match=says):
        plan(STUDY, ask(STUDY, size, None, [f"corpus={text}", *overrides]))


def pretended(store, configs, status="finished"):
    """An executor that trains nothing."""
    for config in configs:
        write_json(store.run(config.hash).path / "summary.json", {"status": status, "epochs": 1})
        row = {"epoch": 1, "tokens": 1, "heldout_loss": 1.0, "train_seconds": 1.0}
        append_lines(store.run(config.hash).path / "metrics.jsonl", [row])


def test_overrides_meet_the_chosen_settings_all_at_once(text, tmp_path):
    """With the size's own batch so long a context would be refused."""
    question = ask(STUDY, "smoke", None, [f"corpus={text}", "model.context=64", "train.batch=1"])
    results = execute(STUDY, question, tmp_path / "lab", pretended, print)
    chosen = [a.arm.config for a in results.in_panel(PANEL)]
    assert {(one.model.context, one.train.batch) for one in chosen} == {(64, 1)}


def test_what_diverged_is_not_said_to_count_as_slow(text, tmp_path):
    """It enters no comparison."""
    question = ask(STUDY, "smoke", 1, [f"corpus={text}"])
    results = execute(STUDY, question, tmp_path / "lab", partial(pretended, status="diverged"), print)
    page = unescape(build(STUDY, results).read_text())
    assert "runs diverged." in page
    assert "A seed whose run diverged enters no comparison" in " ".join(page.split())
    assert "not converged" not in page


def test_a_text_is_where_it_was_when_the_question_was_asked(text, tmp_path, monkeypatch):
    """Also for the chosen runs of a study that is resumed from another folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(text.parent)
    question = ask(STUDY, "smoke", None, [f"corpus={text.name}"])
    manifest = plan(STUDY, question)
    monkeypatch.chdir(elsewhere)
    results = execute(STUDY, question, tmp_path / "lab", pretended, print, resumed=manifest)
    assert {a.arm.config.corpus for a in results.in_panel(PANEL)} == {str(text)}


@pytest.mark.parametrize("size", ["smoke", "ptb"])
def test_a_question_is_not_asked_again_of_another_text(text, treebank, tmp_path, size):
    """Its runs would begin anew, and its page be lost."""
    overrides = [f"corpus={text}"] if size == "smoke" else treebank
    manifest = plan(STUDY, ask(STUDY, size, None, overrides))
    store = Store(tmp_path / "lab", "language_model")
    store.write(manifest)
    before = store.manifest_path(manifest.question.name).read_bytes()
    changed = text if size == "smoke" else tmp_path / "valid.txt"
    changed.write_text(changed.read_text() + "\none two three")
    corpus.load.cache_clear()
    next_token.sentences.cache_clear()
    with pytest.raises(ConfigError, match=r"sha256 is .*; the text is another one now .* into another folder"):
        with_what_was_recorded(store, plan(STUDY, manifest.question))
    assert store.manifest_path(manifest.question.name).read_bytes() == before


# --- through the command line ---


def test_a_user_s_own_text(text, tmp_path, capsys):
    assert main([*SMOKE, "--out", str(tmp_path / "lab"), f"corpus={text}", "--seeds", "1"]) == 0
    assert "the page:" in capsys.readouterr().out
    store = Store(tmp_path / "lab", "language_model")
    (name,) = store.names()
    results = Results(store, store.manifest(name))
    assert {run.status for _, run in results.every_run()} == {"finished"}
    for _, run in results.every_run():
        config = json.loads((run.directory.path / "config.json").read_text())
        assert len(config["text"]["sha256"]) == 64
        assert run.environment["text"] == "the file own.txt"
    assert results.panels == [TUNING, PANEL]
    labels = results.labels(PANEL)
    assert labels == [
        "full",
        "full, scale tuned",
        "full, larger scale",
        "banded(5)",
        "top-k(5)",
        "top-k(5), scale tuned",
    ]
    for label in labels:  # the lowest loss in the tuning panel was chosen
        chosen = results.arm(PANEL, label).arm.config
        rivals = [a for a in results.in_panel(TUNING) if a.arm.config.pattern == chosen.pattern]
        if not label.endswith("tuned"):
            larger = label.endswith("larger scale")
            rivals = [a for a in rivals if (a.arm.config.model.attention_scale > 1.0) == larger]
        best = min(rivals, key=lambda a: min(row["heldout_loss"] for row in a.runs[0].rows))
        assert chosen.optimiser == best.arm.config.optimiser
        assert chosen.model == best.arm.config.model
    page = unescape(store.page_path(name).read_text())
    text.unlink()  # a page needs the store alone
    assert main(["report", str(tmp_path / "lab")]) == 0
    assert unescape(store.page_path(name).read_text()) == page
    for words in ("validation loss against tokens", "validation loss against seconds", "top-k(5), scale tuned"):
        assert words in page
    assert "95 %" not in page.partition("How the numbers are judged")[0].partition("At the end")[0]


def test_a_link_to_itself_is_refused(tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    assert main([*SMOKE, "--out", str(tmp_path / "lab"), f"corpus={tmp_path / 'loop'}"]) == 2
    assert "it cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"", "it is empty"),
        (b"far too short", "is too short"),
        (None, "No such file"),
    ],
)
def test_a_text_that_will_not_do_is_refused_in_one_sentence(tmp_path, capsys, content, says):
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    assert main([*SMOKE, "--out", str(tmp_path / "lab"), f"corpus={path}"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("semfocus: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("text.vocabulary=9999", "bytes have 256"),
        ("pattern.k=3", "it is what the study 'language_model' varies"),
        ("model.attention_scale=2", "it is what the study 'language_model' varies"),
        ("train.tokens=99999999", "the training text is too short for one pass"),
        ("corpsu=x", "did you mean 'corpus'"),
        ("corpus=3", "corpus is 3; it must be a string"),
        ("text.sha256=abc", "text.sha256 is abc; the text is another one now"),
    ],
)
def test_overrides_that_will_not_do_are_refused(tmp_path, capsys, override, says):
    assert main([*SMOKE, "--out", str(tmp_path / "lab"), override]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_vocabulary_larger_than_the_text_supports(text, tmp_path, capsys):
    more = [f"corpus={text}", "text.tokenizer=bpe", "text.vocabulary=5000"]
    assert main([*SMOKE, "--out", str(tmp_path / "lab"), *more]) == 2
    assert "text.vocabulary is 5000; this text gives" in capsys.readouterr().err


def test_many_machines_are_for_classifiers(tmp_path, capsys, monkeypatch):
    pytest.importorskip("ray")
    assert main([*SMOKE, "--out", str(tmp_path / "lab"), "--on", "ray"]) == 2
    assert "start language models with torchrun" in capsys.readouterr().err


def test_kill_dash_nine_and_resume(tmp_path):
    longer = ["train.tokens=3840", "train.epochs=8"]
    command = [sys.executable, "-m", "semfocus", *SMOKE, "--seeds", "1", "--out", str(tmp_path / "cut"), *longer]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    runs = tmp_path / "cut" / "language_model" / "runs"
    end = time.monotonic() + 90
    while sum(path.read_text().count("\n") for path in runs.glob("*/metrics.jsonl")) < 13:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert main(["resume", str(tmp_path / "cut"), "--device", "cpu"]) == 0
    store = Store(tmp_path / "cut", "language_model")
    (name,) = store.names()
    found = [run for _, run in Results(store, store.manifest(name)).every_run()]
    assert {run.status for run in found} == {"finished"}
    assert all([row["epoch"] for row in run.rows] == list(range(9)) for run in found)
    # The run that was cut short ended as if it had not been.
    one = min(found, key=lambda run: run.directory.path.stat().st_mtime)
    config = LanguageConfig.from_dict(json.loads((one.directory.path / "config.json").read_text()))
    (whole,) = LanguageTrainer(tmp_path / "whole").run([config])
    assert [row["heldout_loss"] for row in whole.metrics()] == [row["heldout_loss"] for row in one.rows]


# --- comparisons ---


def made_up(tmp_path, name, losses, status="finished"):
    from semfocus.training.run_directory import RunDirectory

    directory = RunDirectory(tmp_path, name)
    rows = [{"epoch": i, "tokens": 100 * i, "train_seconds": 2.0 * i, "heldout_loss": v} for i, v in enumerate(losses)]
    write_json(directory.path / "summary.json", {"status": status, "epochs": len(losses) - 1})
    append_lines(directory.path / "metrics.jsonl", rows)
    return Run(0, directory)


def test_runs_are_compared_at_the_loss_that_both_reach(tmp_path):
    slow = made_up(tmp_path, "slow", [5.0, 4.0, 3.5, 3.0])
    fast = made_up(tmp_path, "fast", [5.0, 3.5, 2.5, 2.0])
    # Both reach 3.0: the one at 300 tokens, the other between 100 (3.5) and 200 (2.5), in the middle.
    assert np.exp(log_ratio(slow, fast, "tokens")) == pytest.approx(150 / 300)
    assert np.exp(log_ratio(slow, fast, "train_seconds")) == pytest.approx(150 / 300)
    assert log_ratio(slow, fast, "tokens") == -log_ratio(fast, slow, "tokens")
    assert log_ratio(slow, slow, "tokens") == 0.0
    assert log_ratio(slow, made_up(tmp_path, "broken", [5.0, None], "diverged"), "tokens") is None
    assert reached([{"tokens": 0, "heldout_loss": 5.0}], 4.0, "tokens") is None


# --- the paper's Penn Treebank setting ---


@pytest.fixture
def treebank(tmp_path):
    """Three tiny files; the vocabulary below is what so few words support."""
    rng = np.random.default_rng(0)
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    overrides = ["task.options.vocabulary=26"]
    for name, lines in (("train", 200), ("valid", 10), ("test", 10)):
        path = tmp_path / f"{name}.txt"
        path.write_text("\n".join(" ".join(rng.choice(words, rng.integers(4, 12))) for _ in range(lines)))
        overrides.append(f"task.options.{name}={path}")
    return overrides


def test_the_paper_s_settings(treebank):
    manifest = plan(STUDY, ask(STUDY, "ptb", None, treebank))
    assert manifest.question.seeds >= seeds_needed(7)
    by_panel = {}
    for arm in manifest.arms:
        by_panel.setdefault(arm.panel, {})[arm.label] = arm.config
    assert list(by_panel) == [
        *(f"unigram, {blocks} blocks" for blocks in (8, 16, 32, 64)),
        *(f"BPE, {blocks} blocks" for blocks in (6, 10, 15)),
    ]
    for panel, configs in by_panel.items():
        assert set(configs) == {"full", "top-k(5)"}
        for config in configs.values():
            assert isinstance(config, RunConfig)
            shape = (config.model.width, config.model.mlp_width, config.model.heads, config.train.epochs)
            assert shape == ((32, 128, 1, 50) if panel.startswith("unigram") else (128, 512, 4, 120))
            assert config.task.options["pieces"] == ("unigram" if panel.startswith("unigram") else "bpe")
            assert (config.optimiser.name, config.optimiser.learning_rate, config.optimiser.decay) == ("sgd", 1.0, 0.99)
            assert config.train.batch == 128
            assert config.model_config().classes == config.model_config().vocabulary
            assert config.task.length == config.task.make().read().mean_length()
            assert len(config.task.options["sha256"]) == 64
    assert studies.get("language_model").runs("ptb")[0].config.task.options["vocabulary"] == 4096
    assert studies.get("language_model").runs("ptb")[-1].config.task.options["vocabulary"] == 10_000


def test_penn_treebank_from_three_files_to_a_page(treebank, tmp_path, monkeypatch, capsys):
    small = {"model": {"width": 8, "mlp_width": 8, "heads": 1}, "train": {"epochs": 2}}
    settings = {kind: (laid_over(found, small), (1,)) for kind, (found, _) in _penn_treebank.SETTINGS.items()}
    monkeypatch.setattr(_penn_treebank, "SETTINGS", settings)
    common = ["run", "language_model", "--size", "ptb", "--device", "cpu", "--seeds", "2", "--no-clock"]
    assert main([*common, "--out", str(tmp_path / "lab"), *treebank, "train.batch=16"]) == 0
    assert "not the paper's size" not in capsys.readouterr().out
    store = Store(tmp_path / "lab", "language_model")
    (name,) = store.names()
    results = Results(store, store.manifest(name))
    assert {run.status for _, run in results.every_run()} == {"finished"}
    assert len(list(results.every_run())) == 8
    assert all("test_loss" in run.summary for _, run in results.every_run())
    for words in ("unigram, 1 blocks", "BPE, 1 blocks", "training loss"):
        assert words in store.page_path(name).read_text()
    for path in tmp_path.glob("*.txt"):
        path.unlink()
    assert main(["report", str(tmp_path / "lab")]) == 0


def test_penn_treebank_refuses_what_will_not_do(treebank, tmp_path, capsys):
    common = ["run", "language_model", "--size", "ptb", "--out", str(tmp_path / "lab")]
    assert main(common) == 2
    assert "task.options.train is missing; give the three text files" in capsys.readouterr().err
    assert main([*common, *treebank[1:]]) == 2
    assert "task.options.vocabulary is 4096; this text supports at most" in capsys.readouterr().err
    assert main([*common, *treebank, "model.blocks=3"]) == 2
    assert "it is what size 'ptb' varies" in capsys.readouterr().err
    assert main([*common, *treebank[:-1], f"task.options.test={tmp_path / 'gone.txt'}"]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("task.length=5", "task.length cannot be overridden: it is the mean length of a training sentence"),
        ("data.train=64", "data.train cannot be overridden: it is the number of windows in task.options.train"),
        ("data.heldout=5", "data.heldout cannot be overridden: it is the number of windows in task.options.valid"),
        ('data={"test": 5}', "data cannot be overridden: data.train is the number of windows"),
        ("task.options.pieces=bpe", "task.options.pieces cannot be overridden: it is what size 'ptb' varies"),
        ("task.name=even_pairs", "task.name cannot be overridden: it is next_token at size 'ptb'"),
        ("train.batch=99999", r"train.batch is 99999; it must be at most data.train, \d{3}$"),
    ],
)
def test_penn_treebank_s_files_decide_and_no_override_is_ignored(treebank, override, says):
    with pytest.raises(ConfigError, match=says):
        plan(STUDY, ask(STUDY, "ptb", None, [*treebank, override]))


def test_a_study_of_before_that_was_refused_goes_on(treebank, tmp_path):
    question = ask(STUDY, "ptb", 1, [*treebank, "task.length=5"])
    manifest = replace(plan(STUDY, ask(STUDY, "ptb", 1, treebank)), question=question)
    assert execute(STUDY, question, tmp_path / "lab", pretended, print, resumed=manifest).manifest.arms == manifest.arms


def test_chosen_runs_of_before_go_on_with_what_is_refused_now(text, tmp_path):
    table = 'train={"batch": 2, "tokens": 4096, "epochs": 2, "heldout": 2048}'
    plain = execute(STUDY, ask(STUDY, "smoke", 1, [f"corpus={text}"]), tmp_path / "lab", pretended, print).manifest
    question = replace(plain.question, overrides=(*plain.question.overrides, table))
    with pytest.raises(ConfigError, match="train cannot be replaced as a whole"):
        plan(STUDY, question)
    manifest = replace(plain, question=question)
    again = execute(STUDY, question, tmp_path / "lab", lambda store, configs: None, print, resumed=manifest)
    assert again.manifest.arms == plain.arms


def test_a_hash_of_other_files_is_refused(treebank):
    with pytest.raises(ConfigError, match=r"task.options.sha256 is abc; the text is another one now"):
        plan(STUDY, ask(STUDY, "ptb", None, [*treebank, "task.options.sha256=abc"]))


def test_the_command_in_the_guide(tmp_path, monkeypatch):
    guide = (Path(__file__).parents[2] / "docs" / "language_model.md").read_text()
    (command,) = re.findall(r"```bash\n(.*?)\n```", guide, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()[1:]) == 0
    assert list(tmp_path.glob("lab/language_model/pages/smoke.html"))
