"""With Full() our layer is PyTorch's: results, gradients, masks, weights, state dict, random initialisation."""

import copy
import inspect
import itertools

import pytest
import torch
from torch import nn

import semfocus
from semfocus import Banded, BottomK, Full, RandomK, TopK
from semfocus.nn import MultiheadAttention

EMBED, HEADS, BATCH, T, S = 8, 2, 3, 5, 7
OPTIONS = [
    {},
    {"bias": False},
    {"kdim": 6, "vdim": 4},
    {"kdim": 6, "bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "kdim": 3},
]


def pair(pattern=Full(), seed=0, **options):  # noqa: B008
    """PyTorch's layer and ours with equal weights, in float64."""
    theirs = nn.MultiheadAttention(EMBED, HEADS, dtype=torch.float64, **options)
    ours = MultiheadAttention(EMBED, HEADS, dtype=torch.float64, pattern=pattern, **options)
    generator = torch.Generator().manual_seed(seed)
    for parameter in theirs.parameters():
        parameter.data.normal_(generator=generator)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(layer, t=T, s=S, batched=True, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shape = "tw" if not batched else "btw" if layer.batch_first else "tbw"

    def draw(length, width):
        sizes = {"b": BATCH, "t": length, "w": width}
        return torch.randn([sizes[axis] for axis in shape], generator=generator, dtype=torch.float64).requires_grad_()

    return draw(t, EMBED), draw(s, layer.kdim), draw(s, layer.vdim)


def masks(kind, t=T, s=S, batched=True):
    """No row without a visible key: there PyTorch gives NaN."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.rand(t, s, generator=generator) < 0.4
    rows[:, 0] = False
    heads = torch.rand((BATCH if batched else 1) * HEADS, t, s, generator=generator) < 0.4
    heads[..., 0] = False
    padding = torch.zeros(BATCH, s, dtype=torch.bool)
    padding[1, 4:] = True
    padding = padding if batched else padding[1]
    return {
        "none": {},
        "rows": {"attn_mask": rows},
        "heads": {"attn_mask": heads},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": rows, "key_padding_mask": padding},
        "float": {"attn_mask": torch.randn(t, s, generator=generator, dtype=torch.float64)},
        "both float": {
            "attn_mask": torch.randn(rows.shape, generator=generator, dtype=torch.float64),
            "key_padding_mask": torch.randn(padding.shape, generator=generator, dtype=torch.float64),
        },
        "mixed": {"attn_mask": rows, "key_padding_mask": torch.randn(padding.shape, dtype=torch.float64)},
    }[kind]


def expect_same(theirs, ours, given, **call):
    results = [layer(*given, **call) for layer in (theirs, ours)]
    torch.testing.assert_close(results[1][0], results[0][0], atol=1e-10, rtol=0)
    if call.get("need_weights", True):
        torch.testing.assert_close(results[1][1], results[0][1], atol=1e-10, rtol=0)
    else:
        assert results[0][1] is results[1][1] is None
    direction = torch.randn_like(results[0][0])
    gradients = [
        torch.autograd.grad((out * direction).sum(), [*given, *layer.parameters()])
        for (out, _), layer in zip(results, (theirs, ours), strict=True)
    ]
    for wanted, actual in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", ["none", "rows", "heads", "padding", "both", "float", "both float"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_full_is_pytorch_s_layer(options, kind):
    for batch_first, batched, need_weights in itertools.product((True, False), repeat=3):
        theirs, ours = pair(batch_first=batch_first, **options)
        given = inputs(theirs, batched=batched)
        for average in (True, False) if need_weights else (True,):
            call = {"need_weights": need_weights, "average_attn_weights": average, **masks(kind, batched=batched)}
            expect_same(theirs, ours, given, **call)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_masks_of_different_types_are_added():
    theirs, ours = pair(batch_first=True)
    expect_same(theirs, ours, inputs(theirs), **masks("mixed"))


@pytest.mark.parametrize("low", [-1e4, -9984.0, -65504.0, -1e9, torch.finfo(torch.float32).min, -torch.inf])
@pytest.mark.parametrize("pattern", [RandomK(2), BottomK(2), Banded(3)], ids=str)
def test_large_negative_numbers_hide_the_future_from_choices_too(pattern, low):
    torch.manual_seed(0)
    layer = MultiheadAttention(EMBED, HEADS, pattern=pattern, batch_first=True)
    x = torch.randn(1, T, EMBED)
    later = x + torch.tensor([0.0, 0, 0, 1, 1])[:, None]
    mask = torch.zeros(T, T).masked_fill(torch.ones(T, T).triu(1).bool(), low)
    outs = []
    for given in (x, later):
        torch.manual_seed(1)
        outs.append(layer(given, given, given, attn_mask=mask)[0][:, :3])
    assert torch.equal(*outs)


def test_a_mask_per_head_over_nothing():
    layer = MultiheadAttention(EMBED, HEADS, batch_first=True, pattern=TopK(2))
    nothing, mask = torch.zeros(BATCH, 0, EMBED), torch.zeros(BATCH * HEADS, T, 0)
    assert layer(torch.zeros(BATCH, T, EMBED), nothing, nothing, attn_mask=mask)[0].shape == (BATCH, T, EMBED)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_the_causal_hint(need_weights, padded):
    theirs, ours = pair(batch_first=True)
    given = inputs(theirs, T, T)
    causal = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    padding = {"key_padding_mask": torch.tensor([[False] * T, [False] * 3 + [True] * 2, [False] * T])} if padded else {}
    expect_same(theirs, ours, given, attn_mask=causal, is_causal=True, need_weights=need_weights, **padding)


def test_the_causal_hint_does_not_hide_extra_keys():
    theirs, ours = pair(batch_first=True, add_bias_kv=True)
    given = inputs(theirs, T, T)
    causal = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    wanted, _ = theirs(*given, attn_mask=causal, need_weights=True)
    actual, _ = ours(*given, attn_mask=causal, need_weights=False, is_causal=True)
    torch.testing.assert_close(actual, wanted, atol=1e-10, rtol=0)
    hidden, _ = theirs(*given, attn_mask=causal, need_weights=False, is_causal=True)
    theirs.bias_k = theirs.bias_v = None  # as our documents say, PyTorch sees no extra key then
    torch.testing.assert_close(hidden, theirs(*given, attn_mask=causal)[0], atol=1e-10, rtol=0)


def test_self_attention_on_one_tensor():
    theirs, ours = pair(batch_first=True)
    (x, *_) = inputs(theirs)
    for need_weights in (True, False):
        wanted, _ = theirs(x, x, x, need_weights=need_weights)
        torch.testing.assert_close(ours(x, x, x, need_weights=need_weights)[0], wanted, atol=1e-10, rtol=0)


def test_the_signature_is_pytorch_s_and_a_pattern():
    for method in ("__init__", "forward"):
        theirs = inspect.signature(getattr(nn.MultiheadAttention, method)).parameters
        ours = inspect.signature(getattr(MultiheadAttention, method)).parameters
        assert [name for name in ours if name != "pattern"] == list(theirs)
        for name, parameter in theirs.items():
            assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind)


def test_equal_seeds_give_equal_weights_and_state_dicts_pass_both_ways():
    for options in OPTIONS:
        torch.manual_seed(5)
        theirs = nn.MultiheadAttention(EMBED, HEADS, **options)
        torch.manual_seed(5)
        ours = MultiheadAttention(EMBED, HEADS, pattern=TopK(2), **options)
        assert theirs.state_dict().keys() == ours.state_dict().keys()
        assert all(torch.equal(a, b) for a, b in zip(theirs.parameters(), ours.parameters(), strict=True))
        theirs.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("pattern", [TopK(2), Banded(3), semfocus.BottomK(2)], ids=lambda p: p.label)
def test_a_pattern_s_weights_are_those_of_the_attention_function(pattern):
    _, ours = pair(pattern, batch_first=True)
    (x, *_) = inputs(ours)
    _, weights = ours(x, x, x, average_attn_weights=False)
    q, k, _ = nn.functional.linear(x, ours.in_proj_weight, ours.in_proj_bias).chunk(3, -1)
    q, k = (y.view(BATCH, T, HEADS, -1).transpose(1, 2) for y in (q, k))
    _, wanted = semfocus.attention(q, k, k, pattern, return_weights=True)
    torch.testing.assert_close(weights, wanted, atol=1e-10, rtol=0)
    assert int((weights > 0).sum(-1).max()) == pattern.budget


def test_the_largest_budget_is_pytorch_s_layer():
    for options in OPTIONS:
        theirs, ours = pair(TopK(S + 2), batch_first=True, **options)
        expect_same(theirs, ours, inputs(theirs), **masks("both"))


def test_extra_keys_are_candidates():
    _, ours = pair(TopK(1), batch_first=True, add_bias_kv=True, add_zero_attn=True)
    _, weights = ours(*inputs(ours), average_attn_weights=False)
    assert weights.shape[-1] == S + 2
    assert (weights[..., S:] > 0).any()
    assert ((weights > 0).sum(-1) == 1).all()


def test_a_query_that_sees_nothing_gives_the_bias_of_the_projection_and_finite_gradients():
    theirs, ours = pair(batch_first=True)
    given = inputs(ours)
    everything = torch.ones(BATCH, S, dtype=torch.bool)
    assert theirs(*given, key_padding_mask=everything)[0].isnan().all()
    for pattern in (Full(), TopK(2)):
        ours.pattern = pattern
        out, weights = ours(*given, key_padding_mask=everything)
        assert torch.equal(out, ours.out_proj.bias.expand_as(out))
        assert (weights == 0).all()
        assert all(
            g.isfinite().all() for g in torch.autograd.grad(out.sum(), given, allow_unused=True) if g is not None
        )


def test_dropout_only_in_training_from_the_default_generator():
    layer = MultiheadAttention(EMBED, HEADS, dropout=0.5, batch_first=True, pattern=TopK(3))
    x = torch.randn(BATCH, T, EMBED)
    state = torch.get_rng_state()
    layer.eval()
    assert torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    assert torch.equal(state, torch.get_rng_state())
    layer.train()
    torch.manual_seed(0)
    first, second = layer(x, x, x)[0], layer(x, x, x)[0]
    torch.manual_seed(0)
    assert torch.equal(first, layer(x, x, x)[0])
    assert not torch.equal(first, second)


def test_random_patterns_draw_from_the_default_generator():
    layer = MultiheadAttention(EMBED, HEADS, batch_first=True, pattern=RandomK(2)).eval()
    x = torch.randn(BATCH, 20, EMBED)
    torch.manual_seed(0)
    first = layer(x, x, x)[0]
    assert not torch.equal(first, layer(x, x, x)[0])
    torch.manual_seed(0)
    assert torch.equal(first, layer(x, x, x)[0])


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
def test_autocast(options):
    layer = MultiheadAttention(EMBED, HEADS, batch_first=True, pattern=TopK(3), **options)
    x = torch.randn(BATCH, T, EMBED)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = layer(x, x, x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x, x, x)[0], atol=0.1, rtol=0)
    out.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_copies_and_state_dicts():
    layer = MultiheadAttention(EMBED, HEADS, batch_first=True, pattern=TopK(2))
    twin = copy.deepcopy(layer)
    x = torch.randn(BATCH, T, EMBED)
    assert torch.equal(layer(x, x, x)[0], twin(x, x, x)[0])
    assert "pattern=top_k(k=2)" in repr(twin)
    assert all(torch.is_tensor(value) for value in layer.state_dict().values())


def test_compiled():
    layer = MultiheadAttention(EMBED, HEADS, batch_first=True, pattern=TopK(2))
    x = torch.randn(BATCH, T, EMBED)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, x, x)[0], layer(x, x, x)[0])


def call(layer=None, t=T, s=S, **options):
    layer = layer or MultiheadAttention(EMBED, HEADS, batch_first=True, pattern=options.pop("pattern", TopK(2)))
    given = {"query": torch.zeros(2, t, EMBED), "key": torch.zeros(2, s, EMBED), "value": torch.zeros(2, s, EMBED)}
    return layer(**{**given, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": Banded(3)}, r"5 queries and 7 keys; banded\(width=3\) follows positions"),
        ({"is_causal": True}, "is_causal is True but attn_mask is None"),
        ({"attn_mask": torch.zeros(5, 5)}, r"attn_mask has shape \(5, 5\); it must be \(5, 7\) or \(4, 5, 7\)"),
        ({"attn_mask": torch.zeros(5, 7, dtype=torch.long)}, r"attn_mask is torch.int64; it must be a boolean"),
        ({"attn_mask": "causal"}, "attn_mask is 'causal'"),
        ({"key_padding_mask": torch.zeros(7, 2)}, r"key_padding_mask has shape \(7, 2\); it must be \(2, 7\)"),
        ({"query": torch.zeros(2, 5, 9)}, "query has width 9; this layer was made for 8"),
        ({"key": torch.zeros(7, EMBED)}, "key has 2 axes"),
        ({"value": torch.zeros(2, 6, EMBED)}, r"value has shape \(2, 6, 8\)"),
        ({"query": torch.zeros(3, 5, EMBED)}, "key has a batch of 2; query has 3"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        call(**options)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused():
    with pytest.raises(ValueError, match="query is a nested tensor; semfocus takes padded ones"):
        call(query=torch.nested.nested_tensor([torch.zeros(2, EMBED)]))


def test_what_a_pattern_cannot_do_is_refused_when_the_layer_is_made():
    for argument in ("add_zero_attn", "add_bias_kv"):
        for pattern in (Banded(3), RandomK(2), Banded(1, global_tokens=1)):
            with pytest.raises(ValueError, match=f"{argument} is True; its extra key has no position"):
                MultiheadAttention(EMBED, HEADS, pattern=pattern, **{argument: True})
    with pytest.raises(ValueError, match=r"pattern is 'top_k'; it must be a semfocus\.Pattern"):
        MultiheadAttention(EMBED, HEADS, pattern="top_k")
    with pytest.raises(ValueError, match="num_heads is 3; it must divide embed_dim, which is 8"):
        MultiheadAttention(EMBED, 3)


def test_global_tokens_are_not_causal():
    causal = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    for need_weights in (True, False):
        with pytest.raises(ValueError, match="global_tokens is 1"):
            call(pattern=Banded(2, global_tokens=1), s=T, attn_mask=causal, is_causal=True, need_weights=need_weights)
    assert call(pattern=Banded(2, global_tokens=1), s=T)[0].isfinite().all()
