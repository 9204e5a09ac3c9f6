"""The command line, as a person meets it."""

import json
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from semfocus.cli import main
from semfocus.contract import CHECKS

TINY = """
preset = "paper"
[task]
name = "even_pairs"
length = 8
[pattern]
name = "top_k"
k = 3
[model]
width = 8
blocks = 1
[data]
train = 50
heldout = 20
[train]
epochs = 2
"""


def test_help_does_not_wait_for_torch():
    code = (
        "import sys, semfocus.cli\ntry:\n semfocus.cli.main(['--help'])\nfinally:\n assert 'torch' not in sys.modules"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "train" in out
    assert "check" in out


def test_an_unknown_option_is_named_without_the_overrides_beside_it(capsys):
    with pytest.raises(SystemExit):
        main(["run", "fair", "--size", "smoke", "model.width=8", "--frobnicate"])
    assert capsys.readouterr().err.endswith("unrecognized arguments: --frobnicate\n")


def test_train_twice(tmp_path, capsys):
    (tmp_path / "run.toml").write_text(TINY)
    command = ["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), "--seeds", "2", "--device", "cpu"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert first.count("finished") == 2
    assert main(command) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "finished" in line] == [
        line for line in first.splitlines() if "finished" in line
    ]
    seeds = {json.loads(path.read_text())["seed"] for path in (tmp_path / "out" / "runs").glob("*/config.json")}
    assert seeds == {0, 1}


def test_python_dash_m():
    run = subprocess.run([sys.executable, "-m", "semfocus", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("semfocus ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TINY.replace("width", "widht"), ["run.toml", "model.widht", "'width'"]),
        (TINY.replace("even_pairs", "evenpairs"), ["task.name", "'even_pairs'"]),
        (TINY.replace("[train]", "[train]\nlearning_rate = 1"), ["train.learning_rate", "'optimiser.learning_rate'"]),
        (TINY.replace("[model]", f"[model]\nheads = {10**23}"), ["model.heads", "at most"]),
        ("nonsense", ["run.toml"]),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(tmp_path, capsys, text, words):
    (tmp_path / "run.toml").write_text(text)
    assert main(["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
    assert "Traceback" not in error
    assert error.count("\n") == 1


def test_other_mistakes(tmp_path, capsys):
    assert main(["train", str(tmp_path / "none.toml"), "--out", str(tmp_path)]) == 2
    assert "none.toml" in capsys.readouterr().err
    (tmp_path / "run.toml").write_text(TINY)
    (tmp_path / "file").write_text("")
    assert main(["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "file")]) == 2
    assert "cannot write into" in capsys.readouterr().err
    for seeds in ("0", "9" * 20):
        with pytest.raises(SystemExit) as caught:
            main(["train", "x", "--out", "y", "--seeds", seeds])
        assert caught.value.code == 2
    for pattern, said in (("banded(3, global_tokens=99999999)", "at most"), ("top_k(k=3, k=4)", "k is given twice")):
        assert main(["show", pattern]) == 2
        assert said in capsys.readouterr().err


GOOD_PATTERN = """
    from dataclasses import dataclass
    import torch, semfocus

    @semfocus.register
    @dataclass(frozen=True)
    class LastFew(semfocus.Pattern):
        '''The last few visible keys.'''
        input_dependent = False
        width: int = 3

        @property
        def budget(self):
            return self.width

        def keep(self, q, k, visible):
            return visible & (visible.flip(-1).cumsum(-1).flip(-1) <= self.width)
"""


def test_check_on_a_good_pattern(tmp_path, capsys):
    (tmp_path / "last_few.py").write_text(textwrap.dedent(GOOD_PATTERN))
    assert main(["check", str(tmp_path / "last_few.py")]) == 0
    assert f"{len(CHECKS)} of {len(CHECKS)} checks passed" in capsys.readouterr().out


def test_check_names_what_is_broken(tmp_path, capsys):
    broken = GOOD_PATTERN.replace("visible & (visible.flip", "(torch.ones_like(visible).flip").replace(
        "LastFew", "Leaky"
    )
    (tmp_path / "leaky.py").write_text(textwrap.dedent(broken))
    assert main(["check", str(tmp_path / "leaky.py")]) == 1
    out = capsys.readouterr().out
    assert "FAILED invisible_tokens_do_not_matter" in out


@pytest.mark.parametrize("instead", ["", "@dataclass"])
def test_a_class_that_is_no_frozen_dataclass_is_refused(tmp_path, capsys, instead):
    (tmp_path / "torch.py").write_text(textwrap.dedent(GOOD_PATTERN.replace("@dataclass(frozen=True)", instead)))
    assert main(["check", str(tmp_path / "torch.py")]) == 2  # a name that must not hide torch itself
    assert "must be a frozen dataclass" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "word"),
    [("x = 1", "registers no pattern"), ("1/0", "ZeroDivisionError"), ("def", "SyntaxError")],
)
def test_check_on_files_that_are_no_patterns(tmp_path, capsys, text, word):
    (tmp_path / "mine.py").write_text(text)
    assert main(["check", str(tmp_path / "mine.py")]) == 2
    assert word in capsys.readouterr().err
    assert main(["check", str(tmp_path / "missing.py")]) == 2


def test_a_plugin_s_pattern_trains(tmp_path, capsys):
    (tmp_path / "last_few.py").write_text(textwrap.dedent(GOOD_PATTERN))
    (tmp_path / "run.toml").write_text(TINY.replace('name = "top_k"\nk = 3', 'name = "last_few"\nwidth = 2'))
    command = [
        "train",
        str(tmp_path / "run.toml"),
        "--out",
        str(tmp_path / "out"),
        "--plugin",
        str(tmp_path / "last_few.py"),
    ]
    assert main([*command, "--device", "cpu"]) == 0
    assert "finished" in capsys.readouterr().out


KEEP = "return visible & (visible.flip(-1).cumsum(-1).flip(-1) <= self.width)"
OWN_TASK = """
    from dataclasses import dataclass
    import numpy, semfocus
    from semfocus.tasks import Task

    @semfocus.register
    @dataclass(frozen=True)
    class Mine(Task):
        vocabulary = 2
        num_classes = 2

        def _sample(self, rng, n, length):
            return numpy.zeros((n, length), int), numpy.zeros(n, int)

        def _solve(self, tokens):
            return [0]
"""


@pytest.mark.parametrize(
    ("code", "old", "new", "said"),
    [
        (GOOD_PATTERN, KEEP, "return torch.ones(3, 7) > 0", "LastFew.keep gave torch.bool (3, 7); it must give a"),
        (GOOD_PATTERN, KEEP, "return visible.float()", "LastFew.keep gave torch.float32 (9, 9); it must give a"),
        (GOOD_PATTERN, KEEP, "pass", "LastFew.keep gave None; it must give a boolean tensor, broadcastable to (1, 25,"),
        (GOOD_PATTERN, KEEP, "return q @ k", "LastFew.keep: RuntimeError: Expected size"),
        (GOOD_PATTERN, KEEP, "return self.widht", "has no attribute 'widht' (FILE:17)"),
        (GOOD_PATTERN, "q, k, visible):", "q, k):", "LastFew.keep must take (self, q, k, visible)"),
        (OWN_TASK, "vocabulary = 2", "vocabulary = '2'", "Mine.vocabulary is '2'; it must be a whole number"),
        (OWN_TASK, "num_classes = 2", "num_classes = 0", "Mine.num_classes is 0; it must be a whole number"),
        (
            OWN_TASK,
            "return numpy",
            "return nothing",
            "Mine._sample: NameError: name 'nothing' is not defined (FILE:13)",
        ),
        (OWN_TASK, "return numpy", "return {}[n]", "Mine._sample: KeyError: 50 (FILE:13)"),
    ],
    ids=lambda value: "" if "\n" in value else value,
)
def test_mistakes_in_a_plugin(tmp_path, monkeypatch, capsys, code, old, new, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(textwrap.dedent(code).replace(old, new))
    name = ("even_pairs", "mine") if code is OWN_TASK else ('name = "top_k"\nk = 3', 'name = "last_few"')
    (tmp_path / "run.toml").write_text(TINY.replace(*name))
    assert main(["train", "run.toml", "--out", "out", "--plugin", "mine.py", "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert said.replace("FILE", str(tmp_path / "mine.py")) in error
    assert error.count("\n") == 1


def test_a_pattern_that_cannot_be_shown(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(textwrap.dedent(GOOD_PATTERN.replace(KEEP, "return 1 / 0")))
    assert main(["show", "last_few", "--plugin", str(tmp_path / "mine.py")]) == 2
    assert "LastFew.keep: ZeroDivisionError" in capsys.readouterr().err


def test_our_own_mistakes_keep_their_traceback(tmp_path, monkeypatch):
    """Also where a plugin called us, unless it called us wrongly."""
    from semfocus.patterns import base

    calls = GOOD_PATTERN.replace(KEEP, "from semfocus.patterns.base import keep_best; return keep_best(q, visible, 1)")
    (tmp_path / "mine.py").write_text(textwrap.dedent(calls))
    with pytest.raises(RuntimeError, match="must match"):
        main(["show", "last_few", "--plugin", str(tmp_path / "mine.py")])
    monkeypatch.setattr(base, "broadcasts", None)
    with pytest.raises(TypeError):
        main(["show", "top_k(3)"])


def test_signals_that_come_in_pairs_are_one_wish():
    from semfocus.commands import common

    with common.stopping_after_the_epoch() as stopping:
        assert not stopping()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stopping()
        time.sleep(1.2 * common.ONE_WISH)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_between_epochs_the_first_signal_stops():
    """A surface takes minutes; whoever presses Ctrl-C while twelve are measured is not kept waiting for all."""
    from semfocus.commands import common

    with common.stopping_after_the_epoch() as stopping:
        stopping.at_once = True
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # its twin


def test_whoever_reads_may_stop_reading():
    found = subprocess.run(
        f"{sys.executable} -m semfocus show 'top_k(3)' --length 200 | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 1
    assert found.stderr == ""


def test_a_terminal_without_blocks(monkeypatch, capsys):
    monkeypatch.setattr("semfocus.commands.look.printable", lambda text: False)
    assert main(["show", "top_k(3)", "--length", "4"]) == 0
    assert capsys.readouterr().out.isascii()


def test_what_looks_at_its_batch_is_shown_one(capsys):
    pictures = []
    for name in ("top_k(3)", "swapped_top_k(3)", "positional_top_k(3)"):
        assert main(["show", name, "--length", "9"]) == 0
        pictures.append(capsys.readouterr().out.split("kept")[-1])
    assert len(set(pictures)) == 3


def test_a_part_that_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "semfocus.commands.look", None)

    def missing(name):
        raise ModuleNotFoundError("No module named 'safetensors'", name="safetensors")

    monkeypatch.setattr("semfocus.cli.importlib.import_module", missing)
    assert main(["list"]) == 2
    assert "needs safetensors: pip install 'semfocus[lab]'" in capsys.readouterr().err


def test_patterns_as_the_tables_and_as_python_write_them(capsys):
    for text in ("top_k(3)", "top-k(3)", "TopK(3)"):
        assert main(["show", text, "--length", "5"]) == 0
        assert "top_k(k=3)" in capsys.readouterr().out
    for text, said in [
        ("full(3)", "full has no knobs"),
        ("full(k=3)", "'full' has no option 'k'; there is none"),
        ("top_k(3, 4)", "only the first knob may go without its name (k, sinks)"),
    ]:
        assert main(["show", text]) == 2
        assert said in capsys.readouterr().err


def test_mistakes_are_a_sentence_however_it_is_called():
    for module in ("semfocus", "semfocus.cli"):
        found = subprocess.run([sys.executable, "-m", module, "show", "top_k()"], capture_output=True, text=True)
        assert (found.returncode, found.stderr.count("\n")) == (2, 1), found.stderr


def test_what_draws_is_not_said_to_look(capsys):
    for name, said in (("random_k(3)", "It draws anew each time"), ("top_k(3)", "It looks at its input")):
        assert main(["show", name, "--length", "5"]) == 0
        assert said in capsys.readouterr().out
