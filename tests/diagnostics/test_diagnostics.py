"""Closed forms for each diagnostic, shift invariance, streaming against dense, and our models."""

import json
import math

import numpy as np
import pytest
import torch

import semfocus
from semfocus import Banded, Full, ModelConfig, RandomK, TopK, Transformer, chunked, diagnostics
from semfocus.diagnostics import Probe


def probe_of(scores, pattern=None, **options):
    """A probe whose scaled scores are exactly these: (t, s) or (..., h, t, s)."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    scores = scores.reshape(*[1] * (4 - scores.ndim), *scores.shape)
    width = scores.shape[-1]
    k = torch.eye(width, dtype=torch.float64).expand(*scores.shape[:-2], width, width)
    return Probe.of(scores, k, pattern, scale=1.0, **options)


def pooled(name, probe, **options):
    return diagnostics.get(name, **options).measure(probe)["pooled"]


HAND = [[3.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 4.0, 2.5]]  # three queries, three keys


def test_dispersion_by_hand():
    assert pooled("dispersion", probe_of(HAND))["mean"] == pytest.approx((3 + 0 + 3) / 3)
    found = pooled("dispersion", probe_of(HAND, TopK(2)))
    assert found["mean"] == pytest.approx((2 + 0 + 1.5) / 3)
    assert (found["q0"], found["q50"], found["q100"]) == (0.0, 1.5, 2.0)


def test_separation_by_hand():
    found = pooled("separation", probe_of(HAND, TopK(2)))
    assert (found["q0"], found["q50"], found["q100"]) == (0.0, 1.0, 1.5)
    assert pooled("separation", probe_of(HAND))["q0"] == math.inf  # nothing is dropped
    assert pooled("separation", probe_of([[1.0, 5.0]], semfocus.BottomK(1)))["mean"] == -4.0


def test_ties_by_hand():
    assert pooled("tie_rate", probe_of(HAND, TopK(2)))["mean"] == pytest.approx(1 / 3)
    assert pooled("tie_rate", probe_of(HAND))["mean"] == 0.0


def test_entropy_and_support_by_hand():
    equal = [[7.0, 7.0, 7.0, 7.0]]
    assert pooled("entropy", probe_of(equal))["mean"] == pytest.approx(math.log(4))
    assert pooled("effective_support", probe_of(equal))["mean"] == pytest.approx(4)
    assert pooled("entropy", probe_of(equal, TopK(2)))["mean"] == pytest.approx(math.log(2))
    one_hot = [[0.0, 1000.0, 0.0]]
    assert pooled("entropy", probe_of(one_hot))["mean"] == 0.0
    assert pooled("effective_support", probe_of(one_hot))["mean"] == 1.0


def test_kept_mass_by_hand():
    assert pooled("kept_mass", probe_of([[2.0] * 5], TopK(2)))["mean"] == pytest.approx(2 / 5)
    assert pooled("kept_mass", probe_of([[0.0, math.log(3)]], TopK(1)))["mean"] == pytest.approx(3 / 4)
    assert pooled("kept_mass", probe_of(HAND))["mean"] == pytest.approx(1.0)


def test_in_degree_by_hand():
    found = pooled("in_degree", probe_of(HAND, TopK(2)))  # kept: {0,1}, {0,1}, {1,2}
    assert (found["q0"], found["q50"], found["q100"]) == (1.0, 2.0, 3.0)
    assert found["beta"] == 1.5
    assert pooled("in_degree", probe_of(HAND))["beta"] == 1.0  # all keep all three: 3 over a mean of 3
    assert pooled("in_degree", probe_of(HAND, TopK(9)))["beta"] == 1.0  # nobody can keep more than three


def test_input_dependence_by_hand():
    same = torch.randn(1, 1, 5, 6).expand(4, 1, 5, 6)  # one choice whatever the input
    found = pooled("input_dependence", probe_of(same, TopK(2)))
    assert found["overlap"] == 1.0
    assert found["chance"] == pytest.approx(2 / 6)
    assert found["lift"] == 1.0
    assert found["positional_share"] == pytest.approx(1.0)
    torch.manual_seed(0)
    free = pooled("input_dependence", probe_of(torch.randn(300, 1, 5, 6), TopK(2)))
    assert free["lift"] == pytest.approx(0.0, abs=0.06)
    assert free["positional_share"] == pytest.approx(0.0, abs=0.02)
    with pytest.raises(ValueError, match="two inputs"):
        pooled("input_dependence", probe_of(HAND))


SHIFT_FREE = ("dispersion", "separation", "entropy", "effective_support", "kept_mass", "tie_rate", "in_degree")


@pytest.mark.parametrize("name", SHIFT_FREE)
def test_a_shift_of_a_query_s_scores_changes_nothing(name):
    torch.manual_seed(0)
    scores = torch.randn(2, 3, 7, 9, dtype=torch.float64)
    shifted = scores + 10 * torch.randn(2, 3, 7, 1, dtype=torch.float64)
    for pattern in (Full(), TopK(3)):
        before, after = (pooled(name, probe_of(z, pattern)) for z in (scores, shifted))
        assert before.keys() == after.keys()
        for key in before:
            assert before[key] == pytest.approx(after[key], abs=1e-9)


@pytest.mark.parametrize("name", [*SHIFT_FREE, "input_dependence"])
def test_streaming_equals_dense(name, monkeypatch):
    torch.manual_seed(1)
    q, k = torch.randn(2, 3, 2, 37, 8, dtype=torch.float64)
    mask = torch.rand(3, 1, 1, 37) > 0.2
    for pattern in (Full(), TopK(5), Banded(5)):
        probe = Probe.of(q, k, pattern, attn_mask=mask, is_causal=not pattern.global_tokens)
        dense = diagnostics.get(name).measure(probe)
        with monkeypatch.context() as patch:
            patch.setattr(chunked, "CHUNK_ELEMENTS", 3 * 2 * 37 * 4)  # four rows at a time
            assert len(list(probe.rows(0))) == 10
            streamed = diagnostics.get(name).measure(probe)
        for key in dense["pooled"]:
            assert streamed["pooled"][key] == pytest.approx(dense["pooled"][key], rel=1e-12), key


def test_long_inputs_never_hold_the_whole_matrix():
    q, k = torch.randn(2, 1, 1, 8192, 4)
    probe = Probe.of(q, k, TopK(5), is_causal=True)
    sizes = [rows.scores.numel() for rows in probe.rows(0)]
    assert max(sizes) <= chunked.CHUNK_ELEMENTS < 8192 * 8192
    assert pooled("dispersion", probe)["count"] == 8192


def test_queries_that_see_nothing_are_left_out():
    mask = torch.tensor([[True, True, True], [False, False, False], [True, False, True]])
    found = pooled("dispersion", probe_of(HAND, attn_mask=mask))
    assert found["count"] == 2
    assert found["mean"] == pytest.approx((3 + 1.5) / 2)
    for name in ("entropy", "in_degree"):
        nothing = pooled(name, probe_of(HAND, attn_mask=torch.zeros(3, 3, dtype=torch.bool)))
        assert nothing == {"count": 0}


@pytest.mark.parametrize("name", ["dispersion", "separation", "in_degree", "kept_mass", "entropy", "input_dependence"])
def test_padding_is_not_counted(name):
    """Neither as keys nor as queries: the numbers are those of the examples without it."""
    config = {"vocabulary": 5, "classes": 2, "width": 8, "mlp_width": 8, "blocks": 2}
    model = Transformer(ModelConfig(**config, mask_padding=True), TopK(3), seeds=1).double()
    real = torch.randint(5, (4, 10), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([real, torch.full((4, 30), 5)], 1)
    alone, found = (diagnostics.get(name).measure(Probe.of_model(model, tokens))["pooled"] for tokens in (real, padded))
    assert found == pytest.approx(alone, rel=1e-9)


def test_every_diagnostic_on_our_model(model, tokens):
    for member in (0, 1):
        probe = Probe.of_model(model, tokens, member=member, targets=tokens[:, :1])
        assert len(probe.problems) == 2
        for name in diagnostics.names():
            options = {"points": 3} if name == "loss_surface" else {}
            found = diagnostics.get(name, **options).measure(probe)
            json.dumps(found)  # plain data
            assert found


def test_the_probe_sees_what_the_model_does(model, tokens):
    """The outputs of the recorded problems are the attention the model mixes, and the model is left as it was."""
    seen = []
    original = model.run_block
    probe = Probe.of_model(model, tokens, member=1)
    assert model.run_block is original
    assert model.training
    logits = model.eval()(tokens)
    model.train()
    alone = Transformer([model.configs[1]], [TopK(3)], seeds=[1])
    assert torch.allclose(alone.eval()(tokens)[0], logits[1], atol=1e-6)
    for problem in Probe.of_model(alone, tokens).problems:
        seen.append(problem.q)
    for mine, theirs in zip(probe.problems, seen, strict=True):
        assert torch.allclose(mine.q, theirs, atol=1e-5)
    with pytest.raises(ValueError, match="member is 2"):
        Probe.of_model(model, tokens, member=2)


def test_noise_moves_and_no_noise_does_not(model, tokens):
    clean, again = Probe.of_model(model, tokens), Probe.of_model(model, tokens)
    assert torch.equal(clean.problems[-1].q, again.problems[-1].q)
    noisy = Probe.of_model(model, tokens, noise=0.1)
    assert not torch.equal(clean.problems[0].q, noisy.problems[0].q)
    stability = diagnostics.get("selection_stability", levels=(1e-7, 3.0)).measure(
        Probe.of_model(model, tokens, member=1)
    )
    small, large = (level["pooled"]["mean"] for level in stability["levels"])
    assert small == pytest.approx(1.0)
    assert large < 0.9
    everything = diagnostics.get("selection_stability", levels=(3.0,)).measure(clean)
    assert everything["levels"][0]["pooled"]["mean"] == 1.0  # full attention keeps all whatever the noise
    assert everything["levels"][0]["by_separation"] is None


@pytest.mark.parametrize("name", ["selection_stability", "stability_ratio"])
def test_noise_does_not_depend_on_the_other_members(name, tokens):
    config = ModelConfig(vocabulary=5, classes=3, width=16, heads=2, mlp_width=16)
    population = Transformer([config] * 2, [TopK(3)] * 2, seeds=[0, 1])
    before = diagnostics.get(name).measure(Probe.of_model(population, tokens, member=0))
    with torch.no_grad():
        population.embedding[1] *= 10
    assert diagnostics.get(name).measure(Probe.of_model(population, tokens, member=0)) == before


def test_the_bound_of_a_fixed_mask_is_never_exceeded(model, tokens):
    probe = Probe.of_model(model, tokens)
    for pattern in (Full(), Banded(3)):
        found = diagnostics.get("stability_ratio", noise=0.3).measure(probe.with_pattern(pattern))["pooled"]
        assert found["exceeded"] == 0.0
        assert found["ratio"]["q100"] <= 0.5


def test_rounding_is_no_movement(tokens):
    config = ModelConfig(vocabulary=2, classes=2, width=16, mlp_width=16, blocks=1, attention_scale=1e-4)
    probe = Probe.of_model(Transformer(config, Full(), seeds=0), tokens)
    for pattern in (Full(), Banded(3), TopK(3)):
        found = pooled("stability_ratio", probe.with_pattern(pattern), noise=1e-4)
        assert found["exceeded"] == 0.0, pattern.label


def test_top_k_s_bound_is_vacuous_by_its_own_measure(model, tokens):
    """Beyond 1/2 a bound of exchanged keys may say something, as long as it is below 1/Delta."""
    found = pooled("stability_ratio", Probe.of_model(model, tokens).with_pattern(TopK(3)), noise=0.1)
    assert found["bound"]["q0"] > 0.5
    assert 0 < found["vacuous"] < 1


def test_weight_norms_by_hand(model, tokens):
    found = diagnostics.get("weight_norms").measure(Probe.of_model(model, tokens))
    block = model.blocks[0]
    weight = torch.cat([block.mlp_in.weight[0], block.mlp_in.bias[0]]).detach().numpy()
    assert found["layers"][0]["P"] == pytest.approx(np.linalg.norm(weight, 2), rel=1e-5)
    d = 8
    maps = torch.cat([block.qkv.weight[0], block.qkv.bias[0]]).detach().double().numpy()  # (d + 1, 3 h d)
    per_head = [
        np.linalg.norm(maps[:, i * d : (i + 1) * d] @ maps[:, (2 + i) * d : (3 + i) * d].T, 2) for i in range(2)
    ]
    assert found["layers"][0]["W"] == pytest.approx(2.0 * max(per_head) / math.sqrt(d), rel=1e-5)
    with pytest.raises(ValueError, match="needs a model"):
        diagnostics.get("weight_norms").measure(probe_of(HAND))


def test_the_worst_dispersion_counts_the_bias(tokens):
    """delta_s <= 2 Gamma Xi^2 with Xi^2 = d + 1: a token has norm sqrt(d) after normalisation, and a 1 for the bias."""
    d = 4
    model = Transformer(ModelConfig(vocabulary=2, classes=2, width=d, mlp_width=4, blocks=1), Full(), seeds=0)
    direction = torch.tensor([1.0, -1.0, 1.0, -1.0])
    with torch.no_grad():
        for parameter in (model.embedding, model.blocks[0].qkv.weight, model.blocks[0].qkv.bias):
            parameter.zero_()
        model.embedding[0, :2] = 100 * torch.stack([direction, -direction])  # far from the positions
        model.blocks[0].qkv.weight[0, :, 0] = direction  # q = direction' x + 1, along a whole token
        model.blocks[0].qkv.bias[0, 0, 0] = 1.0
        model.blocks[0].qkv.weight[0, :, d] = direction  # k = direction' x
    probe = Probe.of_model(model, tokens)
    gamma, delta = pooled("weight_norms", probe)["W"], pooled("dispersion", probe)["q100"]
    assert 2 * gamma * d < delta <= 2 * gamma * (d + 1)


def test_counterfactual_patterns(model, tokens):
    probe = Probe.of_model(model, tokens)
    full = pooled("dispersion", probe)["q75"]
    top = pooled("dispersion", probe.with_pattern(TopK(3)))["q75"]
    random = pooled("dispersion", probe.with_pattern(RandomK(3)))["q75"]
    assert top < full
    assert random <= full  # any subset of keys has at most the dispersion of all


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="unknown diagnostic 'dispersal'"):
        diagnostics.get("dispersal")
    with pytest.raises(ValueError, match=r"\(heads|\.\.\., heads"):
        Probe.of(torch.randn(3, 4), torch.randn(3, 4))
    wrong = {
        "loss_surface": {"half_width": 0.0},
        "selection_stability": {"levels": 0.1},
        "stability_ratio": {"noise": -1},
    }
    for name, knobs in wrong.items():
        with pytest.raises(ValueError, match=f"{next(iter(knobs))} is"):
            diagnostics.get(name, **knobs)


def test_a_population_s_probes_equal_single_ones(model, tokens):
    both = Probe.of_population(model, tokens.expand(2, -1, -1))
    for member in (0, 1):
        single = Probe.of_model(model, tokens, member=member)
        assert pooled("dispersion", both[member]) == pooled("dispersion", single)


def test_a_probe_takes_arguments_as_attention_does():
    q, k = torch.randn(2, 2, 4, 12, 8)
    for offset in (0, 9):
        probe = Probe.of(q[..., :3, :], k, Full(), is_causal=True, query_offset=offset)
        options = {"is_causal": True, "query_offset": offset, "return_weights": True}
        wanted = semfocus.attention(q[..., :3, :], k, k, Full(), **options)[1]
        torch.testing.assert_close(next(iter(probe.rows(0))).weights, wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attn_mask": torch.ones(2, 1, 1, 12, dtype=torch.long)}, "attn_mask is torch.int64"),
        ({"attn_mask": torch.ones(5, dtype=torch.bool)}, "attn_mask has shape"),
        ({"pattern": "top_k"}, "pattern is 'top_k'"),
        ({"key": torch.randn(1, 4, 12, 8)}, "key has shape"),
        ({"key": torch.randn(2, 3, 12, 8)}, "key has 3 heads"),
    ],
)
def test_what_a_probe_refuses(change, words):
    q, k = torch.randn(2, 2, 4, 12, 8)
    with pytest.raises(ValueError, match=words):
        Probe.of(**{"query": q, "key": k} | change)
