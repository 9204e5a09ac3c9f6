from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ._square import OnSquare, room_for
from .base import Measurement, Probe
from .dispersion import Dispersion
from .in_degree import InDegree
from .separation import Separation
from .weight_norms import WeightNorms

#: Over all queries (of the in-degree: keys) of all layers: the first quantile of the paper's table, and the worst.
QUANTILES = {"dispersion": ("q75", "q100"), "separation": ("q25",), "in_degree": ("q75", "q100")}
NORMS = ("V", "W", "P", "R")
#: What is measured at each point.
QUANTITIES = (*(f"{name}_{q}" for name, quantiles in QUANTILES.items() for q in quantiles), *NORMS)
DIGITS = 6


@dataclass(frozen=True)
class Surroundings(OnSquare):
    """What the theory's bounds are made of, on a square around the weights.

    At each point Theta + a D_1 + b D_2 of a grid over [-w, w] (as of ``loss_surface``: equal seeds, equal directions)
    quantiles of dispersion, separation and in-degree over the probe's examples, and of the norms ||V||, ||W||, ||P||
    and ||R|| the largest over the blocks. A bound that shall hold around the weights needs the worst of them there.
    """

    points: int = 11  # ten steps, with the model itself in the middle

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points % 2 == 0:
            raise ValueError(f"points is {self.points}; it must be odd, so that the middle is the model itself")

    def _measure(self, probe: Probe) -> Measurement:
        """Plain grids, by name."""
        if probe.tokens is None:
            raise ValueError("surroundings needs tokens: Probe.of_model(model, tokens)")
        found = []
        at_once, batch = room_for(probe, self.points**2)
        at_once = max(1, at_once * batch // len(probe.tokens))  # all examples in one pass, for quantiles over all
        for model, points in self.populations(probe, at_once):
            tokens = probe.tokens.expand(len(model.patterns), -1, -1)  # (m, b, t)
            found += [_at(one) for one in Probe.of_population(model, tokens)[:points]]
        grids = np.reshape(found, (self.points, self.points, -1)).transpose(2, 0, 1)
        return {"offsets": self.offsets.tolist(), **dict(zip(QUANTITIES, grids.tolist(), strict=True))}


def _at(probe: Probe) -> list[float]:
    """The quantities at one point; NaN where its scores are no numbers."""
    measured = {one.name: one.measure(probe)["pooled"] for one in (Dispersion(), Separation(), InDegree())}
    norms = WeightNorms().measure(probe)["pooled"]
    values = [measured[name].get(q, math.nan) for name, quantiles in QUANTILES.items() for q in quantiles]
    return [float(f"{value:.{DIGITS}g}") for value in (*values, *(norms[name] for name in NORMS))]
