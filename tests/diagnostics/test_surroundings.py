"""What the theory's bounds are made of, around trained weights."""

import numpy as np
import pytest
import torch

from semfocus import TopK, Transformer, diagnostics
from semfocus.diagnostics import Probe
from semfocus.diagnostics import _square as square
from semfocus.diagnostics.surroundings import QUANTITIES


def by_hand(probe):
    pooled = {
        name: diagnostics.get(name).measure(probe)["pooled"]
        for name in ("dispersion", "separation", "in_degree", "weight_norms")
    }
    named = {f"{name}_{q}": value for name, values in pooled.items() for q, value in values.items()}
    return [named.get(name, pooled["weight_norms"].get(name)) for name in QUANTITIES]


@pytest.mark.parametrize("elements", [2**22, 1], ids=["all points at once", "one by one"])
def test_each_point_is_a_model_of_its_own(model, tokens, elements, monkeypatch):
    monkeypatch.setitem(square.ELEMENTS, "cpu", elements)
    one = diagnostics.get("surroundings", points=3, half_width=0.5)
    found = one.measure(Probe.of_model(model, tokens, member=1))
    assert found["offsets"] == [-0.5, 0.0, 0.5]
    grids = np.array([found[name] for name in QUANTITIES])  # (quantities, 3, 3)
    assert grids[:, 1, 1] == pytest.approx(by_hand(Probe.of_model(model, tokens, member=1)), rel=1e-4)
    centre = {name: p.detach()[1] for name, p in model.named_parameters()}
    first, second = (square.direction(centre, 0, number) for number in (1, 2))
    alone = Transformer([model.configs[1]], [TopK(3)], seeds=[1])
    with torch.no_grad():
        for name, p in alone.named_parameters():
            p.copy_(centre[name] + 0.5 * first[name] - 0.5 * second[name])
    assert grids[:, 2, 0] == pytest.approx(by_hand(Probe.of_model(alone, tokens)), rel=1e-4)


def test_it_looks_along_the_directions_of_the_loss_surface(model, tokens):
    probe = Probe.of_model(model, tokens, targets=tokens[:, :1])
    whole, few = (diagnostics.get("loss_surface", points=points).measure(probe)["losses"] for points in (5, 3))
    assert np.array(whole)[::2, ::2] == pytest.approx(np.array(few), rel=1e-5)
    made = [diagnostics.get(name, points=3, seed=4) for name in ("loss_surface", "surroundings")]
    weights = [[p.clone() for p in next(one.populations(probe, 9))[0].parameters()] for one in made]
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_points_where_scores_are_no_numbers_are_nan(model, tokens):
    far = diagnostics.get("surroundings", points=3, half_width=3e38)  # weights beyond float32
    found = np.array(far.measure(Probe.of_model(model, tokens, member=1))["dispersion_q75"])
    assert np.isfinite(found[1, 1])
    assert np.isnan(found[0, 0])


def test_the_middle_must_be_the_model():
    with pytest.raises(ValueError, match=r"points is 10; it must be odd"):
        diagnostics.get("surroundings", points=10)


def test_all_examples_at_once_take_no_more_room(model, tokens, monkeypatch):
    """Where memory has room for a part of the examples, fewer points are looked at together."""
    monkeypatch.setitem(square.ELEMENTS, "cpu", 64 * tokens.shape[1] * 16)
    probe = Probe.of_model(model, tokens)
    at_once, batch = square.room_for(probe, 9)
    assert batch < len(tokens)
    sizes = []
    populations = square.OnSquare.populations

    def seen(self, probe, together, compiled=False):
        sizes.append(together)
        return populations(self, probe, together, compiled)

    monkeypatch.setattr(square.OnSquare, "populations", seen)
    diagnostics.get("surroundings", points=3).measure(probe)
    assert sizes == [max(1, at_once * batch // len(tokens))]
    assert sizes[0] < at_once
