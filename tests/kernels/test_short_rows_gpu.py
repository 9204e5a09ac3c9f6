"""The fused kernel on a device: large cases against float64, compiled, in a graph, and twice the same."""

import dataclasses

import pytest
import torch

from semfocus import Full, TopK, attention, functional, kernels, reference
from semfocus.randomness import Noise
from semfocus.reference import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not kernels.INSTALLED, reason="Triton is not installed"),
]
PATTERNS = [Full(), TopK(5), TopK(40), TopK(100)]
DTYPES = {"high": torch.float32, "highest": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(params=DTYPES)
def dtype(request):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if request.param == "highest" else "high")
    yield DTYPES[request.param]
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def high():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def draw(pattern, t, s, dtype=torch.float32, *, d=64, heads=1, kv_heads=1, integers=False, **options):
    shapes = [(3, heads, t, d), *[(3, kv_heads, s, d)] * 2, (3, heads, t, d)]
    q, k, v, d_out = (torch.randn(shape, device="cuda").to(dtype) for shape in shapes)
    if integers:
        q, k = q.round().clamp(-1, 1), k.round().clamp(-1, 1)
    noise = Noise(torch.arange(3, dtype=torch.int32, device="cuda"), torch.zeros(3, dtype=torch.int32, device="cuda"))
    usual = {"mask": None, "is_causal": False, "query_offset": 0, "scale": d**-0.5, "dropout_p": 0.0, "noise": noise}
    return Problem(q, k, v, pattern, **(usual | options)), d_out


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.label)
def test_long_rows_against_float64(pattern, dtype):
    from kernel_oracle import check

    check(*draw(pattern, 600, 600, dtype, dropout_p=0.01))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.label)
@pytest.mark.parametrize(
    ("t", "s", "d", "heads", "kv_heads", "causal"),
    [(1, 1, 16, 1, 1, False), (63, 100, 32, 4, 2, True), (100, 1000, 128, 2, 1, True), (257, 41, 24, 2, 2, False)],
)
def test_odd_shapes(pattern, t, s, d, heads, kv_heads, causal, high):
    from kernel_oracle import check

    mask = torch.rand(3, 1, 1, s, device="cuda") < 0.6
    options = {"is_causal": causal, "query_offset": max(0, s - t), "mask": mask, "dropout_p": 0.3}
    check(*draw(pattern, t, s, d=d, heads=heads, kv_heads=kv_heads, **options))


@pytest.mark.parametrize("k", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("causal", [False, True])
def test_a_few_kept_keys(k, causal, high):
    """Two ways of the backward pass meet here. Several tiles, grouped heads, scales of members, padding."""
    from kernel_oracle import check

    mask = torch.arange(330, device="cuda") < torch.tensor([330, 290, 3], device="cuda")[:, None, None, None]
    scale = torch.tensor([0.1, -0.2, 0.05], device="cuda")[:, None, None, None]
    options = {"scale": scale, "mask": mask, "is_causal": causal, "query_offset": 30}
    problem, d_out = draw(TopK(k), 300, 330, heads=4, kv_heads=2, **options)
    check(problem, d_out)
    check(dataclasses.replace(problem, dropout_p=0.2), d_out)


@pytest.mark.parametrize("causal", [False, True])
def test_longer_rows_for_some_budgets(causal, high):
    from kernel_oracle import check

    problem, d_out = draw(TopK(48), 300, 2001, torch.bfloat16, heads=2, is_causal=causal, query_offset=1701)
    assert not kernels.is_long(problem)
    check(problem, d_out)
    check(dataclasses.replace(problem, dropout_p=0.2), d_out)


@pytest.mark.parametrize("pattern", [TopK(1), TopK(5), TopK(8), TopK(20), TopK(100)], ids=lambda p: p.label)
def test_ties_go_to_the_lowest_index(pattern, high):
    from kernel_oracle import check

    problem, d_out = draw(pattern, 300, 600, d=16, integers=True)
    kept = check(problem, d_out)
    scores = (problem.q * problem.scale) @ problem.k.mT  # exact: small integers times a power of two
    assert torch.equal(kept, reference.kept_keys(problem, problem.q, problem.k, scores))


@pytest.mark.parametrize("pattern", [Full(), TopK(5)], ids=lambda p: p.label)
def test_copies_of_keys(pattern, high):
    """Every key four times: equal scores that are no round numbers. What the passes compute must agree to the bit."""
    from kernel_oracle import check

    problem, d_out = draw(pattern, 600, 600)
    check(dataclasses.replace(problem, k=problem.k[..., :150, :].repeat(1, 1, 4, 1)), d_out)


def differentiate(problem, d_out, attend=functional.attend):
    """Output and dq; no graph survives, which would know another stream."""
    out = attend(problem)[0]
    return out.detach(), torch.autograd.grad(out, problem.q, d_out)[0]


@pytest.fixture(params=[Full(), TopK(5)], ids=lambda p: p.label)
def problem(request, high):
    problem, d_out = draw(request.param, 600, 600, dropout_p=0.1)
    problem.q.requires_grad_()
    assert functional.choose(problem, False) == "fused"
    return problem, d_out


def expect_equal(ours, theirs):
    for name, a, b in zip(("out", "dq"), ours, theirs, strict=True):
        assert torch.equal(a, b), f"{name} differs by up to {(a - b).abs().max()}"


def test_twice_the_same(problem):
    expect_equal(differentiate(*problem), differentiate(*problem))


def test_the_same_compiled(problem):
    compiled = torch.compile(functional.attend, dynamic=False)
    expect_equal(differentiate(*problem, compiled), differentiate(*problem))


def test_the_same_in_a_graph(problem):
    expect_equal(captured(*problem), differentiate(*problem))


def captured(problem, d_out):
    """``differentiate`` as a CUDA graph, replayed over results that were spoilt."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        differentiate(problem, d_out)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = differentiate(problem, d_out)
    for x in results:
        x.fill_(torch.nan)
    graph.replay()
    return results


def test_auto_takes_it_where_it_pays(high):
    problem, _ = draw(TopK(5), 600, 600)
    assert functional.choose(problem, False) == "fused"
    assert functional.choose(problem, True) == "reference"
    assert functional.choose(dataclasses.replace(problem, pattern=TopK(5, sinks=1)), False) == "reference"
    half = draw(Full(), 600, 600, torch.bfloat16)[0]
    assert functional.choose(half, False) == "sdpa"
    torch.set_float32_matmul_precision("highest")
    assert functional.choose(problem, False) == "fused"
    assert functional.choose(dataclasses.replace(problem, dropout_p=0.1), False) == "reference"
    with pytest.raises(ValueError, match="float64"):
        attention(*[problem.q.double()] * 3, implementation="fused")
