"""Long rows without a GPU: the plan, what is refused, and results through Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from semfocus import TopK, attention, kernels


@pytest.mark.skipif(not kernels.INSTALLED, reason="Triton is not installed")
@pytest.mark.parametrize("share", ["output or tiles or causal", "not (output or tiles or causal)"])
def test_interpreted(share):
    """In a process of its own: the interpreter must be chosen before Triton is imported."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-q", "-k", share]
    done = subprocess.run(
        [*command, str(here / "interpreted_long_rows.py")],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.skipif(not kernels.INSTALLED, reason="Triton is not installed")
@pytest.mark.parametrize("keys", [300, 2048, 32768, 131072])
@pytest.mark.parametrize("budget", [1, 8, 64, 1024])
@pytest.mark.parametrize(("leads", "queries"), [(1, 1), (16, 2048)])
def test_lists_and_candidates_have_room(leads, queries, budget, keys):
    from semfocus.kernels.long_launch import LISTS, plan

    if budget >= keys:
        return
    p = plan(leads, queries, keys, budget)
    assert p.room >= budget  # a row that is searched again may fall into one list
    assert p.candidates >= 1.5 * p.expected + 16
    assert LISTS * p.splits * p.room >= p.expected
    assert p.segments * 128 >= min(4 * budget, keys)
    assert p.bytes_per_row < 2**20  # O(budget), whatever the number of keys


REFUSED = {
    "dropout": ({"dropout_p": 0.1}, TopK(3), "dropout"),
    "budget": ({}, TopK(1100), "1100"),
    "mask per query": ({"attn_mask": torch.ones(2, 1300, dtype=torch.bool)}, TopK(3), "over keys"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_reason(case, monkeypatch):
    monkeypatch.setattr(kernels, "INSTALLED", True)
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    options, pattern, word = REFUSED[case]
    q, k = torch.randn(1, 2, 16), torch.randn(1, 1300, 16)
    with pytest.raises(ValueError, match=word):
        attention(q, k, k, pattern, **options, implementation="fused")
