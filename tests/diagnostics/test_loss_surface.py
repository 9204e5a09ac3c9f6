"""The loss around trained weights, and its slopes."""

import math

import numpy as np
import pytest
import torch

from semfocus import TopK, Transformer, diagnostics
from semfocus.diagnostics import Probe
from semfocus.diagnostics._square import direction
from semfocus.diagnostics.loss_surface import lipschitz


def test_loss_surface(model, tokens):
    targets = tokens[:, :1]
    probe = Probe.of_model(model, tokens, member=1, targets=targets)
    found = diagnostics.get("loss_surface", points=5, half_width=0.5).measure(probe)
    losses = np.array(found["losses"])
    assert losses.shape == (5, 5)
    model.eval()
    centre = torch.nn.functional.cross_entropy(model(tokens)[1].flatten(0, 1), targets.flatten()).item()
    model.train()
    assert losses[2, 2] == pytest.approx(centre, rel=1e-5)  # the middle of the grid is the model itself
    assert [row["radius"] for row in found["lipschitz"]] == pytest.approx([0.05 * i for i in range(1, 11)])
    # One grid point by hand, as a model of its own.
    diagnostic = diagnostics.get("loss_surface", points=5, half_width=0.5)
    centre_weights = {name: p.detach()[1] for name, p in model.named_parameters()}
    one, two = (direction(centre_weights, 0, number) for number in (1, 2))
    alone = Transformer([model.configs[1]], [TopK(3)], seeds=[1]).eval()
    with torch.no_grad():
        for name, p in alone.named_parameters():
            p.copy_(centre_weights[name] + diagnostic.offsets[4] * one[name] + diagnostic.offsets[1] * two[name])
        by_hand = torch.nn.functional.cross_entropy(alone(tokens)[0].flatten(0, 1), targets.flatten()).item()
    assert losses[4, 1] == pytest.approx(by_hand, rel=1e-5)
    for name, p in model.named_parameters():
        assert one[name].norm() == pytest.approx(p[1].norm().item(), rel=1e-4)


def test_where_the_loss_is_not_finite_it_is_steepest():
    offsets = np.linspace(-1, 1, 21)
    losses = offsets[:, None] + offsets  # slope 1 everywhere
    smooth = lipschitz(losses, offsets)
    losses[0] = np.inf  # far from the weights
    found = lipschitz(losses, offsets)
    assert found[-1]["p99"] == math.inf
    assert found[-1]["p50"] == smooth[-1]["p50"]
    assert found[0] == smooth[0]
