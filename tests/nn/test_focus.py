"""focus and unfocus on PyTorch's own models, its fused inference path included."""

import copy
import gc

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import semfocus
from semfocus import Banded, Full, TopK
from semfocus.nn import MultiheadAttention, focus, unfocus

WIDTH, LENGTH = 8, 12
pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]


def encoder(layers=2, **options):
    torch.manual_seed(0)
    options = {"batch_first": True, "dim_feedforward": 16, "dropout": 0.1, **options}
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, **options), layers)


def batch():
    return torch.randn(3, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


#: Right padding, which PyTorch turns into nested tensors; and padding in the middle, which it does not.
RIGHT = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [7], [9]])
MIDDLE = (torch.arange(LENGTH) == 4).expand(3, LENGTH)
GRADS = [torch.no_grad, torch.inference_mode, torch.enable_grad]


class Classifier(nn.Module):
    """Somebody's own model: attention anywhere in it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, WIDTH)
        self.blocks = nn.ModuleDict({"first": nn.MultiheadAttention(WIDTH, 2, batch_first=True)})
        self.last = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.blocks["first"](x, x, x)[0]
        return self.head(self.last(x, x, x, need_weights=False)[0].mean(1))


def by_hand(model, x, padding, pattern):
    """A pre- or post-norm encoder in evaluation, written out with semfocus.attention."""
    for layer in model.layers:
        attention = layer.self_attn
        h = layer.norm1(x) if layer.norm_first else x
        q, k, v = nn.functional.linear(h, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
        q, k, v = (y.view(*y.shape[:2], attention.num_heads, -1).transpose(1, 2) for y in (q, k, v))
        visible = None if padding is None else ~padding[:, None, None]
        h = semfocus.attention(q, k, v, pattern, visible).transpose(1, 2).flatten(2)
        x = x + attention.out_proj(h)
        x = x if layer.norm_first else layer.norm1(x)
        h = layer.linear2(layer.activation(layer.linear1(layer.norm2(x) if layer.norm_first else x)))
        x = x + h if layer.norm_first else layer.norm2(x + h)
    return x


@pytest.mark.parametrize("padding", [None, RIGHT, MIDDLE], ids=["none", "right", "middle"])
@pytest.mark.parametrize("grad", GRADS, ids=lambda g: g.__name__)
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fused_path_does_not_skip_the_pattern(padding, grad, norm_first):
    model, x = encoder(norm_first=norm_first).eval(), batch()
    with grad():
        before = model(x, src_key_padding_mask=padding)
        focus(model, TopK(2))
        focused = model(x, src_key_padding_mask=padding)
        wanted = by_hand(model, x, padding, TopK(2))
        unfocus(model)
        after = model(x, src_key_padding_mask=padding)
    real = torch.ones(3, LENGTH, dtype=torch.bool) if padding is None else ~padding
    torch.testing.assert_close(focused[real], wanted[real], atol=1e-5, rtol=0)
    assert (focused - before)[real].abs().max() > 0.01  # the pattern does change something
    assert torch.equal(after, before)


def test_one_layer_is_enough_to_stop_the_fused_path_for_that_layer_alone(monkeypatch):
    calls = []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a, **k: calls.append(1) or fused(*a, **k))
    model, x = encoder(3).eval(), batch()
    with torch.no_grad():
        model(x)
        assert len(calls) == 3
        focus(model, TopK(2), layers=[1])
        model(x, src_key_padding_mask=RIGHT)
        assert len(calls) == 5
        unfocus(model)
        model(x, src_key_padding_mask=RIGHT)
        assert len(calls) == 8


def test_an_encoder_built_around_our_layer_takes_no_fused_path():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    layer.self_attn = MultiheadAttention(WIDTH, 2, batch_first=True, pattern=TopK(2))
    with pytest.warns(UserWarning, match="enable_nested_tensor is True, but"):
        model = nn.TransformerEncoder(layer, 2).eval()
    with torch.no_grad():
        actual = model(batch(), src_key_padding_mask=RIGHT)
    torch.testing.assert_close(actual[~RIGHT], by_hand(model, batch(), RIGHT, TopK(2))[~RIGHT], atol=1e-5, rtol=0)


def test_full_changes_nothing_but_rounding():
    model, x = encoder().eval(), batch()
    before = model(x)
    focus(model, Full())
    torch.testing.assert_close(model(x), before, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_unfocus_is_bitwise(mode):
    model, x = getattr(encoder(), mode)(), batch()

    def run():
        torch.manual_seed(3)
        out = model(x, src_key_padding_mask=RIGHT)
        return out, *torch.autograd.grad(out.sum(), model.parameters())

    before = run()
    focus(model, TopK(2))
    focused = run()
    focus(model, Banded(3), layers=["layers.1.self_attn"])
    assert unfocus(model) == ("layers.0.self_attn", "layers.1.self_attn")
    assert all(torch.equal(a, b) for a, b in zip(before, run(), strict=True))
    assert not torch.equal(before[0], focused[0])
    assert unfocus(model) == ()  # nothing left to undo


def test_parameters_optimiser_hooks_and_state_dicts_go_on():
    model, x = encoder(), batch()
    parameters, keys = list(model.parameters()), list(model.state_dict())
    seen = []
    model.layers[0].self_attn.register_forward_hook(lambda *_: seen.append(1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    focus(model, TopK(3))
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys
    saved = copy.deepcopy(model.state_dict())
    model(x).sum().backward()
    optimiser.step()
    assert seen == [1]
    unfocus(model)
    assert not torch.equal(model.state_dict()[keys[0]], saved[keys[0]])  # the step reached the weights
    model.load_state_dict(saved)  # what was saved in focus loads without it, and back
    focus(model, TopK(3))
    model.load_state_dict(saved)


def test_a_second_pattern_replaces_the_first():
    model, x = encoder().eval(), batch()
    before = model(x)
    focus(model, TopK(2))
    focus(model, Banded(3))
    torch.testing.assert_close(model(x), by_hand(model, x, None, Banded(3)), atol=1e-5, rtol=0)
    unfocus(model)
    assert torch.equal(model(x), before)
    assert type(model.layers[0].self_attn) is nn.MultiheadAttention


def test_our_own_layer_gets_its_own_pattern_back():
    layer = MultiheadAttention(WIDTH, 2, pattern=TopK(7))
    focus(layer, TopK(2))
    assert layer.pattern == TopK(2)
    unfocus(layer)
    assert layer.pattern == TopK(7)
    assert type(layer) is MultiheadAttention


def test_a_copy_is_focused_and_can_be_restored():
    model, x = encoder().eval(), batch()
    before = model(x)
    focus(model, TopK(2))
    twin = copy.deepcopy(model)
    focused = model(x)
    unfocus(model)
    del model
    gc.collect()
    assert torch.equal(twin(x), focused)
    unfocus(twin)
    assert torch.equal(twin(x), before)


def test_attention_anywhere_in_a_model():
    model = Classifier().eval()
    x = torch.randn(5, 9, 4)
    before = model(x)
    result = focus(model, TopK(2))
    assert [layer.name for layer in result.changed] == ["blocks.first", "last"]
    assert not torch.allclose(model(x), before)
    with torch.no_grad():  # this layer's own fused path
        assert torch.equal(model(x), model(x))
        assert not torch.allclose(model(x), before)
    unfocus(model)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize(
    ("layers", "names"), [([1], ["last"]), (["blocks.first"], ["blocks.first"]), ((0, "last"), None)]
)
def test_layers_are_chosen_by_index_or_name(layers, names):
    model = Classifier()
    result = focus(model, TopK(2), layers=layers)
    assert [layer.name for layer in result.changed] == (names or ["blocks.first", "last"])
    assert {reason for _, reason in result.left} <= {"not in layers"}


def transformer():
    torch.manual_seed(0)
    return nn.Transformer(WIDTH, 2, 2, 2, 16, dropout=0.0, batch_first=True)


def test_cross_attention_follows_scores_but_not_positions():
    model, source, target = transformer(), batch(), batch()[:, :6]
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    everywhere = focus(model, TopK(2))
    assert len(everywhere.changed) == 6
    assert [layer.name for layer in everywhere.changed if layer.cross] == [
        "decoder.layers.0.multihead_attn",
        "decoder.layers.1.multihead_attn",
    ]
    out = model(source, target, tgt_mask=causal)
    changed = model(source, torch.cat([target[:, :4], target[:, 4:] + 1], 1), tgt_mask=causal)
    assert torch.equal(changed[:, :4], out[:, :4])  # later tokens never reach earlier outputs
    assert not torch.equal(changed[:, 4:], out[:, 4:])
    unfocus(model)
    banded = focus(model, Banded(3))
    assert [layer.name for layer, _ in banded.left] == [
        "decoder.layers.0.multihead_attn",
        "decoder.layers.1.multihead_attn",
    ]
    assert "cross attention, and banded(width=3) follows positions" in str(banded)
    assert model(source, target, tgt_mask=causal).isfinite().all()
    with pytest.raises(ValueError, match=r"layers names 'decoder\.layers\.1\.multihead_attn'; it is cross attention"):
        focus(model, Banded(3), layers=["decoder.layers.1.multihead_attn"])


def test_attention_that_pools_is_cross_attention():
    class PoolingHead(nn.Module):
        """As in SigLIP: one query of its own looks at the sequence."""

        def __init__(self):
            super().__init__()
            self.query = nn.Parameter(torch.randn(1, 1, 8))
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(self.query.expand(len(x), -1, -1), x, x)[0]

    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, batch_first=True), PoolingHead()).eval()
    result = focus(model, Banded(3))
    assert [layer.name for layer, _ in result.left] == ["1.attention"]
    assert "1.attention  MultiheadAttention: cross attention, and banded(width=3) follows" in str(result)
    assert model(torch.randn(2, 5, 8)).isfinite().all()
    assert [layer.name for layer in focus(model, TopK(3)).changed] == ["0.self_attn", "1.attention"]
    assert [layer.name for layer, _ in focus(PoolingHead(), TopK(3)).left] == []


def test_unequal_lengths_say_how_to_leave_a_layer_out():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    focus(layer, Banded(3))
    with pytest.raises(ValueError, match=r"1 queries and 5 keys.*leave this layer out .*layers=\[\.\.\.\]"):
        layer(torch.randn(2, 1, 8), *torch.randn(2, 2, 5, 8))


def test_the_description():
    assert str(focus(Classifier(), TopK(2), layers=[0])) == (
        "top_k(k=2) in 1 of 2 attention layers\n"
        "  0  blocks.first  MultiheadAttention\n"
        "left as they were\n"
        "  1  last  MultiheadAttention: not in layers"
    )


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([2], "layers holds 2; this model's attention layers are 0 to 1"),
        ([-1], "layers holds -1; this model's attention layers are 0 to 1"),
        ([True], "layers holds True; it must hold indices from 0 to 1, or names"),
        ([0.0], "layers holds 0.0"),
        (["blocks.frist"], "layers names 'blocks.frist'; did you mean 'blocks.first'?"),
        ("last", "layers is 'last'; it must be a list"),
        (1, "layers is 1; it must be a list"),
        ([], "name at least one"),
    ],
)
def test_bad_layers_are_named(layers, message):
    model = Classifier()
    with pytest.raises(ValueError) as error:
        focus(model, TopK(2), layers=layers)
    assert message in str(error.value)
    assert type(model.last) is nn.MultiheadAttention  # nothing was changed


class Special(nn.MultiheadAttention):
    """Somebody's subclass with a forward of its own."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def test_what_cannot_be_focused_is_refused_by_name():
    with pytest.raises(ValueError, match="Linear has no attention that focus knows"):
        focus(nn.Linear(2, 2), TopK(2))
    with pytest.raises(ValueError, match="model is a str"):
        focus("model", TopK(2))
    with pytest.raises(ValueError, match=r"pattern is 5; it must be a semfocus\.Pattern"):
        focus(Classifier(), 5)
    model = nn.Sequential(nn.MultiheadAttention(WIDTH, 2), Special(WIDTH, 2))
    with pytest.raises(ValueError, match=r"1 is a Special, which changes nn\.MultiheadAttention"):
        focus(model, TopK(2))
    assert type(model[0]) is nn.MultiheadAttention  # nothing was changed
    with pytest.raises(ValueError, match="add_zero_attn is True"):
        focus(nn.MultiheadAttention(WIDTH, 2, add_zero_attn=True), Banded(3))


def test_unfocus_does_not_lose_what_was_put_on_afterwards():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True, dropout=0.0)
    before = layer(batch())
    focus(layer, TopK(2))
    parametrizations.weight_norm(layer.self_attn, "in_proj_weight")
    focused = layer(batch())
    with pytest.raises(ValueError, match="self_attn became a ParametrizedMultiheadAttention after it was focused"):
        unfocus(layer)
    torch.testing.assert_close(layer(batch()), focused, atol=0, rtol=0)
    parametrize.remove_parametrizations(layer.self_attn, "in_proj_weight")
    assert unfocus(layer) == ("self_attn",)
    torch.testing.assert_close(layer(batch()), before)


@pytest.mark.parametrize("wrong", [TopK(1), "0.1", 1.5, None])
def test_dropout_is_a_number(wrong):
    with pytest.raises(ValueError, match=r"dropout is .*; it must be a number in"):
        MultiheadAttention(8, 2, wrong)


def test_a_forward_of_the_instance_s_own_is_refused():
    """It would be called in the place of ours."""
    layer = nn.MultiheadAttention(8, 2, kdim=6, vdim=6)
    plain = layer.forward
    layer.forward = lambda *given, **named: plain(*given, **named)
    with pytest.raises(ValueError, match=r"0 has a forward of its own, which would be called instead; leave it out"):
        focus(nn.ModuleList([layer]), TopK(1))
    assert type(layer) is nn.MultiheadAttention
