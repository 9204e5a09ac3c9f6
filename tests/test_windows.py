"""Windows by intervals: the same as the reference, in O(t w)."""

import pytest
import torch

from semfocus import Banded, BlockLocal, TopK, attention, explain, functional, reference, windows
from semfocus.patterns._windows import Window

CALLS = {  # queries, keys, causal, offset
    "square": (100, 100, False, 0),
    "causal": (100, 100, True, 0),
    "decoding": (1, 77, True, 76),
    "behind a cache": (30, 90, True, 60),
    "before the keys": (30, 90, False, -5),
    "early rows see nothing": (30, 20, True, -9),
    "more queries than keys": (130, 65, False, 0),
}


def draw(pattern, t, s, causal=False, offset=0, mask=None, kv_heads=2, dtype=torch.float64):
    g = torch.Generator().manual_seed(t + s)
    shapes = ((2, 2, t, 8), (2, kv_heads, s, 8), (2, kv_heads, s, 9))
    q, k, v = (torch.randn(shape, generator=g, dtype=dtype).requires_grad_() for shape in shapes)
    return functional.problem_of(q, k, v, pattern, mask, 0.0, causal, None, kv_heads != 2, offset, None, draws=False)


def differentiate(attend, p):
    out = attend(p)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=out.dtype)
    return out, *torch.autograd.grad(out, (p.q, p.k, p.v), weights)


def expect_equal(p, ours):
    for name, a, b in zip(
        ("out", "dq", "dk", "dv"),
        differentiate(ours, p),
        differentiate(lambda p: reference.attend(p)[0], p),
        strict=True,
    ):
        assert (a - b).abs().max() < 1e-12, name


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("width", [1, 4, 65, 200])
@pytest.mark.parametrize("kind", [Banded, BlockLocal])
@pytest.mark.parametrize("padding", ["none", "some", "all"])
def test_the_same_as_the_reference(kind, width, call, padding):
    t, s, causal, offset = CALLS[call]
    mask = torch.rand(2, 1, 1, s, generator=torch.Generator().manual_seed(width)) < (0.7 if padding == "some" else 0)
    mask = None if padding == "none" else mask
    p = draw(kind(width), t, s, causal, offset, mask, kv_heads=1 if width == 4 else 2)
    assert windows.cannot(p, False) is None
    expect_equal(p, windows.attend)


@pytest.mark.parametrize("pattern", [Banded(5, global_tokens=1), BlockLocal(40, global_tokens=3)])
@pytest.mark.parametrize("padded", [False, True])
def test_global_tokens(pattern, padded):
    mask = torch.rand(1, 90, generator=torch.Generator().manual_seed(0)) < 0.6 if padded else None
    expect_equal(draw(pattern, 90, 90, mask=mask), windows.attend)


@pytest.mark.parametrize("causal", [False, True])
def test_reach_is_the_window_seen_from_the_key(causal):
    p = draw(Banded(7), 40, 40, causal, mask=torch.rand(2, 1, 1, 40, generator=torch.Generator().manual_seed(0)) < 0.7)
    found = windows.intervals(p)
    first, last = found.reach(40)
    columns = torch.arange(40)
    inside = (columns >= found.begin[..., None]) & (columns < found.end[..., None])  # (..., t, s)
    rows = torch.arange(40)[:, None]
    assert not (inside & ((rows < first[..., None, :]) | (rows >= last[..., None, :]))).any()


def test_no_matrix_of_scores_is_kept_or_made():
    p = draw(Banded(16), 4096, 4096, causal=True, dtype=torch.float32)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Watch():
        differentiate(windows.attend, p)
    assert largest <= 2 * p.q.numel() + 4 * 64 * (64 + 16) * 4  # inputs, and blocks of scores


def test_refusals_name_the_reason():
    x = torch.randn(1, 2, 20, 8)
    for pattern, options, word in (
        (TopK(3), {}, "top_k"),
        (Banded(3), {"dropout_p": 0.5}, "dropout_p"),
        (Banded(3), {"attn_mask": torch.zeros(20, 20)}, "boolean"),
        (Banded(3), {"attn_mask": torch.ones(20, 20, dtype=torch.bool)}, "over keys"),
    ):
        with pytest.raises(ValueError, match=word):
            attention(x, x, x, pattern, **options, implementation="windows")


def test_auto_takes_them_for_long_inputs():
    x = torch.randn(1, 2, 600, 8)
    assert explain(x, x, x, Banded(5)).choice == "windows"
    assert explain(x, x, x, Banded(500)).choice == "reference"
    assert explain(x[..., :40, :], x[..., :40, :], x[..., :40, :], Banded(5)).choice == "reference"
    ours, theirs = (attention(x, x, x, Banded(5), implementation=name) for name in ("auto", "reference"))
    torch.testing.assert_close(ours, theirs)


def test_bounds_grow_with_the_rank():
    """What ``reach`` rests on."""
    rank = torch.arange(50)
    for pattern in (p for kind in (Banded, BlockLocal) for p in kind.examples()):
        assert isinstance(pattern, Window)
        for bound in pattern.bounds(rank, torch.tensor(50)):
            assert (bound.diff() >= 0).all()


def test_a_backward_pass_inside_autocast_is_as_exact():
    gradients = []
    for inside in (False, True):
        q = torch.randn(1, 2, 80, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = attention(q, q, q, Banded(5), implementation="windows")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            gradients += torch.autograd.grad(out, q, torch.ones_like(out))
    assert torch.equal(*gradients)
