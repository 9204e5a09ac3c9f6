"""The fused kernel beside float64, with bounds that follow from the arithmetic it uses.

Selection is judged by itself: the bits that the kernel left say which keys each query kept; they must be as many as the
budget allows, and no key left out may beat a kept one by more than the scores' error. Output and gradients are then
compared with float64 attention over exactly those keys, entry by entry, within a first-order error bound.
"""

import torch

from semfocus import TopK, reference
from semfocus.kernels import exact_products, launch, long_rows, short_rows  # noqa: F401 (registers its operators)
from semfocus.patterns._windows import Window
from semfocus.randomness import absorb, dropout_factor, spread

SINGLE = 2.0**-24  # unit roundoff
HALF = 2.0**-11
BFLOAT = 2.0**-8


def run(problem, d_out):
    """Output and gradients by the kernel, and the kept keys as bool (..., t, s)."""
    tensors = [x.detach().clone().requires_grad_() for x in (problem.q, problem.k, problem.v)]
    q, k, v = (short_rows.five_axes(x) for x in tensors)
    options = short_rows.options_of(problem, tuple(problem.q.shape[:-2]))
    out, _, words, *_ = torch.ops.semfocus.attend(q, k, v, *options)
    out = out.transpose(2, 3).reshape(problem.q.shape)
    gradients = torch.autograd.grad(out, tensors, d_out)
    kept = problem.visible().expand(*problem.q.shape[:-1], problem.k.shape[-2])
    if options[5]:
        columns = torch.arange(kept.shape[-1], device=kept.device)
        kept = words.transpose(-2, -1)[..., : q.shape[-2], columns // launch.BITS] >> (columns % launch.BITS) & 1
        kept = kept.bool().reshape(*problem.q.shape[:-1], -1)
    return out, gradients, kept


def run_long(problem, d_out):
    """The same by the kernels for long rows."""
    tensors = [x.detach().clone().requires_grad_() for x in (problem.q, problem.k, problem.v)]
    q, k, v = (short_rows.five_axes(x) for x in tensors)
    mask, _, scales, _, _, *numbers, _, _, exact = short_rows.options_of(problem, tuple(problem.q.shape[:-2]))
    out, _, indices, weights = torch.ops.semfocus.attend_long(q, k, v, mask, scales, *numbers, exact)
    out = out.transpose(2, 3).reshape(problem.q.shape)
    gradients = torch.autograd.grad(out, tensors, d_out)
    kept = torch.zeros(*indices.shape[:-1], problem.k.shape[-2] + 1, dtype=torch.int32, device=q.device)
    kept.scatter_add_(-1, (indices % kept.shape[-1]).long(), torch.ones_like(indices))  # -1 is the last column
    assert (kept[..., :-1] <= 1).all(), "a key was kept twice"
    assert ((indices >= 0) | (weights == 0)).all()
    return out, gradients, kept[..., :-1].bool().reshape(*problem.q.shape[:-1], -1)


def check(problem, d_out, run=run, halved=None):
    """Asserts everything; returns the kept keys. ``halved``: are float32 inputs rounded to halves?"""
    out, gradients, kept = run(problem, d_out)
    p = problem
    groups = p.q.shape[-3] // p.k.shape[-3]
    q, v, do = p.q.double(), p.v.double().repeat_interleave(groups, -3), d_out.double()
    k = p.k.double().repeat_interleave(groups, -3)
    t, s, d = q.shape[-2], k.shape[-2], q.shape[-1]
    scale = p.scale.double() if isinstance(p.scale, torch.Tensor) else p.scale
    size = abs(scale)
    halved = (p.q.dtype == torch.float32 and not exact_products(p)) if halved is None else halved
    # Inputs are rounded where they become halves; weights and their gradients are rounded before a product.
    inputs = HALF if halved else 0.0
    inner = {torch.float32: inputs, torch.float16: HALF, torch.bfloat16: BFLOAT}[p.q.dtype]
    stored = {torch.float32: 0.0, torch.float16: HALF, torch.bfloat16: BFLOAT}[p.q.dtype]

    # Scores and the choice.
    scores = scale * q @ k.mT
    d_scores = size * (q.abs() @ k.abs().mT) * (2 * inputs + (d + 3) * SINGLE)
    visible = p.visible().expand(scores.shape)
    if isinstance(p.pattern, Window):  # its choice does not rest on scores
        visible = reference.kept_keys(p, q, k, scores).expand(scores.shape)
        kept = visible
    assert not (kept & ~visible).any()
    if isinstance(p.pattern, TopK):
        assert torch.equal(kept.sum(-1), visible.sum(-1).clamp(max=p.pattern.k))
        worst = (scores + d_scores).masked_fill(~kept, torch.inf).amin(-1)
        beaten = (scores - d_scores).masked_fill(kept | ~visible, -torch.inf).amax(-1)
        assert (worst >= beaten).all()

    # Float64 over the kept keys, and the bounds.
    empty = ~kept.any(-1, keepdim=True)
    w = scores.masked_fill(~kept, -torch.inf).masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    factor = torch.ones_like(w)
    if p.dropout_p:
        rows = absorb(spread(p.noise.fresh, tuple(q.shape[:-2]))[..., None], p.positions)
        factor = dropout_factor(rows, s, p.dropout_p, torch.float64)
    e_w = 2.2 * (d_scores * kept).amax(-1, keepdim=True) + (s + 16) * SINGLE  # relative
    expected = (w * factor) @ v
    e_out = ((w * factor) @ v.abs()) * (e_w + inputs + inner + (s + 4) * SINGLE)
    close(out, expected, e_out, stored, "out")
    d_w, delta = factor * (do @ v.mT), (do * expected).sum(-1, keepdim=True)
    a_w = factor * (do.abs() @ v.abs().mT)
    ds = w * (d_w - delta)
    e_delta = (do.abs() * (e_out + expected.abs() * (stored + inputs + (d + 2) * SINGLE))).sum(-1, keepdim=True)
    e_ds = w * (a_w * (2 * inputs + (d + 4) * SINGLE) + e_delta)
    e_ds = e_ds + w * (a_w + delta.abs()) * (e_w + inner + 4 * SINGLE)
    e_dv = (w * factor * (e_w + inner + inputs + (t + 4) * SINGLE)).mT @ do.abs()
    e_dq = size * (e_ds @ k.abs() + ds.abs() @ k.abs() * (inputs + (s + 4) * SINGLE))
    e_dk = size * (e_ds.mT @ q.abs() + ds.abs().mT @ q.abs() * (inputs + (t + 4) * SINGLE))
    wanted = (scale * ds @ k, _grouped(scale * ds.mT @ q, groups), _grouped((w * factor).mT @ do, groups))
    bounds = (e_dq, _grouped(e_dk, groups), _grouped(e_dv, groups))
    for name, got, want, bound in zip(("dq", "dk", "dv"), gradients, wanted, bounds, strict=True):
        close(got, want, bound, stored, name)
    return kept


def _grouped(x, groups):
    """Sums over the query heads that share a key head."""
    return x.unflatten(-3, (-1, groups)).sum(-3)


def close(got, want, bound, stored, name):
    assert torch.isfinite(got).all(), name
    # Below 2^-14 the numbers of float16 are 2^-24 apart.
    least = 2.0**-25 if got.dtype == torch.float16 else 1e-30
    excess = (got.double() - want).abs() - bound - stored * want.abs() - least
    assert (excess <= 0).all(), f"{name}: error {(got.double() - want).abs().max():.2e}, excess {excess.max():.2e}"


def poison(monkeypatch):
    """What a kernel does not write is NaN, or -1."""

    def empty(like, *size, **options):
        size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        made = torch.Tensor.new_zeros(like, size, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made.fill_(-1)

    monkeypatch.setattr(torch.Tensor, "new_empty", empty)
    monkeypatch.setattr(torch, "empty_like", lambda x, memory_format=None, **o: empty(x, x.shape, **o))
