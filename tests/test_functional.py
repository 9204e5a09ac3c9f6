import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils._python_dispatch import TorchDispatchMode

import semfocus
from semfocus import Banded, Full, TopK, attention, chunked
from semfocus._checks import DTYPES

IMPLEMENTATIONS = ["auto", "reference", "chunked", "sdpa"]


def draw(t=7, s=7, heads=4, kv_heads=4, width=8, value_width=8, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = ((2, heads, t, width), (2, kv_heads, s, width), (2, kv_heads, s, value_width))
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def expect_same(ours, theirs, inputs, tolerance=1e-10):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)
    weights = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * weights).sum(), inputs),
        torch.autograd.grad((theirs * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=10 * tolerance, rtol=0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("t", "s"), [(7, 7), (3, 9), (9, 3), (1, 5)])
def test_full_is_pytorch_s_attention(implementation, causal, t, s):
    inputs = draw(t, s, value_width=5)
    ours = attention(*inputs, Full(), is_causal=causal, implementation=implementation)
    expect_same(ours, sdpa(*inputs, is_causal=causal), inputs)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", [(7, 9), (1, 9), (2, 1, 7, 9), (2, 4, 1, 9), (4, 7, 9), (2, 1, 1, 9)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast_as_pytorch_s_do(implementation, shape, kind):
    inputs = draw(7, 9)
    g = torch.Generator().manual_seed(5)
    mask = torch.randn(shape, generator=g, dtype=torch.float64)
    if kind == "bool":
        mask = mask > -0.5
        mask[..., 0] = True
    expected_mask = mask if mask.ndim != 3 else mask[None]
    ours = attention(*inputs, attn_mask=mask, implementation=implementation, scale=0.3)
    expect_same(ours, sdpa(*inputs, attn_mask=expected_mask, scale=0.3), inputs)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_query_attention(implementation, kv_heads):
    inputs = draw(kv_heads=kv_heads)
    ours = attention(*inputs, enable_gqa=True, implementation=implementation)
    expect_same(ours, sdpa(*inputs, enable_gqa=True), inputs)


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
def test_a_float_mask_takes_part_in_the_choice_and_gets_its_gradient(implementation):
    q, k, v = draw(1, 5, 1, 1)
    bias = torch.tensor([[0.0, 9.0, 0.0, 9.0, -torch.inf]], dtype=torch.float64, requires_grad=True)
    out, weights = attention(q, k, v, TopK(2), bias, implementation=implementation, return_weights=True)
    assert ((weights > 0) == torch.tensor([False, True, False, True, False])).all()
    (gradient,) = torch.autograd.grad(out.square().sum(), bias)
    assert gradient.isfinite().all()
    assert (gradient[0, [0, 2, 4]] == 0).all()
    assert (gradient[0, [1, 3]] != 0).all()


def test_the_gradient_of_a_mask_is_right():
    q, k, v = draw(4, 5, 2, 2)
    bias = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    for implementation in ("reference", "chunked"):
        for pattern in (Full(), TopK(2), Banded(3)):
            assert torch.autograd.gradcheck(
                lambda b, p=pattern, i=implementation: attention(
                    q.detach(), k.detach(), v.detach(), p, b, implementation=i
                ),
                bias,
            )


def test_a_negative_scale_is_applied_before_the_choice():
    q, k, v = draw()
    _, flipped = attention(q, k, v, TopK(2), scale=-1.0, return_weights=True)
    _, bottom = attention(q, k, v, semfocus.BottomK(2), scale=1.0, return_weights=True)
    assert torch.equal(flipped > 0, bottom > 0)


@pytest.mark.parametrize("scale", [0.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_scales_that_are_not_positive_hide_the_future_too(scale, dtype):
    """PyTorch's causal kernel gives NaN there."""
    q, k, v = (x.to(dtype).requires_grad_() for x in draw())
    found, wanted = (
        attention(q, k, v, is_causal=True, scale=scale, implementation=name) for name in ("auto", "reference")
    )
    tolerance = {"atol": 0.05, "rtol": 0} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(found, wanted, **tolerance)
    for a, b in zip(*(torch.autograd.grad(out.sum(), (q, k, v)) for out in (found, wanted)), strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def test_choices_are_made_in_float32_whatever_the_inputs():
    # In bfloat16 the two scores would tie: 256 + 1 rounds to 256.
    q = torch.ones(1, 1, 1, 2, dtype=torch.bfloat16)
    k = torch.tensor([[256.0, 0.0], [256.0, 1.0]], dtype=torch.bfloat16).view(1, 1, 2, 2)
    _, weights = attention(q, k, k, TopK(1), return_weights=True)
    assert weights.flatten().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("pattern", [Full(), TopK(3), Banded(3), semfocus.RandomK(3)], ids=lambda p: p.label)
def test_dropout(pattern):
    q, k, v = draw(40, 40)

    def call(seed, **options):
        return attention(q, k, v, pattern, generator=torch.Generator().manual_seed(seed), **options)

    dropped, weights = call(1, dropout_p=0.25, return_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))  # those before dropout
    assert torch.equal(dropped, call(1, dropout_p=0.25))
    assert not torch.equal(dropped, call(2, dropout_p=0.25))
    torch.testing.assert_close(dropped, call(1, dropout_p=0.25, implementation="chunked"))
    assert (call(1, dropout_p=1.0) == 0).all()
    if not pattern.random:
        # Unbiased: with values of 1 every output is a mean of (1 - drop) / (1 - p) over its weights.
        mean = torch.stack([attention(q, k, torch.ones_like(v), pattern, dropout_p=0.25) for _ in range(50)]).mean()
        assert abs(mean - 1) < 0.02


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor made in either pass."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):  # storage, so that expanded views count as what they hold
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("pattern", [TopK(5), Banded(5), Full(), semfocus.RandomK(5)], ids=lambda p: p.label)
def test_chunked_never_holds_the_score_matrix(monkeypatch, pattern):
    length, chunk = 512, 16
    monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", chunk * length)
    inputs = [x[:1] for x in draw(length, length, 1, 1, dtype=torch.float32)]
    for causal in (False, True):
        with LargestTensor() as seen:
            out = attention(*inputs, pattern, is_causal=causal, implementation="chunked")
            torch.autograd.grad(out.sum(), inputs)
        assert seen.numel <= chunk * length


@settings(max_examples=60, deadline=None)
@given(
    t=st.integers(0, 6),
    s=st.integers(0, 6),
    offset=st.integers(-3, 8),
    k=st.integers(1, 8),
    causal=st.booleans(),
    implementation=st.sampled_from(["auto", "reference", "chunked"]),
    dtype=st.sampled_from(DTYPES),
)
def test_nothing_gives_nan(t, s, offset, k, causal, implementation, dtype):
    inputs = draw(t, s, 2, 1, dtype=dtype)
    mask = torch.rand(t, s, generator=torch.Generator().manual_seed(t * 7 + s)) < 0.4
    for pattern in (Full(), TopK(k), Banded(k), semfocus.Strided(k)):
        out = attention(
            *inputs,
            pattern,
            mask,
            is_causal=causal,
            query_offset=offset,
            enable_gqa=True,
            implementation=implementation,
        )
        assert out.shape == (2, 2, t, 8)
        assert out.dtype == dtype
        assert all(x.isfinite().all() for x in (out, *torch.autograd.grad(out.float().sum(), inputs)))


def test_huge_scores_stay_finite():
    q, k, v = (1e4 * x for x in draw(dtype=torch.float32))
    for pattern in (Full(), TopK(3)):
        assert attention(q, k, v, pattern).isfinite().all()


def test_k_is_a_run_time_value():
    q, k, v = draw(16, 16)
    sizes = [int((attention(q, k, v, TopK(n), return_weights=True)[1] > 0).sum(-1).max()) for n in range(1, 20)]
    assert sizes == [min(n, 16) for n in range(1, 20)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_float32_mask_keeps_its_precision_with_half_precision_inputs(dtype):
    q, k, v = (x.detach() for x in draw(dtype=dtype))
    mask = torch.randn(7, 7, generator=torch.Generator().manual_seed(1)) + 1000
    wanted = attention(q.float(), k.float(), v.float(), attn_mask=mask)
    for implementation in ("auto", "reference", "chunked"):
        out = attention(q, k, v, attn_mask=mask, implementation=implementation)
        torch.testing.assert_close(out.float(), wanted, atol=0.02, rtol=0)
    with pytest.raises(ValueError, match=r"attn_mask is torch\.float32"):
        attention(q, k, v, attn_mask=mask, implementation="sdpa")


@pytest.mark.parametrize("pattern", [Full(), TopK(3), Banded(9)], ids=lambda p: p.label)
def test_nan_in_a_mask_is_seen(pattern):
    """It hides no key: a bias that has diverged must not pass for a mask."""
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    mask = torch.zeros(6, 6)
    mask[2:4, 3] = torch.nan
    out = attention(q, k, v, pattern, attn_mask=mask)
    assert out[..., 2:4, :].isnan().all()
    assert out[..., [0, 1, 4, 5], :].isfinite().all()


def test_numbers_of_numpy():
    x = torch.randn(1, 2, 6, 4)
    for scale, p in ((np.float32(0.5), np.float16(0.25)), (np.int64(2), np.float64(0))):
        ours, wanted = (
            attention(x, x, x, dropout_p=b, scale=a, generator=torch.Generator().manual_seed(0))
            for a, b in ((scale, p), (float(scale), float(p)))
        )
        assert ours.equal(wanted)


def test_a_mask_beyond_float32_hides():
    q, k, v = draw(dtype=torch.float32)
    mask = torch.zeros(7, 7, dtype=torch.float64)
    mask[:, 3] = -1e300
    mask[2] = -1e300
    out, weights = attention(q, k, v, TopK(3), mask, return_weights=True)
    assert out.isfinite().all()
    assert (weights[..., 3] == 0).all()
    assert (weights[..., 2, :] == 0).all()


def test_autocast_brings_mixed_inputs_to_one_dtype():
    """As a model's rotated queries and keys, and its plain values."""
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    low = [x.bfloat16() for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = semfocus.attention(q, k, low[2], TopK(3))
        assert sdpa(q, k, low[2]).dtype == out.dtype == torch.bfloat16
        with pytest.raises(ValueError, match=r"value is torch.bfloat16.*must match query"):
            semfocus.attention(q.double(), k.double(), low[2])
    assert torch.equal(out, semfocus.attention(*low, TopK(3)))
    with pytest.raises(ValueError, match="value is"):
        semfocus.attention(q, k, low[2], TopK(3))


def test_autocast_does_not_touch_the_scores():
    q, k, v = (x.detach() for x in draw(64, 64, dtype=torch.float32))
    _, wanted = attention(q, k, v, TopK(5), return_weights=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, weights = attention(q, k, v, TopK(5), return_weights=True)
    assert torch.equal(weights, wanted)


def test_a_default_device_is_not_where_our_tensors_go():
    q = torch.randn(1, 1, 600, 4)
    with torch.device("meta"):
        gathered = attention(q, q, q, TopK(3))
        dropped = attention(q[..., :16, :], q[..., :16, :], q[..., :16, :], TopK(3), dropout_p=0.5)
    assert gathered.device == dropped.device == q.device


def test_explain_says_what_auto_does_and_why():
    q, k, v = torch.randn(3, 1, 2, 16, 8)
    for pattern, options in (
        (Full(), {}),
        (TopK(3), {}),
        (Full(), {"dropout_p": 0.1}),
        (Full(), {"return_weights": True}),
    ):
        found = semfocus.explain(q, k, v, pattern, **options)
        assert found.reasons[found.choice].startswith("chosen")
        assert sum(reason.startswith("chosen") for reason in found.reasons.values()) == 1
    assert semfocus.explain(q, k, v, TopK(3)).choice == "reference"
    assert "full attention only" in semfocus.explain(q, k, v, TopK(3)).reasons["sdpa"]
    long = torch.empty(1, 1, 8192, 1).expand(1, 1, 8192, 8)
    assert semfocus.explain(long, long, long, TopK(3), dropout_p=0.1).choice == "chunked"
    with pytest.raises(ValueError, match="cannot serve"):
        semfocus.attention(q, k, v, TopK(3), implementation="sdpa")
    state = torch.get_rng_state()
    semfocus.explain(q, k, v, semfocus.RandomK(3), dropout_p=0.5)
    assert torch.equal(state, torch.get_rng_state())  # nothing was drawn


@pytest.mark.parametrize("pattern", [Full(), TopK(3), Banded(3)], ids=lambda p: p.label)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1), (2, 1, 1, 1), (2, 4, 1, 1)])
def test_a_mask_with_one_entry_for_all_keys(pattern, shape):
    mask = torch.arange(max(1, torch.Size(shape).numel())).view(shape) % 2 == 0
    q, k, v = draw(300, 300)
    out = attention(q, k, v, pattern, attn_mask=mask)
    wide = mask.expand(2, 4, 300, 300)
    expect_same(out, attention(q, k, v, pattern, attn_mask=wide, implementation="reference"), [q, k, v])


@pytest.mark.parametrize("pattern", [Full(), TopK(3), Banded(3)], ids=lambda p: p.label)
def test_the_dtype_of_the_query_under_autocast_too(pattern):
    q, k, v = draw(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, v, pattern).dtype == torch.float32
        assert attention(q, k, v, pattern, attn_mask=torch.ones(7, 7)).dtype == torch.float32


@pytest.mark.parametrize("pattern", [Full(), TopK(3), Banded(3)], ids=lambda p: p.label)
def test_shapes_alone(pattern):
    q, k, v = (x.to("meta") for x in draw())
    assert attention(q, k, v, pattern).shape == q.shape
