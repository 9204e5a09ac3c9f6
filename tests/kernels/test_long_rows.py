"""Long rows without a GPU: the plan, what is refused, and results through Triton's interpreter."""

import pytest
import torch
from test_short_rows import run_interpreted

from semfocus import TopK, attention, kernels


@pytest.mark.skipif(not kernels.INSTALLED, reason="Triton is not installed")
@pytest.mark.parametrize("share", ["output or tiles or causal", "not (output or tiles or causal)"])
def test_interpreted(share):
    run_interpreted("interpreted_long_rows.py", share)


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
