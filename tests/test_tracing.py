"""Under torch.func, traces, compilers and exports, "auto" computes what it does without them."""

import pytest
import torch
from torch import func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from semfocus import Banded, FixedRandom, Full, RandomK, TopK, attention, explain, functional
from semfocus.model import ModelConfig, Transformer

# PyTorch's own words about vmap and jit, which are not what is tested here.
pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)

TRANSFORMS = {
    "grad": lambda f, x: func.grad(lambda y: f(y).square().sum())(x),
    "vjp": lambda f, x: func.vjp(f, x)[1](torch.ones_like(x))[0],
    "jacrev": lambda f, x: func.jacrev(lambda y: f(y)[0, 0, 0])(x),
    "jvp": lambda f, x: func.jvp(f, (x,), (x.flip(-1),))[1],
    "vmap": lambda f, x: func.vmap(f)(torch.stack([x, -x])),
    "vmap of grad": lambda f, x: func.vmap(func.grad(lambda y: f(y).square().sum()))(torch.stack([x, -x])),
}


@pytest.mark.parametrize("pattern", [TopK(3), Banded(3), Full()], ids=lambda p: p.name)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_long_inputs_under_torch_func(transform, pattern):
    x, k, v = torch.randn(3, 1, 1, 520, 2, generator=torch.Generator().manual_seed(0))
    auto, wanted = (
        TRANSFORMS[transform](lambda y, i=i: attention(y, k, v, pattern, implementation=i), x)
        for i in ("auto", "reference")
    )
    torch.testing.assert_close(auto, wanted)


def test_chunks_under_torch_func(monkeypatch):
    monkeypatch.setitem(functional.CHUNK_FROM, "cpu", 1)
    x = torch.randn(1, 2, 6, 4)
    assert func.grad(lambda y: attention(y, x, x, TopK(3)).sum())(x).shape == x.shape


@pytest.mark.parametrize("pattern", [TopK(3), Banded(3), Full()], ids=lambda p: p.name)
@pytest.mark.parametrize("dual", ["query", "attn_mask"])
def test_tangents_are_never_dropped(pattern, dual):
    x, k, v = torch.randn(3, 1, 1, 520, 2)
    arguments = {"query": x, "attn_mask": torch.zeros(520, 520)}
    with forward_ad.dual_level():
        arguments[dual] = forward_ad.make_dual(arguments[dual], torch.randn_like(arguments[dual]))
        auto, wanted = (
            forward_ad.unpack_dual(attention(key=k, value=v, pattern=pattern, implementation=i, **arguments)).tangent
            for i in ("auto", "reference")
        )
        torch.testing.assert_close(auto, wanted)
        with pytest.raises(ValueError, match="forward-mode"):
            attention(key=k, value=v, pattern=TopK(3), implementation="gathered", **arguments)


def test_full_attention_with_tangents_is_nowhere_left_to_pytorch():
    """None of its kernels has a forward-mode derivative, whatever the device."""
    x = torch.empty(1, 1, 8, 4, device="meta")
    with forward_ad.dual_level():
        found = explain(x, x, x, Full())
    assert found.choice == "reference"
    assert "forward-mode" in found.reasons["sdpa"]
    assert explain(x, x, x, Full()).choice == "sdpa"


def test_explain_knows_of_transforms():
    x = torch.randn(1, 1, 600, 4)
    found = []
    func.vmap(lambda y: found.append(explain(y, x, x, TopK(3))) or y)(x[None])
    assert found[0].choice == "reference"
    assert "torch.func" in found[0].reasons["gathered"]
    assert explain(x, x, x, TopK(3)).choice == "gathered"


@pytest.mark.parametrize("pattern", [RandomK(3), FixedRandom(3), Banded(3)], ids=lambda p: p.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bits_drawn_under_torch_func(pattern, dtype):
    x = torch.randn(1, 2, 6, 4).to(dtype)

    def drawn(y):
        torch.manual_seed(0)
        return attention(y, x, x, pattern, dropout_p=0.5)

    wanted = drawn(x)
    assert func.vjp(drawn, x)[0].equal(wanted)
    assert func.jvp(drawn, (x,), (x,))[0].equal(wanted)
    torch.testing.assert_close(func.vmap(drawn, randomness="same")(x[None])[0], wanted)


@pytest.mark.parametrize("training", [False, True])
def test_a_model_under_torch_func(training):
    model = Transformer(ModelConfig(vocabulary=5, classes=2, width=8, heads=2, mlp_width=8), TopK(2)).train(training)
    tokens = torch.randint(5, (3, 7), generator=torch.Generator().manual_seed(0))
    weights = {name: w.detach() for name, w in model.named_parameters()}
    found = func.grad(lambda w: func.functional_call(model, w, (tokens,)).square().sum())(weights)
    model(tokens).square().sum().backward()
    for name, w in model.named_parameters():
        torch.testing.assert_close(found[name], w.grad)


def test_a_model_under_compilers_and_exports():
    """Not even its table of positions is a tensor of theirs afterwards."""
    torch._dynamo.reset()
    model = Transformer(ModelConfig(vocabulary=5, classes=2, width=8, mlp_width=8), TopK(2)).eval()
    tokens = torch.randint(5, (3, 23), generator=torch.Generator().manual_seed(0))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model(mode.from_tensor(tokens)).shape == (1, 3, 1, 2)
    program = torch.export.export(model, (tokens,), strict=False)
    wanted = model(tokens)
    for found in (program.module()(tokens), torch.compile(model, fullgraph=True, backend="eager")(tokens)):
        torch.testing.assert_close(found, wanted)


def test_a_trace_draws_anew():
    x = torch.ones(1, 1, 8, 8)
    traced = torch.jit.trace(lambda y: attention(y, y, y, Full(), dropout_p=0.5), x, check_trace=False)
    assert not traced(x).equal(traced(x))


@pytest.mark.parametrize("length", [8, 600])
def test_a_trace_knows_ties(length):
    """What it was traced with has none."""
    x = torch.randn(1, 1, length, 2)
    traced = torch.jit.trace(lambda q, k, v: attention(q, k, v, TopK(3)), (x, x, x))
    equal = torch.zeros_like(x)
    torch.testing.assert_close(traced(equal, x, x), attention(equal, x, x, TopK(3), implementation="reference"))


@pytest.mark.parametrize("length", [8, 600])
def test_a_symbolic_trace_knows_ties(length):
    q, k, v = torch.randn(3, 1, 1, length, 2)
    traced = make_fx(lambda q, k, v: attention(q, k, v, TopK(3)))(q, k, v)
    equal = torch.zeros_like(q)
    torch.testing.assert_close(traced(equal, k, v), attention(equal, k, v, TopK(3), implementation="reference"))


@pytest.mark.parametrize("length", [8, 2048])
@pytest.mark.parametrize("pattern", [TopK(3), RandomK(3), Banded(3), Full()], ids=lambda p: p.name)
def test_fake_tensors_have_shapes(pattern, length):
    """Tools that estimate memory know no numbers."""
    with FakeTensorMode():
        x = torch.randn(1, 2, length, 4, requires_grad=True)
        out = attention(x, x, x, pattern)
        out.sum().backward()
    assert out.shape == x.grad.shape == (1, 2, length, 4)


def test_patterns_may_change_under_a_compiler():
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    for pattern in (TopK(2), TopK(3), TopK(4)):
        assert torch.equal(compiled(q, k, v, pattern), attention(q, k, v, pattern))
    dynamic = torch.compile(attention, fullgraph=True, dynamic=True, backend="eager")
    assert torch.equal(dynamic(q, k, v), attention(q, k, v))


@pytest.mark.parametrize("pattern", [TopK(3), Banded(3)], ids=lambda p: p.label)
def test_exported_with_any_length(pattern):
    class Own(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, pattern)

    length = torch.export.Dim("length", min=6, max=100)
    program = torch.export.export(Own(), tuple(torch.randn(3, 1, 2, 16, 4)), dynamic_shapes=({2: length},) * 3)
    longer = torch.randn(3, 1, 2, 33, 4)
    assert torch.equal(program.module()(*longer), attention(*longer, pattern))


@pytest.mark.parametrize("pattern", [TopK(3), Full()], ids=lambda p: p.name)
def test_decoding_is_compiled_once_for_all_offsets(pattern):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    def decode(q, k, offset):
        return attention(q, k, k, pattern, is_causal=True, query_offset=offset)

    torch._dynamo.reset()
    compiled = torch.compile(decode, backend=backend, fullgraph=True)
    for s in range(5, 31):
        q, k = torch.randn(1, 2, 1, 4), torch.randn(1, 2, s, 4)
        torch.testing.assert_close(compiled(q, k, s - 1), decode(q, k, s - 1))
    assert len(graphs) == 2  # one with numbers, one with symbols


def test_the_scale_may_change_under_a_compiler():
    x = torch.randn(1, 2, 6, 4)
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    for scale in (0.3, 0.5, 0.7):
        torch.testing.assert_close(compiled(x, x, x, TopK(2), scale=scale), attention(x, x, x, TopK(2), scale=scale))
