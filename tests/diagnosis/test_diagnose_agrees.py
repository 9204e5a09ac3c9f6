"""What diagnose measures, against dense computations with whole score matrices."""

import numpy as np
import pytest
import torch
from torch import nn

import semfocus
from semfocus import Full, ModelConfig, TopK, Transformer, diagnostics
from semfocus.nn import focus

KS = (2, 5)


def dense(weights, real, ks=KS):
    """Per head, from full attention's weights (b, h, t, s), zero where invisible, for the real queries (b, t)."""
    found = []
    for head in range(weights.shape[1]):
        a = weights[:, head].double()
        rows = a[real]  # (queries, s)
        visible = rows > 0
        log = rows.clamp(min=1e-300).log()
        one = {
            "queries": len(rows),
            "keys": visible.sum(-1).double().mean(),
            "entropy": torch.special.entr(rows).sum(-1).mean(),
            "delta_s": np.quantile(
                log.masked_fill(~visible, -torch.inf).amax(-1) - log.masked_fill(~visible, torch.inf).amin(-1),
                0.5,
                method="nearest",
            ),
        }
        for k in ks:
            best = rows.sort(-1, descending=True).values
            one[f"kept_mass_{k}"] = best[:, :k].sum(-1).mean()
            kept = torch.zeros_like(a, dtype=torch.bool).scatter(-1, a.topk(k, -1).indices, True) & (a > 0)
            one[f"in_degree_{k}"] = (kept & real[..., None]).sum(-2).max()
            last = visible.sum(-1).clamp(max=k) - 1
            heights = best.log().gather(-1, last[:, None])[:, 0]
            one[f"delta_h_{k}"] = np.quantile(best[:, 0].log() - heights, 0.5, method="nearest")
        found.append({name: float(value) for name, value in one.items()})
    return found


def check(rows, wanted, rel=2e-4):
    heads = [row for row in rows if row["head"] is not None]
    assert len(heads) == len(wanted)
    for row, one in zip(heads, wanted, strict=True):
        for name, value in one.items():
            assert row[name] == pytest.approx(value, rel=rel, abs=1e-5), name


def of_layer(found, layer):
    return [row for row in found.rows if row["layer"] == layer]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_encoder(causal, padded):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    for one in model.layers:
        one.self_attn.in_proj_weight.data.mul_(3)
    x = torch.randn(3, 11, 16)
    padding = torch.arange(11) >= torch.tensor([[11], [6], [9]]) if padded else None
    mask = nn.Transformer.generate_square_subsequent_mask(11) if causal else None
    float_padding = None if padding is None else torch.zeros(3, 11).masked_fill(padding, -torch.inf)
    inputs = {"src": x, "mask": mask, "src_key_padding_mask": float_padding if causal else padding}
    found = semfocus.diagnose(model, inputs, ks=KS)
    assert [row["name"] for row in found.layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    real = torch.ones(3, 11, dtype=torch.bool) if padding is None else ~padding
    h = x
    for number, one in enumerate(model.layers):
        attention = nn.MultiheadAttention.forward(
            one.self_attn, h, h, h, attn_mask=mask, key_padding_mask=float_padding, average_attn_weights=False
        )
        check(of_layer(found, number), dense(attention[1].detach(), real))
        h = one(h, src_mask=mask, src_key_padding_mask=float_padding)


def test_cross_attention_knows_the_queries_padding():
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 8, dropout=0.0, batch_first=True)
    source, target = torch.randn(2, 7, 8), torch.randn(2, 7, 8)  # equal lengths, different padding
    inputs = {
        "src": source,
        "tgt": target,
        "tgt_is_causal": True,
        "tgt_mask": torch.ones(7, 7, dtype=torch.bool).triu(1),
        "src_key_padding_mask": torch.arange(7) >= torch.tensor([[7], [3]]),
        "tgt_key_padding_mask": torch.arange(7) >= torch.tensor([[4], [6]]),
        "memory_key_padding_mask": torch.arange(7) >= torch.tensor([[7], [3]]),
    }
    found = semfocus.diagnose(model, inputs, ks=(2,))
    names = [row["name"].removeprefix("decoder.layers.0.") for row in found.layers[1:]]
    assert names == ["self_attn", "multihead_attn"]
    assert [row["cross"] for row in found.layers] == [False, False, True]
    assert [row["queries"] for row in found.layers] == [2 * (7 + 3), 2 * (4 + 6), 2 * (4 + 6)]
    assert found.layers[2]["keys"] == pytest.approx((4 * 7 + 6 * 3) / 10)


def llama(**settings):
    transformers = pytest.importorskip("transformers", reason="semfocus[hf] is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
        **settings,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=0.5)
    return model


@pytest.mark.parametrize("side", ["left", "right"])
def test_llama_with_grouped_queries_and_padding(side):
    model = llama()
    mask = torch.ones(3, 13, dtype=torch.long)
    mask[1, slice(4) if side == "left" else slice(9, None)] = 0
    inputs = {"input_ids": torch.randint(3, 23, (3, 13)), "attention_mask": mask}
    found = semfocus.diagnose(model, inputs, ks=KS)
    assert [row["name"] for row in found.layers] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).attentions
    for number, one in enumerate(weights):
        check(of_layer(found, number), dense(one, mask.bool()))


def test_t5_has_three_kinds_of_attention():
    transformers = pytest.importorskip("transformers", reason="semfocus[hf] is not installed")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=23, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    decoder_mask = torch.ones(2, 9, dtype=torch.long)
    decoder_mask[0, 5:] = 0
    ids = torch.randint(3, 23, (2, 9))
    inputs = {"input_ids": ids, "decoder_input_ids": ids, "decoder_attention_mask": decoder_mask}
    found = semfocus.diagnose(model, inputs, ks=(2,))
    assert [row["cross"] for row in found.layers] == [False, False, True]
    assert [row["queries"] for row in found.layers] == [2 * 18, 2 * 14, 2 * 14]
    assert found.layers[2]["keys"] == 9.0


@pytest.mark.parametrize("pattern", [Full(), TopK(3)])
def test_our_transformer_by_the_diagnostics(pattern):
    config = ModelConfig(vocabulary=5, classes=2, width=8, mlp_width=8, blocks=2, heads=2, mask_padding=True)
    model = Transformer(config, pattern)
    with torch.no_grad():
        for block in model.blocks:
            block.qkv.weight.mul_(3)
    tokens = torch.randint(0, 5, (4, 10), generator=torch.Generator().manual_seed(0))
    found = semfocus.diagnose(model, tokens, ks=KS)
    assert [row["name"] for row in found.layers] == ["blocks.0", "blocks.1"]
    assert {row["pattern"] for row in found.rows} == {pattern.label}
    probe = diagnostics.Probe.of_model(model, tokens)

    def measured(name, chosen):
        return diagnostics.get(name).measure(probe.with_pattern(chosen))["heads"]

    for layer in range(2):
        for head in range(2):
            row = next(row for row in found.rows if (row["layer"], row["head"]) == (layer, head))
            pairs = [("delta_s", "dispersion", Full(), "q50"), ("entropy", "entropy", Full(), "mean")]
            for k in KS:
                pairs += [
                    (f"delta_h_{k}", "dispersion", TopK(k), "q50"),
                    (f"separation_{k}", "separation", TopK(k), "q50"),
                    (f"kept_mass_{k}", "kept_mass", TopK(k), "mean"),
                    (f"in_degree_{k}", "in_degree", TopK(k), "q100"),
                ]
            for column, name, chosen, statistic in pairs:
                wanted = measured(name, chosen)[layer][head][statistic]
                assert row[column] == pytest.approx(wanted, rel=1e-5, abs=1e-6), column


def test_padding_of_our_transformer():
    config = ModelConfig(vocabulary=5, classes=2, width=8, mlp_width=8, blocks=1, mask_padding=True)
    tokens = torch.randint(0, 5, (2, 10))
    tokens[0, 6:] = 5  # PAD
    row = semfocus.diagnose(Transformer(config, Full()), tokens, ks=(2,)).layers[0]
    assert row["queries"] == 16
    assert row["keys"] == pytest.approx((6 * 6 + 10 * 10) / 16)


def test_a_member_of_a_population():
    config = ModelConfig(vocabulary=5, classes=2, width=8, mlp_width=8, blocks=1)
    population = Transformer([config] * 3, [Full(), TopK(2), Full()], seeds=[0, 1, 2])
    alone = Transformer(config, TopK(2), 1)
    tokens = torch.randint(0, 5, (2, 10))
    found = semfocus.diagnose(population, tokens, ks=(2,), member=1)
    wanted = semfocus.diagnose(alone, tokens, ks=(2,))
    for row, one in zip(found.rows, wanted.rows, strict=True):
        for name, value in one.items():
            assert row[name] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), name
    with pytest.raises(ValueError, match="member is 3; the population has members 0 to 2"):
        semfocus.diagnose(population, tokens, member=3)


def test_a_focused_model_runs_focused():
    """The second layer sees what the first, focused one gives it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=8, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 9, 8)
    plain = semfocus.diagnose(model, x, ks=(2,))
    focus(model, TopK(2), layers=[0])
    found = semfocus.diagnose(model, x, ks=(2,))
    assert [row["pattern"] for row in found.layers] == ["top_k(k=2)", "full()"]
    assert "ran with its own patterns (top_k(k=2))" in found.words()
    assert found.layers[0]["kept_mass_2"] == plain.layers[0]["kept_mass_2"]
    assert found.layers[1]["kept_mass_2"] != plain.layers[1]["kept_mass_2"]
