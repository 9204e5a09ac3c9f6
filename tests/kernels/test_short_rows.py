"""The fused kernel without a GPU: what it refuses, and its results through Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from semfocus import Full, TopK, attention, kernels

Q = torch.randn(2, 2, 5, 16)


def run_interpreted(file, share):
    """Some tests of a file in a process of its own: the interpreter must be chosen before Triton is imported."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-k", share]
    done = subprocess.run(
        [*command, str(Path(__file__).parent / file)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.skipif(not kernels.INSTALLED, reason="Triton is not installed")
@pytest.mark.parametrize("share", ["test_output_and_gradients", "not test_output_and_gradients"])
def test_interpreted(share):
    run_interpreted("interpreted_short_rows.py", share)


def test_it_says_why_it_cannot_serve_here():
    reason = "CUDA" if kernels.INSTALLED else "Triton"
    with pytest.raises(ValueError, match=f"'fused'.*{reason}"):
        attention(Q, Q, Q, implementation="fused")


REFUSED = {
    "sinks": ({"pattern": TopK(3, sinks=1)}, "sinks"),
    "weights": ({"return_weights": True}, "weights"),
    "float mask": ({"attn_mask": torch.zeros(5, 5)}, "boolean"),
    "mask per query": ({"attn_mask": torch.ones(5, 5, dtype=torch.bool)}, "over keys"),
    "all dropped": ({"dropout_p": 1.0}, "dropout_p"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_reason(case, monkeypatch):
    monkeypatch.setattr(kernels, "INSTALLED", True)
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    options, word = REFUSED[case]
    with pytest.raises(ValueError, match=word):
        attention(Q, Q, Q, **({"pattern": Full()} | options), implementation="fused")


@pytest.mark.parametrize(
    ("q", "k", "v", "word"),
    [
        (Q.double(), Q.double(), Q.double(), "float64"),
        (Q, Q, Q[..., :8], "width 8"),
        (Q.repeat(1, 1, 1, 17), Q.repeat(1, 1, 1, 17), Q.repeat(1, 1, 1, 17), "256"),
        (Q[:, :, :0], Q, Q, "length 0"),
    ],
)
def test_shapes_it_refuses(q, k, v, word, monkeypatch):
    monkeypatch.setattr(kernels, "INSTALLED", True)
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    with pytest.raises(ValueError, match=word):
        attention(q, k, v, TopK(3), implementation="fused")
