"""The halves of a block in one kernel each, against the same block in plain PyTorch."""

from itertools import cycle

import pytest
import torch

from semfocus import Full, ModelConfig, TopK, Transformer
from semfocus.kernels import halves
from semfocus.model.block import Settings
from semfocus.randomness import Noise, key_of

#: Rounding of a product's factors to half precision, or to TF32.
HALF = 2.0**-11


def population(
    patterns, *, length, width=16, mlp_width=None, dropout=0.1, scale=1.0, device="cpu", examples=3,
    activations=("relu",), heads=1, **options,
):  # fmt: skip
    configs = [
        ModelConfig(
            vocabulary=2, classes=2, width=width, mlp_width=mlp_width or width, blocks=2, heads=heads, dropout=dropout,
            attention_scale=scale, activation=activation, **{"mask_padding": False, **options},
        )
        for activation, _ in zip(cycle(activations), patterns, strict=False)
    ]  # fmt: skip
    model = Transformer(configs, patterns, seeds=list(range(len(patterns))), device=device).train()
    tokens = torch.randint(0, 3, (len(patterns), examples, length), generator=torch.Generator().manual_seed(0)).to(
        device
    )
    return model, tokens


def without_kernels(patch):
    """Blocks without kernels of their own."""
    for name in ("keeps", "spans", "bends"):
        patch.setattr(halves, name, lambda *_: None)


def both(model, tokens, monkeypatch):
    """(name, plain, fused) of the output and of every gradient."""
    results = []
    for fused in (False, True):
        with monkeypatch.context() as patch:
            if not fused:
                without_kernels(patch)
            out = model(tokens, 3)
            results.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    names = ["output", *(name for name, _ in model.named_parameters())]
    return list(zip(names, *results, strict=True))


def clear(problems):
    """Is the last kept score of every query above the first one left out by more than rounding could make up for?

    Keys that are chosen before the kernel, by the reference's own code, are not in doubt.
    """
    for problem, _, _ in problems:
        if not halves.serve_pattern(problem.pattern, problem.mask is not None):
            continue
        scores = (problem.q.double() @ problem.k.double().mT) * problem.scale
        seen = scores if problem.mask is None else scores.masked_fill(~problem.mask, -torch.inf)
        k = getattr(problem.pattern, "k", scores.shape[-1])
        if k < scores.shape[-1]:
            best = seen.topk(k + 1).values
            gap = (best[..., -2] - best[..., -1])[best[..., -1].isfinite()]
            if (gap < 2 * HALF * scores.abs().max()).any():
                return False
    return True


def check_attention(
    patterns, length, *, width=16, heads=1, dropout=0.1, scale=1.0, masked=False, device="cpu", examples=3
):
    """The first half alone, on a draw in which the choice of keys is not in doubt."""
    sizes = {"length": length, "width": width, "heads": heads}
    model, _ = population(patterns, dropout=dropout, scale=scale, device=device, **sizes)
    block, members = model.blocks[0], len(patterns)
    keys = key_of(torch.arange(members, device=device))
    unfused = Settings.of(model.configs, patterns, True)
    for seed in range(1000):
        generator = torch.Generator().manual_seed(seed)
        h = torch.randn(members, examples, length, width, generator=generator).to(device).requires_grad_()
        visible = None
        if masked:
            visible = (torch.rand(members, examples, 1, 1, length, generator=generator) < 0.7).to(device)
        if clear(block.problems(h, visible, model.scales, Noise(keys, keys), 1e-5, unfused)):
            break
    else:
        raise AssertionError("no draw leaves the choice of keys beyond doubt")
    settings = unfused.for_inputs(h, width, masked)
    assert settings.fused_attention
    weights = [block.qkv.weight, block.qkv.bias, block.output.weight, block.output.bias]
    change = torch.randn(h.shape, generator=generator).to(device)
    results = []
    for each in (unfused, settings):
        out = block._attention_half(h, visible, model.scales, Noise(keys, keys), 1e-5, each)
        results.append([out, *torch.autograd.grad(out, [h, *weights], change)])
    for name, a, b in zip(("out", "h", "w", "b", "w_out", "b_out"), *results, strict=True):
        assert b.isfinite().all(), name
        # A handful of products in a row, each rounding its factors once.
        assert (a - b).norm() <= 8 * HALF * a.norm(), name


def check_gathered(patterns, length, *, width=16, heads=1, dropout=0.1, device="cpu", examples=2):
    """The first half's gradients where top-k gathers in the backward pass, against tiles: the choice is the same."""
    from semfocus.kernels import launch

    model, _ = population(patterns, length=length, width=width, heads=heads, dropout=dropout, device=device)
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(len(patterns), examples, length, width, generator=generator).to(device).requires_grad_()
    change = torch.randn(h.shape, generator=generator) * torch.logspace(0, 4, length)[:, None]  # largest at the end
    change = change.to(device)
    block, keys = model.blocks[0], key_of(torch.arange(len(patterns), device=device))
    inputs = [h, block.qkv.weight, block.qkv.bias, block.output.weight, block.output.bias]
    settings = Settings.of(model.configs, patterns, True).for_inputs(h, width, False)
    assert settings.spans is not None
    results, gathered, gather = [], [], launch._few_backward
    for most in (0, 8):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "GATHERED_UP_TO", most)
            patch.setattr(launch, "_few_backward", lambda *a, most=most: [gathered.append(most), gather(*a)])
            out = block._attention_half(h, None, model.scales, Noise(keys, keys), 1e-5, settings)
            results.append(torch.autograd.grad(out, inputs, change))
    assert gathered == [8] * sum(isinstance(pattern, TopK) for pattern in patterns)
    for name, *both in zip(("h", "w", "b", "w_out", "b_out"), *results, strict=True):
        for pattern, one, other in zip(patterns, *both, strict=True):
            assert (one - other).norm() <= 1e-4 * one.norm(), (name, pattern)


def check_mlp(activations, tokens, *, width=16, hidden=24, dropout=0.1, device="cpu"):
    """The second half alone, where no z is so near to 0 that rounding could turn ReLU's slope."""
    patterns = [Full() for _ in activations]
    sizes = {"length": tokens, "width": width, "mlp_width": hidden}
    model, _ = population(patterns, activations=activations, dropout=dropout, device=device, **sizes)
    block, keys = model.blocks[0], key_of(torch.arange(len(activations), device=device))
    weights = [block.mlp_in.weight, block.mlp_in.bias, block.mlp_out.weight, block.mlp_out.bias]
    with torch.no_grad():
        weights[1].add_(torch.where(torch.rand(weights[1].shape, device=device) < 0.5, 4.0, -4.0))
    generator = torch.Generator().manual_seed(0)
    h, change = (torch.randn(len(activations), 2, tokens, width, generator=generator).to(device) for _ in range(2))
    h.requires_grad_()
    plain = Settings.of(model.configs, patterns, True)
    fused = plain.for_inputs(h, hidden, False)
    assert fused.bends is not None
    results = []
    for settings in (plain, fused):
        out = block._mlp_half(h, Noise(keys, keys), settings)
        results.append([out, *torch.autograd.grad(out, [h, *weights], change)])
    for name, a, b in zip(("out", "h", "w_in", "b_in", "w_out", "b_out"), *results, strict=True):
        for activation, one, other in zip(activations, a, b, strict=True):
            assert (one - other).norm() <= 4 * HALF * one.norm(), (name, activation)
            assert not torch.equal(one, other), (name, activation)
