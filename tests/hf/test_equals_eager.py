"""With a budget for all keys every architecture is what it was: forward, gradients, weights. Smaller ones differ."""

import pytest
import torch
from tiny_models import DECODERS, MODELS, SIZES, logits, make, padding, real, tf, tokens

import semfocus
from semfocus import Banded, TopK, hf
from semfocus.hf import reach
from semfocus.nn import focus


def forward_and_gradients(name, model, mask):
    out = logits(name, model, tokens(), mask)
    out = out[real(name, mask, out)]
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    return out, torch.autograd.grad((out * direction).sum(), list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_all_keys_is_eager(name, side):
    mask = padding(side)
    wanted, wanted_gradients = forward_and_gradients(name, make(name), mask)
    for implementation, knobs in (("semfocus_top_k", {"k": 100}), ("semfocus_full", {})):
        model = make(name, implementation, semfocus=knobs)
        actual, gradients = forward_and_gradients(name, model, mask)
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=0)
        # Some gradients, such as those of BERT's key biases, are zero but for rounding: compare with the largest.
        largest = max(float(b.abs().max()) for b in wanted_gradients if b is not None)
        for a, b in zip(gradients, wanted_gradients, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, atol=1e-5 * largest, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_without_a_mask_too(name):
    wanted = logits(name, make(name), tokens())
    actual = logits(name, make(name, "semfocus_top_k", semfocus={"k": 100}), tokens())
    torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_small_budget_differs_and_its_weights_are_returned(name):
    mask = padding("right")
    eager = make(name)
    full = eager(**given(name, mask), output_attentions=True)
    model = make(name, "semfocus_top_k", semfocus={"k": 2})
    out = model(**given(name, mask), output_attentions=True)
    keys = [key for key in full if key.endswith("attentions")]
    assert keys
    for key in keys:
        for weights, wanted in zip(out[key], full[key], strict=True):
            assert weights.shape == wanted.shape
            kept = (weights > 0).sum(-1)
            assert int(kept.max()) == 2
            torch.testing.assert_close(weights.sum(-1), (kept > 0).float())
    assert (out.logits - full.logits)[real(name, mask, out.logits)].abs().max() > 0.01
    again = logits(name, model, tokens(), mask)
    torch.testing.assert_close(again, out.logits, atol=1e-5, rtol=0)
    weights = make(name, "semfocus_top_k", semfocus={"k": 100})(**given(name, mask), output_attentions=True)
    torch.testing.assert_close(weights[keys[0]][0], full[keys[0]][0], atol=1e-6, rtol=0)


def given(name, mask):
    ids = tokens()
    return {"input_ids": ids, "attention_mask": mask, **({"decoder_input_ids": ids[:, :9]} if name == "t5" else {})}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("pattern", [TopK(3), Banded(3), semfocus.FixedRandom(3)], ids=lambda p: p.label)
def test_left_padding_changes_nothing_at_the_tokens(name, pattern):
    model = make(name, dtype=torch.float64)
    focus(model, pattern)
    mask = padding("left")
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    together = logits(name, model, tokens(), mask, position_ids=positions)
    alone = logits(name, model, tokens()[1:2, 4:])
    torch.testing.assert_close(together[1:2, 4:], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_right_padding_changes_nothing_in_encoders(name):
    model = make(name, dtype=torch.float64)
    focus(model, TopK(3))
    decoder = {"decoder_input_ids": tokens()[:, :5]} if name == "t5" else {}
    together = logits(name, model, tokens(), padding("right"), **decoder)[1:2]
    alone = logits(name, model, tokens()[1:2, :9], **{key: value[1:2] for key, value in decoder.items()})
    torch.testing.assert_close(together[:, : alone.shape[1]], alone, atol=1e-9, rtol=0)


def test_packed_sequences_do_not_see_one_another():
    model = make("llama", "semfocus_top_k", dtype=torch.float64, semfocus={"k": 2})
    first, second = tokens(1, 5), tokens(1, 7, seed=2)
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed = model(torch.cat([first, second], 1), position_ids=positions, use_cache=False).logits
    apart = torch.cat([model(first).logits, model(second).logits], 1)
    torch.testing.assert_close(packed, apart, atol=1e-5, rtol=0)


def test_keys_are_not_repeated_for_grouped_queries(monkeypatch):
    heads = []
    attend = semfocus.functional.attend

    def spy(problem, *rest, **options):
        heads.append((problem.q.shape[1], problem.k.shape[1], problem.v.shape[1]))
        return attend(problem, *rest, **options)

    monkeypatch.setattr(semfocus.functional, "attend", spy)
    logits("llama", make("llama", "semfocus_top_k", semfocus={"k": 2}), tokens())
    assert heads == [(4, 2, 2)] * 2


@pytest.mark.parametrize(
    ("name", "side", "causal", "mask"),
    [
        ("llama", None, True, None),
        ("llama", "left", True, (3, 1, 1, 13)),
        ("gpt2", "right", True, (3, 1, 1, 13)),
        ("mistral", "left", False, (3, 1, 13, 13)),  # the window is in the mask
        ("bert", "right", False, (3, 1, 1, 13)),
    ],
)
def test_fused_kernels_are_given_the_masks_they_know(monkeypatch, name, side, causal, mask):
    problems = []
    attend = semfocus.functional.attend
    monkeypatch.setattr(semfocus.functional, "attend", lambda p, **o: (problems.append(p), attend(p, **o))[1])
    logits(name, make(name, "semfocus_top_k", semfocus={"k": 2}), tokens(), side and padding(side))
    for problem in problems:
        assert problem.is_causal == causal
        assert (None if problem.mask is None else tuple(problem.mask.shape)) == mask


def test_gemma_s_cap_is_applied():
    capped = logits("gemma2", make("gemma2", "semfocus_top_k", semfocus={"k": 100}), tokens())
    free = logits(
        "gemma2", make("gemma2", "semfocus_top_k", semfocus={"k": 100}, attn_logit_softcapping=None), tokens()
    )
    assert (capped - free).abs().max() > 0.01


def test_a_mask_of_one_s_own_is_the_truth():
    """Users may pass a whole mask, here one that looks into the future; boolean, or added to the scores."""
    generator = torch.Generator().manual_seed(4)
    visible = torch.rand(3, 1, 13, 13, generator=generator) < 0.5
    visible |= torch.eye(13, dtype=torch.bool)
    added = torch.zeros(3, 1, 13, 13).masked_fill(~visible, torch.finfo(torch.float32).min)
    eager = make("llama")(tokens(), attention_mask=added).logits
    for pattern in (TopK(100), TopK(2), Banded(3)):
        model = make("llama")
        focus(model, pattern)
        by_boolean = model(tokens(), attention_mask=visible).logits
        torch.testing.assert_close(model(tokens(), attention_mask=added).logits, by_boolean, atol=1e-5, rtol=0)
        assert torch.allclose(by_boolean, eager, atol=1e-5) == (pattern == TopK(100))


@pytest.mark.parametrize("use_cache", [True, False])  # without a cache, queries come in float32 and values in bfloat16
def test_autocast(use_cache):
    ids = tokens()
    for pattern in ("semfocus_top_k", "semfocus_full"):
        model = make("llama", pattern, semfocus={"k": 3} if pattern == "semfocus_top_k" else {})
        wanted = model(ids).logits
        with torch.autocast("cpu", torch.bfloat16):
            out = model(ids, labels=ids, use_cache=use_cache)
        assert torch.nn.functional.cosine_similarity(out.logits.float().flatten(), wanted.flatten(), dim=0) > 0.99
        out.loss.backward()


def test_half_precision_weights():
    for dtype in (torch.bfloat16, torch.float16):
        model = make("qwen3", "semfocus_top_k", dtype=dtype, semfocus={"k": 3})
        assert logits("qwen3", model, tokens(), padding("left")).isfinite().all()


def test_compiled():
    """One graph, without breaks, for masks and attention."""
    model = make("llama", "semfocus_top_k", semfocus={"k": 2}, num_hidden_layers=1)
    wanted = model(tokens()).logits
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens()).logits, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("broken", [False, True], ids=["one graph", "two graphs"])
def test_the_first_call_may_be_the_compiled_one(monkeypatch, broken):
    """As in a fresh process: nothing has been looked up yet."""
    monkeypatch.setattr(semfocus.patterns.registry, "_own", {})
    monkeypatch.setattr(reach, "_known", {})
    torch.compiler.reset()
    hf.register()
    model = make("bert", "semfocus_top_k", semfocus={"k": 2}, num_hidden_layers=1)
    if broken:
        model.cls.register_forward_hook(lambda *_: torch._dynamo.graph_break())
    out = torch.compile(model, backend="eager", fullgraph=not broken)(tokens()).logits
    torch.testing.assert_close(out, model(tokens()).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "layer by layer"])
def test_compiled_models_return_their_weights(whole):
    """GPT-2 does not tell its attention that they are wanted."""
    model = make("gpt2", n_layer=1)
    focus(model, TopK(2))
    wanted = model(tokens(), output_attentions=True).attentions
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager") if whole else model
    if not whole:
        model.transformer.h[0].compile(backend="eager")
    torch.testing.assert_close(compiled(tokens(), output_attentions=True).attentions, wanted)
    assert "attentions" not in compiled(tokens())


def test_a_layer_compiles_to_one_graph():
    model = make("gpt2", "semfocus_top_k", semfocus={"k": 2}, n_layer=1)
    wanted = model(tokens()).logits
    torch.compiler.reset()
    model.transformer.h[0].compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(model(tokens()).logits, wanted, atol=1e-5, rtol=0)


def test_models_without_masks():
    sizes = {k: v for k, v in MODELS["bert"][2].items() if k not in ("vocab_size", "pad_token_id")}
    config = tf.ViTConfig(**sizes, image_size=8, patch_size=2, num_channels=1, attn_implementation="eager")
    model = tf.ViTModel(config).eval()
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    wanted = model(images).last_hidden_state
    for k, same in ((17, True), (2, False)):
        focus(model, TopK(k))
        assert torch.allclose(model(images).last_hidden_state, wanted, atol=1e-5) == same


def test_the_family_of_bart():
    """One class for self and cross attention, with padding on both sides of it."""
    config = tf.BartConfig(
        vocab_size=23, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    model = tf.BartForConditionalGeneration(config).eval()
    call = {"input_ids": tokens(), "attention_mask": padding("right"), "decoder_input_ids": tokens()[:, :9]}
    wanted = model(**call).logits
    focus(model, TopK(100))
    torch.testing.assert_close(model(**call).logits, wanted, atol=1e-5, rtol=0)
    cross = [layer.name.rpartition(".")[2] for layer, _ in focus(model, Banded(3)).left]
    assert cross == ["encoder_attn", "encoder_attn"]
    assert model(**call).logits.isfinite().all()


def test_every_name_is_registered():
    names = hf.register()
    assert names == [f"semfocus_{stem}" for stem in semfocus.patterns.names()]
    for name in names:
        assert name in tf.AttentionInterface().valid_keys()
        assert name in tf.AttentionMaskInterface().valid_keys()


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("focused", [False, True])
def test_attention_that_looks_into_its_mask(side, focused):
    """Doge makes a mask of its own of the one it is given, so it must be given a whole one."""

    def doge(implementation, **settings):
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        torch.manual_seed(0)
        model = tf.DogeForCausalLM(tf.DogeConfig(**SIZES, **heads, attn_implementation=implementation, **settings))
        for parameter in model.parameters():
            parameter.data.add_(torch.randn(parameter.shape) * 0.2)
        return model.eval()

    mask = padding(side)
    wanted = doge("eager")(tokens(), attention_mask=mask).logits
    model = doge("eager") if focused else doge("semfocus_top_k", semfocus={"k": 100})
    if focused:
        focus(model, TopK(100))
    found = model(tokens(), attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], wanted[mask.bool()], atol=1e-5, rtol=0)
