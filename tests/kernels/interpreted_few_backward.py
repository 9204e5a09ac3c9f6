"""The backward kernels for a few kept keys, through Triton's interpreter. Run by test_few_backward.py."""

import pytest
import torch
from interpreted_short_rows import draw
from kernel_oracle import check, poison, run

from semfocus import TopK, kernels
from semfocus.kernels import launch
from semfocus.kernels.few_backward import WORDS
from semfocus.training.population import precision

assert kernels.INTERPRETED


@pytest.fixture(autouse=True)
def high():
    with precision("tf32"):
        yield


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    poison(monkeypatch)


@pytest.fixture
def calls(monkeypatch):
    """The options with which these kernels were called."""
    seen = []
    gathered = launch._few_backward

    def spy(*arguments):
        seen.append(arguments[5])
        gathered(*arguments)

    monkeypatch.setattr(launch, "_few_backward", spy)
    return seen


@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize(("t", "s"), [(1, 9), (70, 150)])
def test_output_and_gradients(k, t, s, calls):
    """Also over several tiles of queries and of keys, the last ones not full."""
    check(*draw(TopK(k), t, s, lead=(1,), dropout_p=0.2))
    assert [options.budget for options in calls] == [k]


def test_the_others_stay_with_tiles(calls):
    check(*draw(TopK(9), 9, 20))
    check(*draw(TopK(3), 9, 20, dtype=torch.float16))
    with precision("float32"):
        check(*draw(TopK(3), 9, 20))
    assert not calls


@pytest.mark.parametrize("size", [1, 31, 32])
def test_as_many_words_as_there_may_be(size, calls):
    """The best keys, among others in the last word, and several in one."""
    keys = 32 * WORDS.value - 32 + size
    problem, d_out = draw(TopK(4), 3, keys, lead=(1,), heads=1, dropout_p=0.3)
    best = torch.tensor([0, 62, 63, keys - 1])
    problem.k[..., best, :] = problem.q.mean(-2, keepdim=True) * torch.linspace(20, 20.5, 4)[:, None]
    problem.q[:] = problem.q.mean(-2, keepdim=True)
    kept = check(problem, d_out)
    assert kept[..., best].all()
    assert len(calls) == 1


def test_longer_rows_stay_with_tiles(calls):
    check(*draw(TopK(2), 2, 32 * WORDS.value + 1, lead=(1,), heads=1, is_causal=True, query_offset=1023))
    assert not calls


@pytest.mark.parametrize("offset", [-3, 0, 40])
def test_causal(offset, calls):
    """Rows that see nothing, rows that see fewer keys than they may keep, and blocks that do not see each other."""
    check(*draw(TopK(5), 80, 150, lead=(1,), heads=1, is_causal=True, query_offset=offset, dropout_p=0.1))
    assert len(calls) == 1


def test_padding(calls):
    mask = torch.rand(3, 1, 1, 70, generator=torch.Generator().manual_seed(0)) < 0.3
    mask[1] = False
    mask[2] = torch.arange(70) > 67
    problem, d_out = draw(TopK(5), 20, 70, lead=(3,), mask=mask, dropout_p=0.2)
    check(problem, d_out)
    gradients = run(problem, d_out)[1]
    assert not any(x[1].any() for x in gradients)
    assert len(calls) == 2


def test_what_is_hidden_does_not_matter(calls):
    """Nor does what stands in the bits of rows beyond the last query."""
    seen = torch.arange(40) % 16 == 7  # three of them, and five may be kept
    problem, d_out = draw(TopK(5), 18, 40, mask=seen[None, None, None, :])
    problem.k[..., ~seen, :] = 0
    expected = run(problem, d_out)[1]
    problem.k[..., ~seen, :] = torch.nan
    assert all(map(torch.equal, run(problem, d_out)[1], expected))
    assert all(x.any() for x in expected)
    assert len(calls) == 2


@pytest.mark.parametrize("drawn", [True, False], ids=["bits drawn before", "bits drawn by tiles"])
@pytest.mark.parametrize("offset", [0, 7])
def test_dropout(drawn, offset, calls, monkeypatch):
    if not drawn:
        monkeypatch.setattr(launch, "LONGEST_ROW", 0)
    check(*draw(TopK(6), 70, 40, dropout_p=0.5, query_offset=offset))
    assert len(calls) == drawn


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads_odd_widths_and_scales_per_member(causal, calls):
    scale = torch.tensor([0.1, -0.4])[:, None, None, None]
    options = {"heads": 6, "kv_heads": 2, "scale": scale, "dropout_p": 0.2, "is_causal": causal, "query_offset": 20}
    check(*draw(TopK(3), 20, 70, d=24, **options))
    assert len(calls) == 1


def test_ties(calls):
    check(*draw(TopK(8), 16, 70, d=4, integers=True))
    assert len(calls) == 1


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_sizes_far_from_one(size, calls):
    problem, d_out = draw(TopK(5), 20, 40, dropout_p=0.5)
    problem.q.mul_(size)
    problem.k.div_(size)
    problem.v.mul_(size)
    check(problem, d_out / size**1.5)
    assert len(calls) == 1


def test_scores_so_large_that_rounding_moves_weights(calls):
    problem, d_out = draw(TopK(5), 20, 40)
    problem.q.mul_(3e4)
    problem.k.mul_(3e4)
    assert all(torch.isfinite(x).all() for x in run(problem, d_out)[1])


@pytest.mark.parametrize("which", ["query", "key", "value", "gradient"])
def test_nan_is_never_hidden(which, calls):
    """And in the gradient of the queries it stays in the rows that have to do with it: all, unless it is a row's."""
    problem, d_out = draw(TopK(3), 70, 90, lead=(1,), heads=1)
    {"query": problem.q, "key": problem.k, "value": problem.v, "gradient": d_out}[which][..., 4, :] = torch.nan
    _, (dq, dk, dv), _ = run(problem, d_out)
    broken = (torch.arange(70) == 4) | (which in ("key", "value"))
    assert torch.equal(dq[0, 0].isnan().any(-1), broken)
    assert dk.isnan().any()
    assert dv.isnan().any() or which == "value"
    assert len(calls) == 1
