"""Randomly initialised models of eight architectures, small enough for tests. Nothing is downloaded."""

import pytest
import torch

tf = pytest.importorskip("transformers", reason="semfocus[hf] is not installed")

from semfocus import hf  # noqa: E402

hf.register()

VOCABULARY = 23
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}  # two queries share a key
WINDOW = 6
T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}

#: Class, config class and settings.
MODELS = {
    "llama": (tf.LlamaForCausalLM, tf.LlamaConfig, {**SIZES, **TOKENS, **HEADS}),
    "mistral": (tf.MistralForCausalLM, tf.MistralConfig, {**SIZES, **TOKENS, **HEADS, "sliding_window": WINDOW}),
    "gemma2": (
        tf.Gemma2ForCausalLM,
        tf.Gemma2Config,
        {**SIZES, **TOKENS, **HEADS, "sliding_window": WINDOW, "attn_logit_softcapping": 0.5},
    ),
    "qwen3": (tf.Qwen3ForCausalLM, tf.Qwen3Config, {**SIZES, **TOKENS, **HEADS}),
    "gpt_neox": (tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig, {**SIZES, **TOKENS, "num_attention_heads": 4}),
    "gpt2": (
        tf.GPT2LMHeadModel,
        tf.GPT2Config,
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, **TOKENS},
    ),
    "bert": (tf.BertForMaskedLM, tf.BertConfig, {**SIZES, "num_attention_heads": 4, "pad_token_id": 0}),
    "t5": (
        tf.T5ForConditionalGeneration,
        tf.T5Config,
        {"vocab_size": VOCABULARY, **T5, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0},
    ),
}
DECODERS = ["llama", "mistral", "gemma2", "qwen3", "gpt_neox", "gpt2"]
CAUSAL = [*DECODERS, "t5"]


def make(name, implementation="eager", dtype=torch.float32, **settings):
    """A model in evaluation. Its weights are drawn wide, so that attention has something to choose."""
    model_class, config_class, usual = MODELS[name]
    model = model_class(config_class(**{**usual, **settings}, attn_implementation=implementation)).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def tokens(batch=3, length=13, seed=1):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(side, batch=3, length=13):
    """(b, s), 1 = token; the second example is shorter."""
    mask = torch.ones(batch, length, dtype=torch.long)
    if side != "none":
        mask[1, slice(length - 4, None) if side == "right" else slice(4)] = 0
    return mask


def logits(name, model, ids, mask=None, **more):
    """T5's decoder gets the tokens too, fewer of them, so that cross attention is not square."""
    if name == "t5":
        more.setdefault("decoder_input_ids", ids[:, : ids.shape[1] - 4])
    return model(input_ids=ids, attention_mask=mask, **more).logits


def real(name, mask, out):
    """Which rows of the logits belong to tokens and not to padding. T5's mask is over its encoder."""
    return torch.ones(out.shape[:2], dtype=torch.bool) if name == "t5" else mask.bool()
