"""The halves of a block through Triton's interpreter. Run by test_halves.py, with TRITON_INTERPRET=1 set."""

import pytest
import torch
from halves_oracle import HALF, both, check_attention, check_gathered, check_mlp, population, without_kernels
from kernel_oracle import poison

from semfocus import (
    Banded,
    BlockLocal,
    BottomK,
    FixedRandom,
    Full,
    PositionalTopK,
    RandomK,
    Strided,
    SwappedTopK,
    TopK,
    kernels,
)
from semfocus.kernels import long_half, mlp_half  # noqa: F401 (they register the operators)
from semfocus.model.transformer import run_block
from semfocus.training import paper
from semfocus.training.population import Population, precision

assert kernels.INTERPRETED


@pytest.fixture(autouse=True)
def high():
    with precision("tf32"):
        yield


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    poison(monkeypatch)


CASES = {
    "full": ([Full(), Full()], {"length": 20}),
    "top-k beside full": ([TopK(3), TopK(17), Full()], {"length": 20, "examples": 1}),
    "k beyond the keys": ([TopK(50), TopK(2)], {"length": 33, "dropout": 0.0, "examples": 1}),
    "windows beside top-k": ([Banded(5), TopK(4), BlockLocal(4)], {"length": 40, "examples": 1}),
    "global tokens": ([BlockLocal(4, global_tokens=2), Banded(5, global_tokens=2)], {"length": 33, "scale": 4.0}),
    "padding": ([TopK(3), Full()], {"length": 40, "width": 24, "dropout": 0.0, "masked": True, "examples": 1}),
    "chosen before": (
        [BottomK(3), RandomK(4), FixedRandom(3), Strided(4), SwappedTopK(3), PositionalTopK(3), TopK(4, sinks=1)],
        {"length": 20, "examples": 2},
    ),
    "chosen before, beside others": ([Banded(5), Strided(4), TopK(3)], {"length": 40, "examples": 1, "width": 24}),
    "windows under padding": ([Banded(5), RandomK(4), TopK(3)], {"length": 33, "examples": 1, "masked": True}),
    "one token": ([Full(), TopK(1)], {"length": 1}),
    "the longest": ([TopK(5)], {"length": 64, "width": 64, "examples": 1}),
    "longer": ([Full(), TopK(4), Banded(7), BlockLocal(8)], {"length": 70, "examples": 2}),
    "longer, many kept": ([TopK(20)], {"length": 65, "width": 24, "dropout": 0.0, "examples": 1}),
    "longer, with global tokens": ([Banded(5, global_tokens=2)], {"length": 67, "examples": 1, "scale": 2.0}),
    "longer, two heads": ([Full(), TopK(4), Banded(7)], {"length": 66, "heads": 2, "examples": 1}),
    "longer, three heads": ([Full(), TopK(2)], {"length": 65, "heads": 3, "width": 24, "masked": True, "examples": 1}),
    "longer, with padding": ([Full(), TopK(3)], {"length": 66, "masked": True, "examples": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_first_half_against_plain(case):
    patterns, options = CASES[case]
    check_attention(patterns, **options)


@pytest.mark.parametrize(("length", "heads"), [(200, 1), (130, 2)])
def test_what_is_gathered_against_tiles(length, heads):
    """Several tiles of each kernel, windows beside top-k, and dropout."""
    check_gathered([TopK(5), Banded(7), TopK(3)], length, heads=heads, examples=1)


@pytest.mark.parametrize(
    ("length", "width", "mlp_width", "dropout"),
    [(37, 16, 16, 0.1), (37, 24, 40, 0.0), (37, 32, 64, 0.5), (69, 16, 16, 0.1)],
)
def test_whole_model_against_plain(length, width, mlp_width, dropout, monkeypatch):
    patterns = [Full(), Banded(5), TopK(length - 1)]
    sizes = {"length": length, "width": width, "mlp_width": mlp_width, "examples": 3 if length <= 64 else 1}
    model, tokens = population(patterns, dropout=dropout, activations=("relu", "gelu", "mish"), **sizes)
    for name, plain, fused in both(model, tokens, monkeypatch):
        assert (plain - fused).norm() <= 32 * HALF * plain.norm(), name
        assert not plain.equal(fused) or plain.abs().max() == 0, f"{name}: the kernels did not run"


@pytest.mark.parametrize("length", [20, 70])
def test_compiled_it_is_the_same(length):
    patterns = [Full(), TopK(5)] + [Strided(3), SwappedTopK(3)] * (length <= 64)
    model, tokens = population(patterns, length=length, examples=2 if length <= 64 else 1)
    plain = model(tokens, 3)
    model.run_block = torch.compile(run_block, dynamic=False, backend="aot_eager", fullgraph=True)
    assert torch.equal(plain, model(tokens, 3))


@pytest.mark.parametrize("length", [6, 66])
def test_training_after_inference(length):
    """What the kernels share between calls was made in the first, and is saved for the second's backward pass."""
    model, tokens = population([TopK(3), Banded(3)], length=length, examples=1)
    with torch.inference_mode():
        model(tokens)
    assert torch.autograd.grad(model(tokens, 3).square().sum(), model.embedding)[0].isfinite().all()


def test_under_torch_func_it_is_plain(monkeypatch):
    model, tokens = population([Full(), TopK(3)], length=7, examples=1)
    weights = {name: w.detach() for name, w in model.named_parameters()}

    def gradient():
        return torch.func.grad(lambda w: torch.func.functional_call(model, w, (tokens, 3)).square().sum())(weights)

    found = gradient()
    without_kernels(monkeypatch)
    for name, wanted in gradient().items():
        assert torch.equal(found[name], wanted), name


@pytest.mark.parametrize("length", [5, 65])
def test_second_derivatives_are_refused(length):
    model, tokens = population([Full()], length=length, examples=1)
    weights = list(model.parameters())
    first = torch.autograd.grad(model(tokens, 3).square().sum(), weights, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.grad(sum(x.sum() for x in first), weights)


@pytest.mark.parametrize(
    ("patterns", "options"),
    [
        ([TopK(3, sinks=1)], {"length": 70}),
        ([Banded(3)], {"mask_padding": True, "length": 70}),
        ([Full()], {"soft_cap": 2.0}),
        ([Full()], {"cosine_scores": True}),
        ([Full()], {"norm": "post"}),
        ([Full()], {"length": 1025}),
        ([Full()], {"width": 80}),
    ],
)
def test_what_it_does_not_serve_stays_plain(patterns, options, monkeypatch):
    model, tokens = population(patterns, **{"length": 8, **options})
    made = []
    for name in ("attention_half", "long_half"):
        monkeypatch.setattr(torch.ops.semfocus, name, lambda *_: made.append(1), raising=False)
    assert model(tokens).isfinite().all()
    assert not made


def test_weights_that_lie_apart_and_a_step():
    """A population keeps all weights of a member in one row; its first losses are those of plain PyTorch."""
    losses = []
    for fused in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if not fused:
                without_kernels(patch)
            small = {"width": 16, "mlp_width": 16, "blocks": 1}
            runs = [
                paper(
                    {"name": "even_pairs", "length": 10}, pattern, 0, precision="tf32", model=small,
                    data={"train": 16, "heldout": 8}, train={"epochs": 1, "batch": 8},
                )
                for pattern in (Full(), TopK(5))
            ]  # fmt: skip
            members = Population(runs)
            assert (members.implementation(0)["training"] == "block") is fused
            members.train_epoch(0)
            losses.append(members.evaluate("heldout").loss)
    assert ((losses[0] - losses[1]).abs() <= 8 * HALF * losses[0]).all()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_second_half_against_plain(dropout):
    check_mlp(["relu", "gelu", "mish", "relu"], 37, dropout=dropout)


def second_half():
    """Inputs that have gradients, and the output."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 70, 16), (2, 16, 24), (2, 1, 24), (2, 24, 16), (2, 1, 16)]
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    keys, kinds = torch.tensor([[1, 2], [1, 2]], dtype=torch.int32)
    return inputs, torch.ops.semfocus.mlp_half(*inputs, keys, kinds, 0b11, 1e-5, 0.1)


def longer_first_half():
    """The same of two heads, of which one member has all keys and the other three."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 2, 66, 16), (2, 16, 96), (2, 1, 96), (2, 32, 16), (2, 1, 16)]
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    keys, scales = torch.tensor([1, 2], dtype=torch.int32), torch.ones(2)
    runs = (None, None, [1, 2], [0, 3], [0, 0], 66)
    return inputs, torch.ops.semfocus.long_half(*inputs, scales, keys, *runs, 1e-5, 0.1)[0]


@pytest.mark.parametrize("power", [-80, 60])
@pytest.mark.parametrize("half", [second_half, longer_first_half])
def test_gradients_of_any_size_lose_nothing(half, power):
    """Units are powers of two: a gradient 2^p times as large gives results 2^p times as large, bit for bit."""
    inputs, out = half()
    change = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    plain = torch.autograd.grad(out, inputs, change, retain_graph=True)
    scaled = torch.autograd.grad(out, inputs, change * 2.0**power, retain_graph=True)
    nothing = torch.autograd.grad(out, inputs, torch.zeros_like(out))
    for a, b, zero in zip(plain, scaled, nothing, strict=True):
        assert a.isfinite().all()
        assert (a * 2.0**power).equal(b)
        assert not zero.any()
