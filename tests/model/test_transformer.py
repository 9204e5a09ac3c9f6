"""The population against one plain module at a time, written here from the experiment's description."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from semfocus import Banded, BlockLocal, FixedRandom, Full, ModelConfig, RandomK, TopK, Transformer
from semfocus.model.positions import sinusoidal


class PlainHead(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, hidden, choose, scale):
        scores = scale * self.q(x) @ self.k(x).mT / math.sqrt(x.shape[-1])
        scores = scores.masked_fill(hidden[:, None, :], -torch.inf)
        kept = choose(scores.detach())
        return scores.masked_fill(~kept, -torch.inf).softmax(-1) @ self.v(x)


class PlainEncoder(nn.Module):
    """One model, no population axis, no sharing with the code under test."""

    def __init__(self, config, extra_ids):
        super().__init__()
        d, self.config = config.width, config
        self.embedding = nn.Embedding(config.vocabulary + 1 + extra_ids, d)
        self.heads = nn.ModuleList(
            nn.ModuleList(PlainHead(d) for _ in range(config.heads)) for _ in range(config.blocks)
        )
        self.out = nn.ModuleList(nn.Linear(config.heads * d, d) for _ in range(config.blocks))
        self.mlp = nn.ModuleList(
            nn.ModuleList([nn.Linear(d, config.mlp_width), nn.Linear(config.mlp_width, d)])
            for _ in range(config.blocks)
        )
        self.read = nn.Linear(d, config.classes)
        self.act = {"relu": nn.ReLU(), "gelu": nn.GELU(), "mish": nn.Mish()}[config.activation]

    def forward(self, tokens, choose, globals_=0):
        c, pad = self.config, tokens == self.config.vocabulary
        b = len(tokens)
        tape = c.read_out == "tape"
        extra = [c.vocabulary + 1] * (c.outputs if tape else 0)
        extra += [c.vocabulary + 1 + tape + i for i in range(globals_)]
        tokens = torch.cat([tokens, torch.tensor(extra, dtype=torch.long).expand(b, -1)], 1)
        pad = torch.cat([pad, torch.zeros(b, len(extra), dtype=torch.bool)], 1)
        t, d = tokens.shape[1], c.width
        position = torch.tensor(
            [
                [(math.sin if j % 2 == 0 else math.cos)(i / 10000 ** (j // 2 * 2 / d)) for j in range(d)]
                for i in range(t)
            ],
            dtype=torch.float64,
        )
        h = self.embedding(tokens) * math.sqrt(d) + position
        hidden = pad if c.mask_padding else torch.zeros_like(pad)
        for i in range(c.blocks):
            norms = [nn.LayerNorm(d, elementwise_affine=False, eps=e) for e in (0.0 if i == 0 else 1e-5, 1e-5)]
            if c.norm == "pre":
                h = h + self.attend(i, norms[0](h), hidden, choose)
                h = h + self.mlp[i][1](self.act(self.mlp[i][0](norms[1](h))))
            else:
                h = norms[1](h + self.attend(i, h, hidden, choose))
                h = norms[1](h + self.mlp[i][1](self.act(self.mlp[i][0](h))))
        if c.read_out == "tape":
            return self.read(h[:, t - globals_ - c.outputs : t - globals_])
        if c.pool_padding:
            return self.read(h.mean(1))[:, None]
        return self.read(torch.stack([row[~p].mean(0) for row, p in zip(h, pad, strict=True)]))[:, None]

    def attend(self, i, x, hidden, choose):
        return self.out[i](
            torch.cat([head(x, hidden, choose, self.config.attention_scale) for head in self.heads[i]], -1)
        )

    def load(self, population, i):
        def put(linear, ours, part=slice(None)):
            linear.weight.copy_(ours.weight[i][:, part].T)
            linear.bias.copy_(ours.bias[i][0][part])

        d = self.config.width
        with torch.no_grad():
            self.embedding.weight.copy_(population.embedding[i])
            put(self.read, population.read_out)
            for layer, block in enumerate(population.blocks):
                for n, head in enumerate(self.heads[layer]):
                    for place, linear in enumerate((head.q, head.k, head.v)):
                        start = (place * self.config.heads + n) * d
                        put(linear, block.qkv, slice(start, start + d))
                put(self.out[layer], block.output)
                put(self.mlp[layer][0], block.mlp_in), put(self.mlp[layer][1], block.mlp_out)
        return self


def choose_all(scores):
    return scores > -torch.inf


def choose_top(k):
    def choose(scores):
        kept = torch.zeros_like(scores, dtype=torch.bool)
        kept.scatter_(-1, scores.topk(min(k, scores.shape[-1])).indices, True)
        return kept & (scores > -torch.inf)

    return choose


def choose_band(width, globals_):
    """The paper's window; valid where nothing is hidden."""

    def choose(scores):
        t = scores.shape[-1]
        kept, n = torch.zeros(t, t, dtype=torch.bool), t - globals_
        for i in range(n):
            low = min(max(i - (width - 1) // 2, 0), max(n - width, 0))
            kept[i, low : low + width] = True
        kept[n:] = True
        kept[:, n:] = True
        return kept.expand_as(scores)

    return choose


BASE = ModelConfig(vocabulary=5, classes=3, width=6, mlp_width=7, blocks=2, dropout=0.0)
CASES = {
    "paper": (BASE, 0),
    "post-norm": (dataclasses.replace(BASE, norm="post"), 0),
    "heads": (dataclasses.replace(BASE, heads=3), 0),
    "global tokens": (BASE, 2),
    "tape": (dataclasses.replace(BASE, read_out="tape", outputs=3), 0),
    "tape and global tokens": (dataclasses.replace(BASE, read_out="tape", outputs=2), 1),
    "padding": (dataclasses.replace(BASE, heads=2), 0),
    "padding as a token": (dataclasses.replace(BASE, mask_padding=False, pool_padding=True), 0),
    "padding visible, not pooled": (dataclasses.replace(BASE, mask_padding=False), 0),
}


@pytest.mark.parametrize("case", CASES)
def test_each_member_equals_a_plain_module(case):
    config, g = CASES[case]
    members = [
        (config, Full() if not g else Banded(64, global_tokens=g), choose_all),
        (dataclasses.replace(config, activation="gelu", attention_scale=4.0), TopK(3), choose_top(3)),
        (dataclasses.replace(config, activation="mish"), Banded(3, global_tokens=g), choose_band(3, g)),
    ]
    if g:
        members.pop(1)  # all members of a population have the same global tokens
    if "padding" in case and config.mask_padding:
        members.pop(2)  # the plain window knows no masks
    configs, patterns, choices = zip(*members, strict=True)
    population = Transformer(configs, patterns, seeds=range(len(members)), dtype=torch.float64)
    tokens = torch.randint(0, 5, (len(members), 4, 9), generator=torch.Generator().manual_seed(0))
    if "padding" in case:
        tokens[:, 1, 6:] = config.vocabulary
        tokens[:, 2, :2] = config.vocabulary
    ours = population(tokens)
    coefficients = torch.randn_like(ours)
    ours_gradients = dict(
        zip(
            (name for name, _ in population.named_parameters()),
            torch.autograd.grad((ours * coefficients).sum(), list(population.parameters())),
            strict=True,
        )
    )
    for i, choose in enumerate(choices):
        extra = g + (config.read_out == "tape")
        plain = PlainEncoder(configs[i], extra).double().load(population, i)
        wanted = plain(tokens[i], choose, g)
        torch.testing.assert_close(ours[i], wanted, atol=1e-10, rtol=0)
        (wanted * coefficients[i]).sum().backward()
        torch.testing.assert_close(ours_gradients["embedding"][i], plain.embedding.weight.grad, atol=1e-9, rtol=0)
        torch.testing.assert_close(ours_gradients["read_out.weight"][i], plain.read.weight.grad.T, atol=1e-9, rtol=0)
        for layer in range(config.blocks):
            heads = plain.heads[layer]
            for ours_name, theirs in (
                ("qkv", torch.cat([getattr(head, part).weight.grad for part in "qkv" for head in heads])),
                ("output", plain.out[layer].weight.grad),
                ("mlp_in", plain.mlp[layer][0].weight.grad),
                ("mlp_out", plain.mlp[layer][1].weight.grad),
            ):
                gradient = ours_gradients[f"blocks.{layer}.{ours_name}.weight"][i]
                torch.testing.assert_close(gradient, theirs.T, atol=1e-9, rtol=0)


MIXED = [Full(), TopK(3), TopK(3), RandomK(2), FixedRandom(2), Banded(3), BlockLocal(4)]


@pytest.mark.parametrize("training", [False, True])
def test_a_member_does_not_feel_its_population(training):
    config = dataclasses.replace(BASE, dropout=0.2)
    seeds = [4, 4, 5, 4, 4, 6, 4]
    population = Transformer([config] * len(MIXED), MIXED, seeds, dtype=torch.float64).train(training)
    tokens = torch.randint(0, 6, (len(MIXED), 3, 8), generator=torch.Generator().manual_seed(1))
    together = population(tokens, step=torch.tensor(17))
    for i, (pattern, seed) in enumerate(zip(MIXED, seeds, strict=True)):
        alone = Transformer(config, pattern, seed, dtype=torch.float64).train(training)(tokens[i : i + 1], step=17)
        torch.testing.assert_close(alone[0], together[i], atol=1e-12, rtol=0)


def test_randomness_follows_seed_and_step_alone():
    config = dataclasses.replace(BASE, dropout=0.2)
    tokens = torch.zeros(1, 2, 8, dtype=torch.long)
    model = Transformer(config, Full(), 1).train()
    torch.manual_seed(0)
    first = model(tokens, step=3)
    torch.manual_seed(1)
    assert torch.equal(first, model(tokens, step=3))
    assert not torch.equal(first, model(tokens, step=4))
    model.eval()
    assert torch.equal(model(tokens, step=3), model(tokens, step=4))


def test_initial_weights_depend_on_the_seed_and_the_name_alone():
    plain = Transformer(BASE, Full(), 1)
    with_globals = Transformer(dataclasses.replace(BASE, blocks=4), Banded(3, global_tokens=2), 1)
    assert torch.equal(plain.embedding[0], with_globals.embedding[0, : BASE.vocabulary + 1])
    assert torch.equal(plain.blocks[1].qkv.weight, with_globals.blocks[1].qkv.weight)
    assert not torch.equal(plain.blocks[1].qkv.weight, plain.blocks[0].qkv.weight)
    assert not torch.equal(plain.embedding, Transformer(BASE, Full(), 2).embedding)


def test_initial_distributions():
    config = ModelConfig(vocabulary=30, classes=10)
    model = Transformer(config, Full(), 0)
    assert model.embedding.abs().max() <= 0.1
    assert model.read_out.weight.abs().max() <= 0.1
    assert (model.read_out.bias == 0).all()
    for linear in (model.blocks[0].qkv, model.blocks[3].mlp_in):
        for tensor in (linear.weight, linear.bias):
            assert tensor.abs().max() <= 1 / 8
        assert abs(linear.weight.std() - 1 / 8 / 3**0.5) < 4 * 0.0008


def test_padding_never_changes_an_answer():
    config = dataclasses.replace(BASE, heads=2)
    tokens = torch.randint(0, 5, (1, 3, 8), generator=torch.Generator().manual_seed(2))
    padded = F.pad(tokens, (0, 5), value=config.vocabulary)
    for pattern in (Full(), TopK(3), Banded(3), BlockLocal(3)):
        model = Transformer(config, pattern, 0, dtype=torch.float64)
        torch.testing.assert_close(model(padded), model(tokens), atol=1e-12, rtol=0)


def test_a_large_vocabulary_looks_rows_up():
    small = dataclasses.replace(BASE, vocabulary=60)
    large = dataclasses.replace(BASE, vocabulary=70)
    tokens = torch.randint(0, 50, (2, 3, 8), generator=torch.Generator().manual_seed(3))
    results = []
    for config in (small, large):
        model = Transformer([config] * 2, [Full()] * 2, [0, 1], dtype=torch.float64)
        out = model(tokens)
        results.append((out, torch.autograd.grad(out.sum(), model.embedding)[0][:, :50]))
    torch.testing.assert_close(results[0], results[1])


def test_dropout_never_makes_nan_of_a_row_it_zeroes():
    config = dataclasses.replace(BASE, width=2, dropout=0.6)
    model = Transformer(config, Full(), 0).train()
    for step in range(20):
        assert model(torch.zeros(1, 25, 8, dtype=torch.long), step).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_train(dtype):
    model = Transformer(dataclasses.replace(BASE, dropout=0.2), TopK(3), 0, dtype=dtype).train()
    out = model(torch.zeros(1, 3, 8, dtype=torch.long), 1)
    assert out.dtype == dtype
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), list(model.parameters())))


def test_an_empty_batch_gives_no_logits():
    assert Transformer(BASE, TopK(3))(torch.zeros(1, 0, 8, dtype=torch.long)).shape == (1, 0, 1, 3)


def test_positions_are_the_usual_ones():
    table = sinusoidal(50, 5)
    assert table.shape == (50, 5)
    assert math.isclose(table[7, 2], math.sin(7 / 10000 ** (2 / 5)))
    assert math.isclose(table[7, 3], math.cos(7 / 10000 ** (2 / 5)))


BAD = [
    (lambda: dataclasses.replace(BASE, width=1), ["width is 1"]),
    (lambda: dataclasses.replace(BASE, heads=0), ["heads is 0"]),
    (lambda: dataclasses.replace(BASE, activation="rleu"), ["activation is 'rleu'", "'relu'"]),
    (lambda: dataclasses.replace(BASE, norm="Pre"), ["norm is 'Pre'"]),
    (lambda: dataclasses.replace(BASE, dropout=1.0), ["dropout is 1.0"]),
    (lambda: dataclasses.replace(BASE, dropout="x"), ["dropout is 'x'"]),
    (lambda: dataclasses.replace(BASE, mask_padding="no"), ["mask_padding is 'no'"]),
    (lambda: Transformer(BASE, TopK), ["patterns[0]", "TopK(5)"]),
    (lambda: Transformer(BASE, Full())([[0, 1]]), ["tokens is [[0, 1]]"]),
    (lambda: Transformer(BASE, Full())(torch.zeros(1, 1, 0, dtype=torch.long)), ["(1, 1, 0)"]),
    (lambda: dataclasses.replace(BASE, attention_scale=0.0), ["attention_scale is 0.0"]),
    (lambda: dataclasses.replace(BASE, outputs=3), ["outputs is 3", "tape"]),
    (lambda: Transformer([BASE], [Full(), Full()], [0]), ["1, 2 and 1"]),
    (lambda: Transformer([BASE, dataclasses.replace(BASE, width=8)], [Full()] * 2, [0, 0]), ["configs[1]"]),
    (lambda: Transformer([BASE] * 2, [Full(), Banded(3, global_tokens=1)], [0, 0]), ["patterns[1]", "global_tokens"]),
    (lambda: Transformer(BASE, Full())(torch.full((1, 1, 4), 6)), ["tokens holds 6", "5"]),
    (lambda: Transformer(BASE, Full())(torch.full((1, 1, 4), -1)), ["tokens holds -1"]),
    (lambda: Transformer(BASE, Full())(torch.zeros(2, 1, 4, dtype=torch.long)), ["(2, 1, 4)", "1 members"]),
    (lambda: Transformer(BASE, Full())(torch.zeros(1, 1, 4)), ["float32"]),
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=range(len(BAD)))
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_capped_and_cosine_scores():
    """Both bound the scores, and so the dispersion; neither changes anything else."""
    from semfocus.diagnostics import Probe

    tokens = torch.randint(0, 2, (4, 9), generator=torch.Generator().manual_seed(0))
    spread = {}
    for name, options in {"plain": {}, "cap": {"soft_cap": 0.5}, "cosine": {"cosine_scores": True}}.items():
        config = ModelConfig(vocabulary=2, classes=2, width=8, mlp_width=8, blocks=1, attention_scale=20.0, **options)
        model = Transformer(config, Full(), seeds=3).eval()
        rows = next(iter(Probe.of_model(model, tokens).rows(0)))
        spread[name] = rows.scores
        assert model(tokens).isfinite().all()
    assert spread["cap"].abs().max() <= 0.5
    assert torch.allclose(spread["cap"], 0.5 * torch.tanh(spread["plain"] / 0.5), atol=1e-5)
    assert spread["cosine"].abs().max() <= 20.0 + 1e-4
    q, k = (torch.randn(1, 1, 1, 5, 8) for _ in range(2))
    cosine = torch.nn.functional.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)
    normalised = [torch.nn.functional.normalize(x, dim=-1) * 8**0.25 for x in (q, k)]
    assert torch.allclose(normalised[0] @ normalised[1].mT / 8**0.5, cosine, atol=1e-6)
    with pytest.raises(ValueError, match="soft_cap is -1"):
        ModelConfig(vocabulary=2, classes=2, soft_cap=-1.0)
