"""Gathering the kept keys: the same as the reference, and no matrix of scores for the backward pass."""

import pytest
import torch

from semfocus import Banded, BottomK, Full, PositionalTopK, TopK, attention, explain, gathered, reference
from test_windows import CALLS, differentiate, draw, expect_equal

PATTERNS = [TopK(1), TopK(5), TopK(64), TopK(5, sinks=2), PositionalTopK(3), Banded(5)]


@pytest.mark.parametrize("call", [*CALLS, "long"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.label)
@pytest.mark.parametrize("mask", ["none", "keys", "nothing", "bias"])
def test_the_same_as_the_reference(pattern, call, mask):
    t, s, causal, offset = (CALLS | {"long": (50, 600, True, 500)})[call]
    g = torch.Generator().manual_seed(s)
    masks = {
        "none": None,
        "keys": torch.rand(2, 1, 1, s, generator=g) < 0.7,
        "nothing": torch.zeros(2, 1, 1, s, dtype=torch.bool),
        "bias": torch.randn(t, s, generator=g, dtype=torch.float64),
    }
    p = draw(pattern, t, s, causal, offset, masks[mask], kv_heads=1 if mask == "keys" else 2)
    assert gathered.cannot(p, False) is None
    expect_equal(p, gathered.attend)


@pytest.mark.parametrize("k", [1, 5, 64])
def test_ties_go_to_the_lowest_index(k):
    p = draw(TopK(k), 40, 600, causal=True, offset=500)
    p.q.data.round_()
    p.k.data.round_().clamp_(-1, 1)
    expect_equal(p, gathered.attend)


def test_the_backward_pass_remembers_the_kept_keys_only():
    p = draw(TopK(8), 2048, 2048, causal=True, dtype=torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        out = gathered.attend(p)
    assert max(kept) <= max(p.q.numel(), p.v.numel(), out[..., 0].numel() * 8)


def test_half_precision_chooses_in_float32():
    p = draw(TopK(3), 50, 300, dtype=torch.bfloat16)
    ours, theirs = differentiate(gathered.attend, p), differentiate(lambda p: reference.attend(p)[0], p)
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).float().norm() <= 0.01 * b.float().norm()


def test_refusals_name_the_reason():
    x = torch.randn(1, 2, 20, 8)
    for pattern, options, word in (
        (Full(), {}, "no budget"),
        (Banded(3, global_tokens=1), {}, "global tokens"),
        (TopK(3), {"dropout_p": 0.5}, "dropout_p"),
        (TopK(3), {"attn_mask": torch.zeros(20, 20, requires_grad=True)}, "gradient"),
    ):
        with pytest.raises(ValueError, match=word):
            attention(x, x, x, pattern, **options, implementation="gathered")


def test_auto_takes_it_for_long_inputs():
    x = torch.randn(1, 2, 600, 8)
    assert explain(x, x, x, TopK(5)).choice == "gathered"
    assert explain(x, x, x, TopK(100)).choice == "reference"
    assert explain(x, x, x, TopK(5), dropout_p=0.1).choice == "reference"


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 1, 0, 3)])
def test_heads_that_lie_any_way_in_memory(axes):
    """As models have them: (b, t, h, d) transposed."""
    inverse = [axes.index(i) for i in range(4)]
    shape = [(2, 3, 600, 4)[i] for i in axes]
    x = [torch.randn(shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(3)]
    q, k, v = (y.permute(inverse).detach().requires_grad_() for y in x)
    found = {}
    for implementation in ("gathered", "reference"):
        out = attention(q, k, v, TopK(4), implementation=implementation)
        found[implementation] = [out, *torch.autograd.grad(out.square().sum(), (q, k, v))]
    for ours, theirs in zip(*found.values(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("keys", [16, 100, 600])
@pytest.mark.parametrize("pattern", [TopK(1), TopK(4), TopK(4, sinks=1), BottomK(4)], ids=lambda p: p.label)
def test_nan_is_never_hidden(pattern, keys):
    """Where a score is NaN the output is, as in full attention."""
    for which in (0, 1):
        q, k, v = torch.randn(3, 1, 1, keys, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
        (q, k)[which][0, 0, keys - 1] = torch.nan
        wanted = attention(q, k, v, Full(), implementation="reference").isnan()
        for implementation in ("reference", "chunked", "gathered", "auto"):
            assert torch.equal(attention(q, k, v, pattern, implementation=implementation).isnan(), wanted)
    q, k, v = torch.full((3, 1, 1, keys, 8), torch.nan).unbind(0)
    for implementation in ("reference", "chunked", "gathered", "auto"):
        assert attention(q, k, v, pattern, implementation=implementation).isnan().all()


@pytest.mark.parametrize(("implementation", "pattern"), [("gathered", TopK(3)), ("windows", Banded(5))])
def test_second_derivatives_are_refused_even_of_what_is_linear_in_the_output(implementation, pattern):
    """The incoming gradient needs none itself: PyTorch's own ``once_differentiable`` would let that through."""
    q, k, v = torch.randn(3, 1, 1, 20, 4).requires_grad_()
    out = attention(q, k, v, pattern, implementation=implementation)
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.square().sum().backward()
