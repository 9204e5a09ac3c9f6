"""focus and unfocus on Hugging Face models."""

import copy
import subprocess
import sys

import pytest
import torch
from tiny_models import HEADS, MODELS, SIZES, logits, make, padding, tf, tokens

from semfocus import Banded, Full, TopK, diagnose, hf
from semfocus.hf import models
from semfocus.nn import focus, unfocus


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "semfocus_bottom_k"])
@pytest.mark.parametrize("name", MODELS)
def test_unfocus_is_bitwise(name, implementation):
    model = make(name, implementation, semfocus={"k": 5})
    parameters, keys = list(model.parameters()), list(model.state_dict())

    def run():
        out = logits(name, model, tokens(), padding("right"))
        return out, *torch.autograd.grad(out.sum(), parameters, allow_unused=True)

    before = run()
    result = focus(model, TopK(2))
    assert not result.left
    focused = run()
    assert (focused[0] - before[0]).abs().max() > 0.01
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys
    focus(model, Banded(3), layers=[1])
    restored = unfocus(model)
    assert restored == tuple(layer.name for layer in result.changed)
    assert model.config._attn_implementation == implementation
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(before, run(), strict=True))
    assert unfocus(model) == ()


@pytest.mark.parametrize("name", MODELS)
def test_focus_is_the_implementation_of_that_name(name):
    model = make(name, "sdpa")
    focus(model, TopK(2))
    wanted = logits(name, make(name, "semfocus_top_k", semfocus={"k": 2}), tokens(), padding("right"))
    torch.testing.assert_close(logits(name, model, tokens(), padding("right")), wanted, atol=1e-6, rtol=0)


def test_some_layers_and_a_second_pattern():
    def attentions(model):
        out = model(tokens(), attention_mask=padding("left"), output_attentions=True)
        return [int((weights > 0).sum(-1).max()) for weights in out.attentions]

    model = make("llama", "sdpa")
    result = focus(model, TopK(2), layers=["model.layers.1.self_attn"])
    assert [layer.index for layer in result.changed] == [1]
    assert [(layer.name, reason) for layer, reason in result.left] == [("model.layers.0.self_attn", "not in layers")]
    assert attentions(model) == [13, 2]
    focus(model, TopK(4), layers=[0])  # layer 1 keeps what it has
    assert attentions(model) == [4, 2]
    focus(model, TopK(3))
    assert attentions(model) == [3, 3]


def test_a_layer_left_out_keeps_the_pattern_of_its_config():
    model = make("llama", "semfocus_top_k", semfocus={"k": 5})
    focus(model, TopK(2), layers=[0])
    out = model(tokens(), output_attentions=True)
    assert [int((weights > 0).sum(-1).max()) for weights in out.attentions] == [2, 5]


def test_models_that_share_a_config_do_not_share_focus():
    config = make("llama", "sdpa").config
    first, second = (tf.LlamaForCausalLM(config).eval() for _ in range(2))
    before = second(tokens()).logits
    focus(first, TopK(2))
    assert torch.equal(second(tokens()).logits, before)
    assert config._attn_implementation == "sdpa"
    first.config.use_cache = False  # what one changes in between stays
    unfocus(first)
    assert first.config.use_cache is False
    assert second.config.use_cache is True


def test_a_copy_is_focused_and_can_be_restored():
    model = make("t5", "sdpa")
    before = logits("t5", model, tokens())
    focus(model, TopK(2))
    twin = copy.deepcopy(model)
    focused = logits("t5", model, tokens())
    unfocus(model)
    assert torch.equal(logits("t5", twin, tokens()), focused)
    unfocus(twin)
    assert torch.equal(logits("t5", twin, tokens()), before)


def test_saving_a_focused_model_saves_the_plain_one(tmp_path):
    model = make("llama", "sdpa")
    before = model(tokens()).logits
    focus(model, TopK(2))
    model.save_pretrained(tmp_path)
    assert "semfocus" not in (tmp_path / "config.json").read_text()
    loaded = tf.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(tokens()).logits, before)
    model.load_state_dict(loaded.state_dict())


def test_a_model_inside_another_and_torch_s_layers_beside_it():
    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = make("bert", "sdpa").bert
            self.pool = torch.nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, ids):
            x = self.body(ids).last_hidden_state
            return self.pool(x, x, x, need_weights=False)[0]

    model = Reader().eval()
    before = model(tokens())
    names = ["body.encoder.layer.0.attention.self", "body.encoder.layer.1.attention.self", "pool"]
    assert [layer.name for layer in focus(model, TopK(2)).changed] == names
    assert (model(tokens()) - before).abs().max() > 0.001
    assert sorted(unfocus(model)) == sorted(names)
    assert torch.equal(model(tokens()), before)


def test_cross_attention_in_t5():
    model = make("t5", "sdpa")
    result = focus(model, Banded(3))
    cross = ["decoder.block.0.layer.1.EncDecAttention", "decoder.block.1.layer.1.EncDecAttention"]
    assert [layer.name for layer, _ in result.left] == cross
    out = model(tokens(), decoder_input_ids=tokens()[:, :9], output_attentions=True)
    assert [int((w > 0).sum(-1).max()) for w in out.cross_attentions] == [13, 13]
    assert [int((w > 0).sum(-1).max()) for w in (*out.decoder_attentions, *out.encoder_attentions)] == [3] * 4
    with pytest.raises(ValueError, match="it is cross attention, and banded"):
        focus(model, Banded(3), layers=[3])
    assert all(layer.index in range(6) for layer in focus(model, TopK(2)).changed)


def test_cross_attention_of_a_decoder_made_from_bert():
    config = tf.BertConfig(**SIZES, num_attention_heads=4, is_decoder=True, add_cross_attention=True)
    model = tf.BertLMHeadModel(config)
    result = focus(model, Banded(3))
    assert [layer.kind for layer, _ in result.left] == ["BertCrossAttention"] * 2


def test_cross_attention_that_only_the_parent_s_name_tells():
    config = tf.Blip2QFormerConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, cross_attention_frequency=2,
        encoder_hidden_size=16,
    )  # fmt: skip
    model = tf.Blip2QFormerModel(config).eval()
    result = focus(model, Banded(3))
    assert [layer.name for layer, _ in result.left] == ["encoder.layer.0.crossattention.attention"]
    assert not models.is_cross("cross_modal_layers.attention", torch.nn.Identity())
    assert models.is_cross("cross_attn", torch.nn.Identity())


def umt5(**settings):
    """Its decoder's self attention does not say that it is causal."""
    config = tf.UMT5Config(
        vocab_size=23, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4, relative_attention_num_buckets=8,
        pad_token_id=0, eos_token_id=2, decoder_start_token_id=0, **settings,
    )  # fmt: skip
    return tf.UMT5ForConditionalGeneration(config).eval()


def test_self_attention_in_a_decoder_that_does_not_say_so():
    model = umt5()
    result = focus(model, Banded(3))
    assert [layer.name for layer, _ in result.left] == ["decoder.block.0.layer.1.EncDecAttention"]
    out = model(tokens(), decoder_input_ids=tokens(), output_attentions=True)
    assert (out.decoder_attentions[0][0, 0] > 0).sum(-1).tolist() == [1, 2] + [3] * 11
    cached = model(tokens(), decoder_input_ids=tokens()[:, :12]).past_key_values  # the last query stands at the end
    last = model(tokens(), decoder_input_ids=tokens()[:, 12:], past_key_values=cached).logits
    torch.testing.assert_close(last[:, 0], out.logits[:, 12], atol=1e-5, rtol=0)
    unfocus(model)
    rows = diagnose(model, {"input_ids": tokens(), "decoder_input_ids": tokens()}, ks=(2,)).layers
    assert [row["cross"] for row in rows] == [False, False, True]


def test_the_implementation_by_name_knows_it_too():
    model = umt5(attn_implementation="semfocus_banded", semfocus={"width": 3})
    attention = model.decoder.block[0].layer
    hidden, mask = torch.randn(2, 13, 16), torch.ones(1, 1, 1, 1, dtype=torch.uint8)
    assert attention[0](hidden, attention_mask=mask)[0].isfinite().all()
    with pytest.raises(ValueError, match="UMT5Attention attends to another sequence"):
        attention[1](hidden, encoder_hidden_states=hidden, attention_mask=torch.ones(2, 1, 13, 13, dtype=torch.bool))


def test_self_attention_in_informer_s_decoder():
    config = tf.InformerConfig(
        prediction_length=4, context_length=8, d_model=16, encoder_layers=1, decoder_layers=1, attention_type="full",
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
    )  # fmt: skip
    result = focus(tf.InformerModel(config), Banded(3))
    assert [layer.name for layer, _ in result.left] == ["decoder.layers.0.encoder_attn"]


def test_what_cannot_be_reached_is_refused():
    bloom = tf.BloomForCausalLM(tf.BloomConfig(vocab_size=23, hidden_size=16, n_layer=2, n_head=2))
    before = bloom(tokens()).logits
    with pytest.raises(
        ValueError, match=r"h\.0\.self_attention is a BloomAttention, whose attention does not go through"
    ):
        focus(bloom, TopK(2))
    assert torch.equal(bloom(tokens()).logits, before)
    llama = make("llama")
    with pytest.raises(ValueError, match="is a LlamaAttention without its model"):
        focus(llama.model.layers[0], TopK(2))
    with pytest.raises(ValueError, match="global_tokens is 1"):
        focus(llama, Banded(2, global_tokens=1))
    with pytest.raises(ValueError, match="layers holds 2; this model's attention layers are 0 to 1"):
        focus(llama, TopK(2), layers=[2])
    assert llama.config._attn_implementation == "eager"
    focus(llama, Full())
    with pytest.raises(ValueError, match="focused as a part of a larger model"):
        unfocus(llama.model)


def test_the_other_way_into_such_a_model_is_refused_too():
    hf.register()
    config = tf.BloomConfig(
        vocab_size=23, hidden_size=16, n_layer=2, n_head=2, attn_implementation="semfocus_top_k", semfocus={"k": 2}
    )
    with pytest.raises(ValueError, match="the attention of BloomConfig's model does not go through"):
        tf.BloomForCausalLM(config)(tokens())


def test_attention_of_their_own_beside_ours_is_refused_where_it_asks_for_masks():
    """BLIP's text model has a file of its own; BigBirdPegasus' encoder is in one file with its decoder."""
    hf.register()
    ours = {"attn_implementation": "semfocus_top_k"}
    blip = tf.BlipTextConfig(**SIZES, num_attention_heads=4, encoder_hidden_size=16, semfocus={"k": 2}, **ours)
    with pytest.raises(ValueError, match="the attention of BlipTextConfig's model does not go through"):
        tf.BlipTextModel(blip)(tokens())
    sides = {
        f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("attention_heads", 2))
    }
    widths = {"vocab_size": 23, "d_model": 16, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    bird = tf.BigBirdPegasusConfig(**widths, **sides, attention_type="original_full", semfocus={"k": 2}, **ours)
    with pytest.raises(ValueError, match="but BigBirdPegasusSelfAttention does not go through"):
        tf.BigBirdPegasusModel(bird)(tokens(), decoder_input_ids=tokens())


def test_learned_sinks_are_refused_by_name():
    config = tf.GptOssConfig(**SIZES, **HEADS, num_local_experts=2, num_experts_per_tok=1)
    model = tf.GptOssForCausalLM(config)
    focus(model, TopK(2))
    with pytest.raises(ValueError, match="GptOssAttention passes s_aux to its attention"):
        model(tokens())


def test_a_focused_model_works_in_the_process_that_loads_it(tmp_path):
    model = make("llama", "sdpa").eval()
    focus(model, TopK(2))
    torch.save({"model": model, "tokens": tokens(), "logits": logits("llama", model, tokens())}, tmp_path / "model.pt")
    code = """
import sys, torch
found = torch.load(sys.argv[1], weights_only=False)
with torch.no_grad():
    out = found["model"](found["tokens"]).logits
torch.testing.assert_close(out, found["logits"])
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "model.pt"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    unfocus(model)
    assert not any("semfocus" in name for module in model.modules() for name in vars(module))


def test_attention_by_code_of_its_own_is_named():
    """SAM's vision layers take no mask and use no interface: they stay as they are, and focus says so."""
    vision = {"num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 32, "output_channels": 16, "window_size": 4}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 32}
    model = tf.SamModel(
        tf.SamConfig(
            vision_config=tf.SamVisionConfig(
                hidden_size=32, image_size=64, patch_size=8, global_attn_indexes=[1], **vision
            ),
            mask_decoder_config=tf.SamMaskDecoderConfig(**sizes, iou_head_hidden_dim=16),
            prompt_encoder_config=tf.SamPromptEncoderConfig(hidden_size=16, image_size=64, patch_size=8),
        )
    )
    result = focus(model, TopK(1))
    assert [name for name, _ in result.unreached] == [f"vision_encoder.layers.{n}.attn" for n in (0, 1)]
    assert all(layer.name.startswith("mask_decoder") for layer in result.changed)
    assert "beyond reach: they attend by code of their own\n  vision_encoder.layers.0.attn  Sam" in str(result)
    assert focus(make("llama"), TopK(3)).unreached == ()
