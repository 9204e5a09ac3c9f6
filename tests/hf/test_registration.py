"""Names, knobs in configs, and mistakes in them."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from tiny_models import MODELS, logits, make, tf, tokens

import semfocus
from semfocus import hf, patterns
from semfocus.hf.attention import attention
from semfocus.hf.masks import attention_mask
from semfocus.nn import focus


def test_knobs_are_saved_with_the_config(tmp_path):
    model = make("llama", "semfocus_top_k", semfocus={"k": 2, "sinks": 1})
    wanted = model(tokens()).logits
    model.save_pretrained(tmp_path)
    loaded = tf.LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="semfocus_top_k").eval()
    assert loaded.config.semfocus == {"k": 2, "sinks": 1}
    torch.testing.assert_close(loaded(tokens()).logits, wanted)
    plain = tf.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert (plain(tokens()).logits - wanted).abs().max() > 0.01


def test_models_with_different_knobs_live_side_by_side():
    few, many, plain = make("llama", "semfocus_top_k", semfocus={"k": 2}), None, make("llama", "sdpa")
    wanted, plainly = few(tokens()).logits, plain(tokens()).logits
    many = make("llama", "semfocus_top_k", semfocus={"k": 6})
    hf.register()
    assert (many(tokens()).logits - wanted).abs().max() > 0.01
    assert torch.equal(few(tokens()).logits, wanted)
    assert torch.equal(plain(tokens()).logits, plainly)
    few.config.semfocus = {"k": 6}
    torch.testing.assert_close(few(tokens()).logits, many(tokens()).logits)


def test_set_attn_implementation():
    model = make("llama", "sdpa", semfocus={"k": 2})
    wanted = make("llama", "semfocus_top_k", semfocus={"k": 2})(tokens()).logits
    assert (model(tokens()).logits - wanted).abs().max() > 0.01
    model.set_attn_implementation("semfocus_top_k")
    torch.testing.assert_close(model(tokens()).logits, wanted)


@pytest.mark.parametrize("stem", patterns.registry.own_names())
def test_every_pattern_runs_by_name(stem):
    cls = patterns.find(stem)
    knobs = dict.fromkeys(set(cls.__dataclass_fields__) & {"k", "width"}, 3)
    model = make("llama", f"semfocus_{stem}", semfocus=knobs)
    torch.manual_seed(0)
    out = model(tokens(), output_attentions=True)
    assert out.logits.isfinite().all()
    assert int((out.attentions[0] > 0).sum(-1).max()) == (3 if knobs else 13)


def test_a_user_s_pattern():
    @semfocus.register
    @dataclass(frozen=True)
    class NewestKeys(semfocus.Pattern):
        """The last few visible keys."""

        input_dependent = False
        width: int = 2

        def keep(self, q, k, visible):
            left = visible.flip(-1).cumsum(-1).flip(-1)
            return visible & (left <= self.width)

    assert "semfocus_newest_keys" in hf.register()
    mine = make("llama", "semfocus_newest_keys", semfocus={"width": 3})
    banded = make("llama", "semfocus_banded", semfocus={"width": 3})
    torch.testing.assert_close(mine(tokens()).logits, banded(tokens()).logits)


def test_a_name_that_transformers_takes_for_its_own():
    @semfocus.register
    @dataclass(frozen=True)
    class FlashKeys(semfocus.Pattern):
        """All."""

        input_dependent = False

        def keep(self, q, k, visible):
            return visible

    with pytest.raises(ValueError, match="pattern 'flash_keys' has 'flash' in its name"):
        hf.register()


@pytest.mark.parametrize(
    ("implementation", "knobs", "message"),
    [
        ("semfocus_top_k", {}, "pattern 'top_k' needs k"),
        ("semfocus_top_k", {"kk": 2}, "'top_k' has no option 'kk'; did you mean 'k'?"),
        ("semfocus_top_k", {"k": 0}, "k is 0; it must be an integer of at least 1"),
        ("semfocus_top_k", 8, "config.semfocus is 8; it must be a dict"),
        ("semfocus_banded", {"width": 2, "global_tokens": 1}, "global_tokens is 1 in banded"),
    ],
)
def test_mistakes_in_the_config_are_named(implementation, knobs, message):
    model = make("llama", implementation, semfocus=knobs)
    with pytest.raises(ValueError) as error:
        model(tokens())
    assert message in str(error.value)


def test_the_name_that_focus_uses_is_not_for_users():
    focus(make("llama"), semfocus.TopK(2))
    with pytest.raises(ValueError, match="choose one by name, such as 'semfocus_top_k'"):
        make("llama", "semfocus", semfocus={"k": 2})(tokens())


def test_positions_mean_nothing_between_two_sequences():
    model = make("t5", "semfocus_banded", semfocus={"width": 3})
    with pytest.raises(ValueError, match=r"T5Attention attends to another sequence \(13 queries, 13 keys\)"):
        logits("t5", model, tokens(), decoder_input_ids=tokens())  # equally long, and still another sequence
    # The encoder alone is one sequence.
    assert model.encoder(tokens()).last_hidden_state.isfinite().all()


class Module(torch.nn.Module):
    """An attention layer as far as the attention function looks at it."""

    def __init__(self, **attributes):
        super().__init__()
        self.config = SimpleNamespace(semfocus={"k": 2})
        for name, value in attributes.items():
            setattr(self, name, value)


def call(mask=None, t=4, s=4, module=None, dtype=torch.float32, stem="top_k", **given):
    query = torch.zeros(2, 4, t, 8, dtype=dtype)
    return attention(module or Module(is_causal=True), query, *torch.zeros(2, 2, 2, s, 8), mask, stem=stem, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"s_aux": torch.zeros(4)}, r"passes s_aux to its attention \(learned attention sinks\)"),
        ({"cu_seq_lens_q": torch.zeros(2)}, "passes cu_seq_lens_q"),
        ({"head_mask": torch.zeros(4)}, "passes head_mask"),
        ({"alibi": torch.zeros(4)}, r"passes alibi to its attention \(an argument semfocus does not know\)"),
        ({"sliding_window": 3}, "has a sliding window of 3 but passes no mask"),
        ({"module": Module()}, "does not say whether it is causal"),
        ({"s": 7}, "passes no mask for 4 queries and 7 keys"),
        ({"mask": torch.ones(2, 4)}, r"attention_mask in Module is \(2, 4\)"),
        ({"mask": torch.ones(2, 1, 4, 4, dtype=torch.long)}, "attention_mask is torch.int64"),
        ({"mask": torch.ones(2, 1, 1, 4, dtype=torch.bool)}, "it does not say what each query may see"),
        ({"mask": torch.ones(2, 1, 4, 9, dtype=torch.bool)}, r"attn_mask has shape \(2, 1, 4, 9\)"),
        ({"dtype": torch.float64}, "key is torch.float32"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:24],
)
def test_arguments_are_honoured_or_refused_never_ignored(given, message):
    with pytest.raises(ValueError, match=message):
        call(**given)


def test_a_mask_is_the_truth_whatever_the_flag():
    """Some models pass is_causal=False to say that there is a mask. The queries still stand behind the other keys."""
    banded = Module(is_causal=True)
    banded.config.semfocus = {"width": 3}
    mask = (torch.arange(7) <= torch.arange(3, 7)[:, None]).expand(2, 1, 4, 7)
    _, weights = call(mask, s=7, module=banded, stem="banded", is_causal=False, output_attentions=True)
    kept = (torch.arange(7) > torch.arange(3, 7)[:, None] - 3) & mask
    assert torch.equal(weights > 0, kept.expand(2, 4, 4, 7))


def test_harmless_arguments_and_none_pass():
    out, weights = call(use_cache=True, position_ids=torch.arange(4), s_aux=None, num_items_in_batch=torch.tensor(3))
    assert out.shape == (2, 4, 4, 8)
    assert weights is None
    assert call(is_causal=False, module=Module())[0].shape == out.shape
    assert call(labels=torch.ones(2, 4), logits_to_keep=0)[0].shape == out.shape


def test_the_mask_holds_what_static_caches_and_prefixes_say():
    """A prefix that is seen from everywhere, in a cache with room left: positions would be wrong."""
    from transformers import masking_utils

    def prefix(batch, head, query, key):
        return (key <= query) | (key < 3)

    sizes = {"batch_size": 1, "q_length": 4, "kv_length": 9, "q_offset": torch.tensor(0), "device": "cpu"}
    with pytest.raises(
        ValueError, match="4 queries stand among 9 keys of a static cache under a mask that is not causal"
    ):
        attention_mask(**sizes, mask_function=prefix)
    causal = attention_mask(**sizes, mask_function=masking_utils.causal_mask_function)
    assert torch.equal(causal[0, 0], torch.arange(9) <= torch.arange(4)[:, None])
    whole = attention_mask(**{**sizes, "kv_length": 4}, mask_function=prefix)
    assert whole[0, 0, 0].tolist() == [True, True, True, False]


@pytest.mark.parametrize("installed", [None, SimpleNamespace(__version__="4.57.1")], ids=["missing", "old"])
def test_without_transformers_the_error_names_the_extra(monkeypatch, installed):
    monkeypatch.setitem(sys.modules, "transformers", installed)
    with pytest.raises(ImportError, match=r"needs transformers 5\.17 or newer.*pip install 'semfocus\[hf\]'"):
        hf.register()
    focus(torch.nn.MultiheadAttention(8, 2), semfocus.TopK(2))  # needs none


def test_models_of_the_eight_architectures_are_covered():
    assert set(MODELS) == {"llama", "mistral", "gemma2", "qwen3", "gpt_neox", "gpt2", "bert", "t5"}
