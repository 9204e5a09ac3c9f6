"""Attention whose numbers are known without computing."""

import math

import pytest
import torch
from torch import nn

import semfocus

LENGTH = 12


class Given(nn.Module):
    """Attention with the scores it is given."""

    def __init__(self, causal=False):
        super().__init__()
        self.causal = causal

    def forward(self, scores):  # (b, h, t, s)
        k = torch.eye(scores.shape[-1]).expand(*scores.shape[:2], -1, -1)
        return semfocus.attention(scores, k, k, scale=1.0, is_causal=self.causal)


def test_equal_scores():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    nn.init.zeros_(layer.in_proj_weight)
    x = torch.randn(3, LENGTH, 8)
    found = semfocus.diagnose(layer, (x, x, x), ks=(3, 6))
    assert [row["head"] for row in found.rows] == [None, 0, 1]
    for row in found.rows:
        assert row["queries"] == 3 * LENGTH * (2 if row["head"] is None else 1)
        assert row["keys"] == LENGTH
        assert row["entropy"] == pytest.approx(math.log(LENGTH), rel=1e-6)
        assert row["entropy_share"] == pytest.approx(1.0, rel=1e-6)
        assert row["delta_s"] == row["delta_h_3"] == row["separation_3"] == 0.0
        assert row["if_uniform_3"] == 0.25
        assert row["kept_mass_3"] == pytest.approx(0.25, rel=1e-6)
        assert row["kept_mass_6"] == pytest.approx(0.5, rel=1e-6)
        assert row["drops_3"] == 1.0
        assert row["in_degree_3"] == LENGTH  # ties keep the lowest index: all queries keep the first three keys
        assert row["beta_3"] == LENGTH / 3
        assert row["xi_s"] == pytest.approx(1 / LENGTH)
        assert row["vacuous_s"] == 0.0
        assert row["xi_h_3"] == math.inf  # no separation
        assert row["vacuous_3"] == 1.0
        # A softmax of equal scores moves by (e - mean e) / n.
        assert row["ratio_s"] == pytest.approx(1 / LENGTH, rel=0.15)


def test_all_weight_on_one_key():
    found = semfocus.diagnose(Given(), 200.0 * torch.eye(LENGTH).expand(2, 3, -1, -1), ks=(1, 4))
    for row in found.rows:
        assert row["entropy"] == row["entropy_share"] == 0.0
        assert row["kept_mass_1"] == row["kept_mass_4"] == 1.0
        assert row["delta_s"] == 200.0
        assert row["delta_h_1"] == 0.0
        assert row["separation_1"] == 200.0
        assert row["in_degree_1"] == row["beta_1"] == 1.0  # every key is kept by its own query
        assert row["ratio_s"] < 1e-6
        assert row["vacuous_s"] == 1.0


def test_causal_rows_count_what_they_see():
    found = semfocus.diagnose(Given(causal=True), torch.zeros(1, 1, LENGTH, LENGTH), ks=(4,))
    row = found.layers[0]
    seen = range(1, LENGTH + 1)
    assert row["keys"] == pytest.approx(sum(seen) / LENGTH)
    assert row["entropy"] == pytest.approx(sum(map(math.log, seen)) / LENGTH, rel=1e-6)
    assert row["kept_mass_4"] == pytest.approx(sum(min(4, n) / n for n in seen) / LENGTH, rel=1e-6)
    assert row["drops_4"] == pytest.approx((LENGTH - 4) / LENGTH)
    assert row["entropy_share"] == pytest.approx(1.0, rel=1e-6)  # the first query, with one key, has no share
    assert row["in_degree_4"] == LENGTH


def test_known_scores():
    scores = torch.tensor([3.0, 1.0, 0.0, -1.0]).expand(1, 1, 2, 4)
    row = semfocus.diagnose(Given(), scores, ks=(2,)).layers[0]
    weights = scores[0, 0, 0].softmax(-1)
    assert row["delta_s"] == 4.0
    assert row["delta_h_2"] == 2.0
    assert row["separation_2"] == 1.0
    assert row["kept_mass_2"] == pytest.approx(float(weights[:2].sum()), rel=1e-6)
    assert row["xi_s"] == pytest.approx(math.exp(4) / 4)
    assert row["xi_h_2"] == pytest.approx(math.exp(2) / 2 * 2)
    assert row["in_degree_2"] == 2
    assert row["beta_2"] == 1.0


def test_larger_k_than_keys_is_clipped_and_said():
    found = semfocus.diagnose(Given(), torch.randn(1, 1, 5, 5), ks=(2, 8, 64))
    assert found.ks == (2, 5)
    assert found.layers[0]["kept_mass_5"] == pytest.approx(1.0)
    assert "kept_mass_8" not in found.layers[0]
    assert found.layers[0]["beta_5"] == 1.0  # all five queries keep all five keys
    assert "k = 8, 64 are clipped to 5: no query sees more keys." in found.words()
    assert semfocus.diagnose(Given(), torch.randn(1, 1, 5, 5), ks=(5, 6)).ks == (5,)
