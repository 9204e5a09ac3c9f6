"""The decoder: causal under every pattern, equal in all but the pattern, and what it says it is."""

import math

import pytest
import torch
from torch.nn import functional as F

from semfocus import Banded, FixedRandom, Full, RandomK, TopK, patterns
from semfocus.language.attention_probe import probe
from semfocus.language.decoder import Decoder

VOCABULARY = 256
CAUSAL = [
    pattern
    for name in patterns.registry.own_names()
    for pattern in patterns.find(name).examples()
    if not pattern.global_tokens and not pattern.batch_dependent
]


def decoder(config, pattern, seed=0, dtype=torch.float64):
    return Decoder(config.model, VOCABULARY, pattern, seed).to(dtype)


@pytest.mark.parametrize("pattern", CAUSAL, ids=lambda pattern: pattern.label)
def test_later_tokens_never_change_earlier_logits(tiny, pattern):
    model = decoder(tiny(), pattern)
    tokens = torch.randint(0, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % VOCABULARY
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("pattern", [Full(), TopK(5), Banded(5)], ids=lambda pattern: pattern.label)
def test_all_patterns_have_the_same_parameters_and_the_same_start(tiny, pattern):
    config = tiny(pattern=pattern)
    model, plain = decoder(config, pattern), decoder(config, Full())
    assert sum(p.numel() for p in model.parameters()) == config.parameters
    for (name, ours), (_, theirs) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert not torch.equal(model.embedding, decoder(config, pattern, seed=1).embedding)


def by_hand(model, tokens, heads, scale):
    """Full attention written out again, with positions as complex rotations."""
    h = model.embedding[tokens]
    b, t, d = h.shape
    e = d // heads

    def norm(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * weight

    def turned(x):  # (b, t, h, e)
        angle = torch.arange(t)[:, None] / 10_000.0 ** (torch.arange(e // 2) * 2 / e)
        spun = torch.complex(x[..., : e // 2], x[..., e // 2 :]) * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.cat((spun.real, spun.imag), -1)

    for block in model.blocks:
        q, k, v = (norm(h, block.attention_norm) @ block.qkv.T).view(b, t, 3, heads, e).unbind(2)
        scores = torch.einsum("bthe,bshe->bhts", turned(q), turned(k)) * scale / math.sqrt(e)
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("bhts,bshe->bthe", scores.softmax(-1), v).reshape(b, t, d)
        h = h + mixed @ block.out.T
        h = h + F.gelu(norm(h, block.mlp_norm) @ block.up.T) @ block.down.T
    return norm(h, model.norm) @ model.embedding.T


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("pattern", [Full(), TopK(16), Banded(16)], ids=lambda pattern: pattern.label)
def test_with_all_keys_it_is_plain_attention(tiny, pattern, scale):
    config = tiny(model={"attention_scale": scale})
    model = decoder(config, pattern)
    with torch.no_grad():  # at their start the scores are nearly equal: larger weights make attention matter
        for block in model.blocks:
            block.qkv.mul_(20)
    tokens = torch.randint(0, VOCABULARY, (3, 16), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), by_hand(model, tokens, 2, scale), rtol=1e-5, atol=1e-6)


def test_the_scale_and_the_pattern_change_the_logits(tiny):
    tokens = torch.randint(0, VOCABULARY, (1, 16), generator=torch.Generator().manual_seed(2))
    plain = decoder(tiny(), Full())(tokens)
    assert not torch.allclose(plain, decoder(tiny(model={"attention_scale": 4.0}), Full())(tokens))
    assert not torch.allclose(plain, decoder(tiny(), TopK(2))(tokens))


def test_autocast_keeps_the_shape_and_nearly_the_values(tiny):
    tokens = torch.randint(0, VOCABULARY, (1, 16), generator=torch.Generator().manual_seed(3))
    model = decoder(tiny(), TopK(16), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(tokens).float()
    exact = model(tokens)
    assert half.shape == (1, 16, VOCABULARY)
    assert (half - exact).abs().max() < 0.05 * exact.abs().max()


def some_tokens():
    return torch.randint(0, VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(4))


def test_random_keys_depend_on_seed_mode_step_and_row(tiny):
    def kept(seed=0, step=0, rows=None, training=True, count=4):
        model = decoder(tiny(), RandomK(3), seed).train(training)
        found = probe(model, lambda: model(some_tokens()[:count], step, rows), count)
        return torch.stack([next(found.rows(layer)).kept for layer in found.layers])  # (blocks, b, h, t, s)

    plain = kept()
    assert torch.equal(plain, kept())
    assert torch.equal(plain, kept(step=torch.tensor(0)))
    for other in (kept(seed=1), kept(step=1), kept(training=False), plain.flip(0), plain.roll(1, 1)):
        assert not torch.equal(plain, other)
    assert torch.equal(plain[:, 2:], kept(rows=torch.arange(2, 4), count=2))


def test_a_probe_of_some_rows_sees_the_keys_that_all_of_them_kept(tiny):
    model = decoder(tiny(), RandomK(3))
    outputs = []
    for block in model.blocks:
        block.attend = lambda problem, attend=block.attend: outputs.append(attend(problem)) or outputs[-1]
    found = probe(model, lambda: model(some_tokens(), 5), 2)
    for layer, (_, weights) in zip(found.layers, outputs, strict=True):
        assert torch.equal(next(found.rows(layer)).kept, weights[:2] > 0)


def test_keys_drawn_once_depend_on_the_run_and_the_layer_but_not_on_the_step(tiny):
    def kept(seed=0, step=0):
        model = decoder(tiny(), FixedRandom(3), seed)
        found = probe(model, lambda: model(some_tokens(), step), 4)
        return torch.stack([next(found.rows(layer)).kept for layer in found.layers])

    plain = kept()
    assert torch.equal(plain, kept(step=1))
    assert torch.equal(plain, plain[:, :1].expand_as(plain))
    assert not torch.equal(plain, kept(seed=1))
    assert not torch.equal(plain[0], plain[1])
