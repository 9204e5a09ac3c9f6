"""What the documentation tells people to type is typed here, all but the two make commands."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from semfocus import diagnostics, patterns
from semfocus.cli import main

ROOT = Path(__file__).parents[1]


def blocks(file, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)


@pytest.mark.parametrize("code", blocks("README.md", "python"))
def test_python_in_the_readme(code):
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(names) > 1  # it ran, and defined something


def test_commands_in_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (config,) = blocks("README.md", "toml")
    Path("run.toml").write_text(config)
    commands = [line for block in blocks("README.md", "bash") for line in block.splitlines()]
    assert commands
    printed = {}
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "semfocus"
        assert main(arguments) == 0
        printed[arguments[0]] = capsys.readouterr().out
    assert printed["train"].count("finished") == 3
    assert "10 finished" in printed["status"]
    assert Path(printed["report"].strip()).is_file()


def test_the_pattern_in_the_guide_passes_its_own_check(tmp_path, capsys):
    code, _ = blocks("CONTRIBUTING.md", "python")
    (tmp_path / "every_other.py").write_text(code)
    assert main(["check", str(tmp_path / "every_other.py")]) == 0, capsys.readouterr().out


def test_the_diagnostic_in_the_guide_measures(tmp_path, capsys):
    _, code = blocks("CONTRIBUTING.md", "python")
    (tmp_path / "first_key.py").write_text(code)
    assert main(["list", "diagnostics", "--plugin", str(tmp_path / "first_key.py")]) == 0
    assert "first_key" in capsys.readouterr().out
    q = torch.zeros(1, 2, 5, 4)
    found = diagnostics.get("first_key").measure(diagnostics.Probe.of(q, q, is_causal=True))
    assert found["pooled"]["mean"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5)


def test_every_pattern_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for name in patterns.registry.own_names():
        assert f"`{patterns.find(name).__name__}(" in text
