"""The kernels for long rows through Triton's interpreter. Run by test_long_rows.py, with TRITON_INTERPRET=1 set."""

from functools import partial

import pytest
import torch
from interpreted_short_rows import draw, poisoned, precision  # noqa: F401 (fixtures)
from kernel_oracle import check, run_long

from semfocus import TopK, kernels, reference
from semfocus.kernels import long_launch

assert kernels.INTERPRETED
check_long = partial(check, run=run_long, halved=False)


@pytest.fixture(autouse=True)
def gathers(monkeypatch):
    """The backward pass that gathers, however few keys there are."""
    monkeypatch.setattr(long_launch, "GATHER_FROM", (0, 0))


@pytest.fixture
def tiles(monkeypatch, gathers):
    """The backward pass over tiles, which rounds float32 to halves unless products must be exact."""
    monkeypatch.setattr(long_launch, "GATHER_FROM", (0, 2**30))


@pytest.mark.parametrize("precision", ["highest", "high"], indirect=True)
@pytest.mark.parametrize(("k", "t", "s"), [(3, 1, 130), (5, 7, 300), (40, 3, 200)])
def test_output_and_gradients(k, t, s, precision):  # noqa: F811
    check_long(*draw(TopK(k), t, s, lead=(1,), heads=1))


@pytest.mark.parametrize("precision", ["high"], indirect=True)
def test_backward_over_tiles(precision, tiles):  # noqa: F811
    check(*draw(TopK(5), 9, 200, lead=(1,), heads=1), run=run_long)
    check(*draw(TopK(5), 9, 200, lead=(1,), heads=1, dtype=torch.float16), run=run_long)


@pytest.mark.parametrize("offset", [-3, 120])
def test_causal(offset):
    check_long(*draw(TopK(4), 10, 150, lead=(1,), heads=1, is_causal=True, query_offset=offset))


def test_padding_groups_and_rows_that_see_nothing():
    mask = torch.rand(2, 1, 1, 140, generator=torch.Generator().manual_seed(0)) < 0.1
    mask[0] = False
    problem, d_out = draw(TopK(3), 5, 140, heads=2, kv_heads=1, mask=mask)
    check_long(problem, d_out)
    out, gradients, _ = run_long(problem, d_out)
    assert not out[0].any()
    assert not any(x[0].any() for x in gradients)


@pytest.mark.parametrize("scale", [0.25, 0.0, -1.0])
def test_ties_go_to_the_lowest_index(scale):
    """Many more candidates than there is room for: rows are searched again."""
    problem, d_out = draw(TopK(3), 6, 200, d=4, lead=(1,), heads=1, integers=True, scale=scale)
    kept = check_long(problem, d_out)
    scores = (problem.q * problem.scale) @ problem.k.mT  # exact: small integers times a power of two
    assert torch.equal(kept, reference.kept_keys(problem, problem.q, problem.k, scores))


def test_scale_for_each_head():
    check_long(*draw(TopK(3), 4, 140, lead=(1,), scale=torch.tensor([[0.5], [-0.25]]).view(1, 2, 1, 1)))


def test_popular_keys_are_summed_in_pieces(monkeypatch):
    monkeypatch.setattr(long_launch, "LIST_LIMIT", 4)
    problem, d_out = draw(TopK(3), 10, 140, heads=2, kv_heads=1, lead=(1,))
    problem.k[..., 7, :] = problem.q.mean(-2).mean(-2) * 50
    check_long(problem, d_out)


@pytest.mark.parametrize("sampling", [2, 4])
def test_bounds_from_some_of_the_keys(sampling, monkeypatch):
    monkeypatch.setattr(long_launch, "SAMPLING", ((sampling, 0),))
    problem, d_out = draw(TopK(3), 5, 600, lead=(1,), heads=1)
    problem.k[..., 130:140, :] = problem.q.mean(-2, keepdim=True) * 9  # the best ones where nobody looked
    check_long(problem, d_out)


def test_several_launches(monkeypatch):
    monkeypatch.setattr(long_launch, "WORKSPACE", 1)  # a block of queries each
    monkeypatch.setattr(long_launch, "BLOCK_M", 16)
    check_long(*draw(TopK(3), 20, 140, lead=(1,), heads=1))


def test_wide_heads():
    check_long(*draw(TopK(3), 4, 130, d=144, lead=(1,), heads=1))


def test_a_query_of_nan_gives_nan():
    problem, d_out = draw(TopK(3), 5, 140, lead=(1,), heads=1)
    problem.q[..., 4, :] = torch.nan
    assert torch.equal(run_long(problem, d_out)[0][0, 0].isnan().any(-1), torch.arange(5) == 4)
