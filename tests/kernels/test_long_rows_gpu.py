"""Long rows and windows on a device: large cases against float64, compiled, in a graph, and twice the same."""

import dataclasses
from functools import partial

import pytest
import torch
from test_short_rows_gpu import captured, differentiate, draw, dtype, expect_equal, high, pytestmark  # noqa: F401

from semfocus import Banded, BlockLocal, TopK, attention, functional, kernels, reference


@pytest.fixture(params=["gathers", "tiles"])
def check_long(request, monkeypatch):
    """Both backward passes. Gathering is in float32; tiles round float32 to halves unless it must be exact."""
    from kernel_oracle import check, run_long

    from semfocus.kernels import long_launch

    monkeypatch.setattr(long_launch, "GATHER_FROM", (0, 0 if request.param == "gathers" else 2**30))
    return partial(check, run=run_long, halved=False if request.param == "gathers" else None)


@pytest.mark.parametrize("k", [1, 8, 64, 300])
def test_against_float64(k, dtype, check_long):  # noqa: F811
    check_long(*draw(TopK(k), 500, 2000, dtype))


@pytest.mark.parametrize(
    ("k", "t", "s", "d", "heads", "kv_heads", "causal"),
    [
        (8, 1, 5000, 64, 8, 2, True),
        (8, 63, 1100, 16, 2, 1, True),
        (32, 2000, 2000, 128, 2, 1, True),
        (5, 100, 1025, 40, 2, 2, False),
        (1024, 65, 3000, 64, 1, 1, False),
        (8, 300, 300, 256, 1, 1, True),
    ],
)
def test_odd_shapes(k, t, s, d, heads, kv_heads, causal, check_long, high):  # noqa: F811
    mask = torch.rand(3, 1, 1, s, device="cuda") < 0.6
    options = {"is_causal": causal, "query_offset": max(0, s - t), "mask": mask}
    check_long(*draw(TopK(k), t, s, d=d, heads=heads, kv_heads=kv_heads, **options))


@pytest.mark.parametrize("k", [1, 8, 100])
def test_ties_go_to_the_lowest_index(k, check_long, high):  # noqa: F811
    problem, d_out = draw(TopK(k), 300, 1500, d=16, integers=True)
    kept = check_long(problem, d_out)
    scores = (problem.q * problem.scale) @ problem.k.mT  # exact: small integers times a power of two
    assert torch.equal(kept, reference.kept_keys(problem, problem.q, problem.k, scores))


def test_copies_of_keys(check_long, high):  # noqa: F811
    problem, d_out = draw(TopK(8), 300, 2000)
    check_long(dataclasses.replace(problem, k=problem.k[..., :500, :].repeat(1, 1, 4, 1)), d_out)


def test_the_best_keys_in_one_place(check_long, high):  # noqa: F811
    """Bounds from other tiles are low, and candidates many."""
    problem, d_out = draw(TopK(8), 300, 20000, torch.bfloat16)
    problem.k[..., 700:900, :] *= 8
    check_long(problem, d_out)


def test_nearly_equal_scores_are_told_apart_in_float32(check_long):
    """Halves cannot: candidates within their error are ranked again in full precision."""
    problem, d_out = draw(TopK(8), 200, 4000)
    close = problem.k[..., :1, :] * (1 + 1e-5 * torch.randn_like(problem.k))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    check_long(dataclasses.replace(problem, k=close), d_out)
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("pattern", [Banded(33), BlockLocal(100)], ids=lambda p: p.label)
@pytest.mark.parametrize("causal", [False, True])
def test_windows_against_float64(pattern, causal, dtype):  # noqa: F811
    from kernel_oracle import check

    check(*draw(pattern, 1500, 1500, dtype, is_causal=causal, dropout_p=0.1))


@pytest.mark.parametrize("pattern", [Banded(33, global_tokens=2), BlockLocal(64, global_tokens=1)])
def test_windows_with_global_tokens(pattern, high):  # noqa: F811
    from kernel_oracle import check

    mask = torch.rand(3, 1, 1, 1500, device="cuda") < 0.6
    check(*draw(pattern, 1500, 1500, heads=2, kv_heads=1, mask=mask))


@pytest.fixture(params=[TopK(8), Banded(33)], ids=lambda p: p.label)
def problem(request, high):  # noqa: F811
    problem, d_out = draw(request.param, 1500, 1500)
    problem.q.requires_grad_()
    assert functional.choose(problem, False) == "fused"
    return problem, d_out


def test_twice_the_same(problem):
    expect_equal(differentiate(*problem), differentiate(*problem))


def test_the_same_compiled(problem):
    compiled = torch.compile(functional.attend, dynamic=False, fullgraph=True)
    expect_equal(differentiate(*problem, compiled), differentiate(*problem))


def test_the_same_in_a_graph(problem):
    expect_equal(captured(*problem), differentiate(*problem))


def test_memory_is_linear_in_the_keys():
    """No matrix of scores at any point, forward or backward."""
    q = torch.randn(1, 1, 65536, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attention(q, q, q, TopK(8), is_causal=True).sum().backward()
    from semfocus.kernels.long_launch import WORKSPACE

    per_query = (torch.cuda.max_memory_allocated() - before - WORKSPACE) / 65536
    assert per_query < 16 * 64 * 2 + 64 * 8  # a few rows of the inputs' width, a few numbers per kept key


def test_long_rows_are_chosen(high):  # noqa: F811
    for budget, queries, keys in ((8, 99, 1025), (32, 99, 2000), (64, 63, 2000), (64, 99, 2049), (100, 99, 2000)):
        assert kernels.is_long(draw(TopK(budget), queries, keys)[0])
    for budget, queries, keys in ((8, 1, 1024), (1000, 99, 1024), (33, 64, 2048), (64, 99, 2000)):
        assert not kernels.is_long(draw(TopK(budget), queries, keys)[0])
