"""What the guide and the examples tell people to run is run here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.findall(r"```python\n(.*?)```", (DOCS / "your_models.md").read_text(), re.DOTALL)


def run(example, *arguments):
    """An example's output, in a process of its own, without a network."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(DOCS / "examples" / example), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.splitlines()[-1][:30])
def test_python_in_the_guide(code):
    if "transformers" in code:
        pytest.importorskip("transformers", reason="semfocus[hf] is not installed")
    names: dict[str, object] = {}
    exec(compile(code, "your_models.md", "exec"), names)
    assert {"model", "attention"} & names.keys()


def test_there_are_blocks_in_the_guide():
    assert len(BLOCKS) == 5


def test_pytorch_example():
    printed = run("pytorch.py")
    assert "top_k(k=5) in 2 of 2 attention layers" in printed
    assert "restored 2 layers: encoder.layers.0.self_attn, encoder.layers.1.self_attn" in printed
    accuracies = {
        name: [float(number) for number in numbers.split()]
        for name, numbers in re.findall(r"(full|top-k) +accuracy by epoch: ([\d. ]+)", printed)
    }
    assert accuracies.keys() == {"full", "top-k"}
    assert len(accuracies["full"]) == len(accuracies["top-k"])
    assert accuracies["top-k"][0] < 0.8  # it had something to learn
    assert accuracies["top-k"][-1] > 0.9


def test_trainer_example():
    pytest.importorskip("transformers", reason="semfocus[hf] is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    printed = run("huggingface_trainer.py", "--steps", "40")
    before, after = map(float, re.search(r"held-out loss ([\d.]+) -> ([\d.]+) nats", printed).groups())
    assert 5 < before < 6  # ln 256 = 5.5
    assert after < 4
    assert "loaded with semfocus_top_k {'k': 8}" in printed
    assert "it writes b'import " in printed


def test_should_my_model_focus_example(tmp_path):
    printed = run("should_my_model_focus.py", "--out", str(tmp_path))
    words = " ".join(printed.split())
    assert "Classifier: 2 attention layers, 2 heads each." in words
    assert "no prediction of learning speed has yet beaten a constant on held-out tasks" in words
    assert "would lose least" in words
    assert "Kept mass for each k, in per cent" in printed
    assert (tmp_path / "diagnosis.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len((tmp_path / "diagnosis.csv").read_text().splitlines()) == 1 + 2 * 3
