"""The fused kernel through Triton's interpreter. Run by test_short_rows.py, with TRITON_INTERPRET=1 set."""

import importlib
from dataclasses import replace

import pytest
import sympy
import torch
from kernel_oracle import check, poison, run
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from semfocus import Banded, BlockLocal, Full, ModelConfig, TopK, Transformer, attention, kernels, reference
from semfocus.kernels import launch
from semfocus.model.transformer import run_block
from semfocus.randomness import Noise
from semfocus.reference import Problem

assert kernels.INTERPRETED


REST = ("pattern", "mask", "is_causal", "query_offset", "scale", "dropout_p", "noise")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    poison(monkeypatch)


@pytest.fixture(params=["highest", "high"])
def precision(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


def draw(pattern, t, s, d=16, lead=(2,), heads=2, kv_heads=None, dtype=torch.float32, integers=False, **options):
    g = torch.Generator().manual_seed(t + 1000 * s)
    shapes = [(*lead, heads, t, d), *[(*lead, kv_heads or heads, s, d)] * 2, (*lead, heads, t, d)]
    q, k, v, d_out = (torch.randn(shape, generator=g).to(dtype) for shape in shapes)
    if integers:  # exact scores, with many ties
        q, k = q.round().clamp(-1, 1), k.round().clamp(-1, 1)
    noise = Noise(torch.arange(7, 7 + lead[0], dtype=torch.int32), torch.zeros(lead[0], dtype=torch.int32))
    usual = {"mask": None, "is_causal": False, "query_offset": 0, "scale": 0.25, "dropout_p": 0.0, "noise": noise}
    return Problem(q, k, v, pattern, **(usual | options)), d_out


@pytest.mark.parametrize("pattern", [Full(), TopK(3), TopK(9), TopK(20)], ids=lambda p: p.label)
@pytest.mark.parametrize(("t", "s"), [(1, 1), (18, 40)])
def test_output_and_gradients(pattern, t, s, precision):
    check(*draw(pattern, t, s, dropout_p=0.3))


@pytest.mark.parametrize("pattern", [Full(), TopK(3)], ids=lambda p: p.label)
def test_output_and_gradients_of_rows_that_are_not_contiguous(pattern, precision):
    problem, d_out = draw(pattern, 18, 40)
    q, k, v = (x.mT.contiguous().mT for x in (problem.q, problem.k, problem.v))
    assert q.stride(-1) != 1
    check(replace(problem, q=q, k=k, v=v), d_out)


@pytest.mark.parametrize("heads", [1, 2])
def test_halves_of_long_matrices_have_a_unit_for_each_head(heads, monkeypatch):
    """As many axes as what a compiler is told of."""
    x = torch.randn(2, 3, heads, 40, 16) * torch.logspace(-3, 3, 6).view(2, 3, 1, 1, 1)
    half, units = launch.halves(x)
    monkeypatch.setattr(launch, "LONG_MATRIX", 39)
    again, long_units = launch.halves(x)
    assert long_units.shape == units.shape == (2, 3, heads)
    for found, unit in ((half, units), (again, long_units)):
        assert ((found.float() * unit[..., None, None] - x).abs() <= x.abs().amax((-2, -1), True) * 2**-11).all()


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
def test_transforms_without_rules_are_refused(transform):
    x = torch.randn(1, 2, 20, 16)

    def call(y):
        return attention(y, x, x, TopK(3), implementation="fused").sum()

    run_it = {
        "grad": lambda: torch.func.grad(call)(x),
        "jvp": lambda: torch.func.jvp(call, (x,), (x,)),
        "vmap": lambda: torch.func.vmap(call)(x[None]),
    }[transform]
    with pytest.raises(ValueError, match=r"fused.*cannot serve here: (torch\.func|it has no forward-mode)"):
        run_it()


def test_outputs_beyond_what_offsets_hold_are_refused():
    """Their rows hold all heads: 2^31 elements and more are out of reach. No tensor of that size is made."""
    for tokens, refused in ((2**20 - 1, False), (2**20, True)):
        x = torch.empty(1, 16, tokens, 128, device="meta", dtype=torch.bfloat16)
        problem = Problem(x, x, x, TopK(8), None, False, 0, 0.1, 0.0, Noise.none(torch.device("meta")))
        assert ("2^31" in (kernels.cannot(problem, False) or "")) is refused


def test_sizes_that_a_trace_has_as_symbols_stay_symbols():
    def asked(x):
        assert kernels.cannot(Problem(x, x, x, Full(), None, False, 0, 0.1, 0.0, Noise.none(x.device)), False) is None
        return x + 1

    traced = make_fx(asked, tracing_mode="symbolic")(torch.empty(2, 3, 40, 16))
    assert traced.shape_env.guards
    assert not [guard for guard in traced.shape_env.guards if guard.expr.func is sympy.Eq]


@pytest.mark.parametrize("pattern", [Full(), TopK(9), TopK(20)], ids=lambda p: p.label)
@pytest.mark.parametrize("offset", [-3, 9])
def test_causal(pattern, offset):
    check(*draw(pattern, 24, 33, is_causal=True, query_offset=offset, dropout_p=0.1))


@pytest.mark.parametrize("pattern", [Full(), TopK(9), TopK(20), TopK(70)], ids=lambda p: p.label)
def test_causal_over_several_tiles(pattern):
    """Some are seen by all rows of a block, some by none."""
    check(*draw(pattern, 80, 150, lead=(1,), heads=1, is_causal=True, query_offset=50, dropout_p=0.1))


WINDOWS = [Banded(5), BlockLocal(40), Banded(4, global_tokens=2), BlockLocal(7, global_tokens=1)]


@pytest.mark.parametrize("pattern", WINDOWS, ids=lambda p: p.label)
@pytest.mark.parametrize(("padded", "precision"), [(False, "highest"), (True, "high")], indirect=["precision"])
def test_windows(pattern, padded, precision):
    mask = torch.rand(1, 1, 1, 70, generator=torch.Generator().manual_seed(0)) < 0.7 if padded else None
    check(*draw(pattern, 70, 70, lead=(1,), heads=1, mask=mask, dropout_p=0.2))


@pytest.mark.parametrize("pattern", WINDOWS[:2], ids=lambda p: p.label)
@pytest.mark.parametrize(("t", "s", "offset"), [(70, 70, 0), (20, 70, 50), (40, 24, -7)])
def test_causal_windows(pattern, t, s, offset):
    mask = torch.rand(1, 1, 1, s, generator=torch.Generator().manual_seed(0)) < 0.7
    check(*draw(pattern, t, s, lead=(1,), mask=mask, heads=2, kv_heads=1, is_causal=True, query_offset=offset))


@pytest.mark.parametrize("pattern", [Full(), TopK(3), TopK(20)], ids=lambda p: p.label)
def test_padding_and_rows_that_see_nothing(pattern):
    mask = torch.rand(2, 1, 1, 37, generator=torch.Generator().manual_seed(0)) < 0.2
    mask[0] = False
    problem, d_out = draw(pattern, 20, 37, mask=mask)
    check(problem, d_out)
    out, gradients, _ = run(problem, d_out)
    assert not out[0].any()
    assert not any(x[0].any() for x in gradients)


@pytest.mark.parametrize(
    ("pattern", "scale", "precision"),
    [
        (TopK(3), 0.25, "highest"),
        (TopK(8), 0.0, "high"),
        (TopK(2), -1.0, "high"),
        (TopK(12), 0.25, "high"),
        (TopK(20), 0.25, "high"),
        (TopK(70), 0.25, "high"),
    ],
    indirect=["precision"],
)
def test_ties_go_to_the_lowest_index(pattern, scale, precision):
    problem, d_out = draw(pattern, 16, pattern.k + 20, d=4, integers=True, scale=scale)
    kept = check(problem, d_out)
    scores = (problem.q * scale) @ problem.k.mT
    assert torch.equal(kept, reference.kept_keys(problem, problem.q, problem.k, scores))


@pytest.mark.parametrize("k", [5, 8, 16, 20])
def test_slots_that_hold_more_of_the_best_than_they_keep(k):
    """The best keys lie 64 apart, in one slot of 64 or of 32."""
    keys = 64 * k
    problem, d_out = draw(TopK(k), 3, keys, lead=(1,), heads=1)
    best = torch.arange(0, keys, 64)
    problem.k[..., best, :] = problem.q.mean(-2, keepdim=True) * torch.linspace(20, 30, k)[:, None]
    problem.q[:] = problem.q.mean(-2, keepdim=True)
    kept = check(problem, d_out)
    assert kept[..., best].all()
    assert kept.sum() == 3 * k


@pytest.mark.parametrize(("k", "crowded"), [(20, 5), (40, 8)])
def test_slots_that_hold_a_few_more_than_they_keep(k, crowded):
    """They are overlooked first, and found when the threshold is moved up."""
    problem, d_out = draw(TopK(k), 5, 256, lead=(1,), heads=1)
    best = torch.cat([torch.arange(0, 32 * crowded, 32), torch.arange(1, 1 + k - crowded)])
    order = torch.randperm(k, generator=torch.Generator().manual_seed(0))
    problem.k[..., best, :] = problem.q.mean(-2, keepdim=True) * (20.0 + order[:, None] / k)
    problem.q[:] = problem.q.mean(-2, keepdim=True)
    kept = check(problem, d_out)
    assert kept[..., best].all()
    assert kept.sum() == 5 * k


@pytest.mark.parametrize("k", [3, 20, 70])
@pytest.mark.parametrize("which", ["query", "key"])
def test_nan_is_never_hidden(k, which):
    problem, d_out = draw(TopK(k), 5, 90, lead=(1,), heads=1)
    (problem.q if which == "query" else problem.k)[..., 4, :] = torch.nan
    out = run(problem, d_out)[0]
    broken = torch.arange(5) == 4 if which == "query" else torch.ones(5, dtype=torch.bool)
    assert torch.equal(out[0, 0].isnan().any(-1), broken)


@pytest.mark.parametrize("k", [17, 60, 70])
def test_thresholds_of_scores_spread_unevenly(k):
    """Most of them close together, some far away, some equal."""
    problem, d_out = draw(TopK(k), 17, 130, lead=(1,), heads=1)
    size = torch.rand(130, generator=torch.Generator().manual_seed(0)) ** 8 * 100
    size[40:60] = 0
    problem.k.mul_(size[:, None])
    check(problem, d_out)


@pytest.mark.parametrize("pattern", [Full(), TopK(3)], ids=lambda p: p.label)
def test_grouped_heads_odd_widths_and_scales_per_member(pattern, precision):
    scale = torch.tensor([0.1, -0.4])[:, None, None, None]
    check(*draw(pattern, 20, 40, d=24, heads=4, kv_heads=2, scale=scale, dropout_p=0.2))


@pytest.mark.parametrize("lead", [(1,), (2, 1, 2)])
def test_any_number_of_leading_axes(lead):
    check(*draw(TopK(3), 9, 9, lead=lead, heads=1, dropout_p=0.2))


def test_float16():
    check(*draw(TopK(3), 20, 40, dtype=torch.float16, dropout_p=0.2))


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e6, 1e18])
def test_halves_keep_their_digits_at_any_size(size):
    x = torch.randn(2, 1, 2, 70, 24, generator=torch.Generator().manual_seed(0)) * size
    x[0] *= torch.logspace(-9, 0, 70)[:, None]
    half, units = launch.halves(x)
    error = (half.double() * units.double()[..., None, None] - x.double()).abs()
    largest = x.abs().amax((-2, -1), keepdim=True).double()
    assert (error <= 2.0**-11 * x.abs().double() + 2.0**-39 * largest).all()
    assert (torch.frexp(units).mantissa == 0.5).all()
    assert not launch.halves(torch.zeros(1, 1, 1, 3, 16))[0].any()


@pytest.mark.parametrize("precision", ["high"], indirect=True)
def test_sizes_far_from_one(precision):
    problem, d_out = draw(Full(), 20, 40, dropout_p=0.5)
    large = Problem(problem.q * 1e9, problem.k * 1e-9, problem.v * 1e12, *[getattr(problem, n) for n in REST])
    check(large, d_out * 1e-15)


class Watched(TorchDispatchMode):
    """Remembers the operators that are called, as a tracer would."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.seen.add(operator.name())
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize(("rows", "name"), [("short_rows", "attend"), ("long_rows", "attend_long")])
def test_who_watches_sees_an_operator_and_gets_what_eager_code_gets(rows, name):
    problem, d_out = draw(TopK(3), 6, 80, lead=(1,), heads=1)
    attend = importlib.import_module(f"semfocus.kernels.{rows}").attend
    inputs = [x.requires_grad_() for x in (problem.q, problem.k, problem.v)]

    def results():
        out = attend(problem)
        return [out, *torch.autograd.grad(out, inputs, d_out)]

    eager = results()
    with Watched() as watched:
        traced = results()
    assert {f"semfocus::{name}", f"semfocus::{name}_backward"} <= watched.seen
    assert all(map(torch.equal, eager, traced))
    assert all(x.any() for x in eager)


def test_second_derivatives_are_refused():
    problem, d_out = draw(Full(), 5, 5)
    q = problem.q.requires_grad_()
    out = attention(q, problem.k, problem.v, implementation="fused")
    (first,) = torch.autograd.grad(out, q, d_out.requires_grad_(), create_graph=True)
    with pytest.raises(NotImplementedError, match="reference"):
        torch.autograd.grad(first.sum(), q)


@pytest.mark.parametrize("precision", ["high"], indirect=True)
def test_a_population_uses_it_compiled_too(monkeypatch, precision):
    """The packed form: q, k, v and their gradients in one tensor, members with different patterns."""
    config = ModelConfig(vocabulary=2, classes=2, width=16, mlp_width=16, blocks=1, heads=2, dropout=0.1)
    tokens = torch.randint(0, 3, (3, 1, 37), generator=torch.Generator().manual_seed(0))  # 2 is padding
    results = []
    for mode in ("reference", "fused", "compiled"):
        monkeypatch.setattr(kernels, "pays", lambda p, compiled=False, mode=mode: mode != "reference")
        patterns = [Full(), TopK(37), Banded(5)]
        model = Transformer([config] * 3, patterns, seeds=[0, 1, 2]).train()
        if mode == "compiled":
            model.run_block = torch.compile(run_block, dynamic=False, backend="aot_eager", fullgraph=True)
        out = model(tokens, 3)
        results.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    for plain, fused, compiled in zip(*results, strict=True):
        assert torch.equal(fused, compiled)
        # Rounding to halves, once in each of a few products; the model adds and averages.
        assert (plain - fused).norm() <= 8 * 2.0**-11 * plain.norm()
