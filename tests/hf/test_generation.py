"""generate with a cache, without one and with a static one agree; so does feeding a prompt in pieces."""

import pytest
import torch
from tiny_models import CAUSAL, DECODERS, logits, make, padding, tf, tokens

import semfocus
from semfocus import Banded, TopK
from semfocus.nn import focus

PATTERNS = [TopK(2), Banded(3), semfocus.BlockLocal(3), semfocus.FixedRandom(3), semfocus.Strided(3)]
CACHES = [{"use_cache": True}, {"use_cache": False}, {"cache_implementation": "static", "disable_compile": True}]


def generate(model, name, **options):
    side = "right" if name == "t5" else "left"
    out = model.generate(
        input_ids=tokens(),
        attention_mask=padding(side),
        max_new_tokens=8,
        min_new_tokens=8,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return out.sequences, torch.stack(out.logits)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.label)
@pytest.mark.parametrize("name", CAUSAL)
def test_caches_do_not_matter(name, pattern):
    model = make(name, "sdpa", dtype=torch.float64)
    _, plain = generate(model, name)
    focus(model, pattern)
    wanted, wanted_logits = generate(model, name)
    assert (wanted_logits - plain).abs().max() > 0.01
    for options in CACHES[1:]:
        sequences, found = generate(model, name, **options)
        torch.testing.assert_close(found, wanted_logits, atol=1e-5, rtol=0)  # the logits come in float32
        assert torch.equal(sequences, wanted)


def test_the_static_cache_is_longer_than_what_is_in_it(monkeypatch):
    lengths = []
    attend = semfocus.functional.attend
    monkeypatch.setattr(
        semfocus.functional, "attend", lambda p, **o: (lengths.append(p.k.shape[-2]), attend(p, **o))[1]
    )
    model = make("llama")
    focus(model, Banded(3))
    generate(model, "llama", **CACHES[2])
    assert set(lengths) == {len(tokens()[0]) + 8 - 1}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("pattern", PATTERNS[:2], ids=lambda p: p.label)
def test_a_prompt_in_pieces(name, pattern):
    model = make(name, dtype=torch.float64)
    focus(model, pattern)
    ids = tokens()
    whole = model(ids).logits
    cache = tf.DynamicCache(config=model.config)
    pieces = [model(part, past_key_values=cache, use_cache=True).logits for part in ids.split([5, 1, 4, 3], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-6, rtol=0)


def test_beams_and_sampling_run():
    model = make("qwen3", "semfocus_top_k", semfocus={"k": 2})
    torch.manual_seed(0)
    for options in ({"num_beams": 3}, {"do_sample": True}):
        out = model.generate(tokens(), attention_mask=padding("left"), max_new_tokens=4, **options)
        assert out.shape[0] == 3


def test_swapping_with_another_example_depends_on_the_batch():
    """By its definition: the control takes the choice of the next example."""
    model = make("llama", "semfocus_swapped_top_k", dtype=torch.float64, semfocus={"k": 2})
    together, alone = logits("llama", model, tokens()), logits("llama", model, tokens()[:1])
    assert (together[:1] - alone).abs().max() > 0.01
    top = make("llama", "semfocus_top_k", dtype=torch.float64, semfocus={"k": 2})
    torch.testing.assert_close(alone, logits("llama", top, tokens()[:1]))
