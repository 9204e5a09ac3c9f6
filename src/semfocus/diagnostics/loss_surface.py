from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ..model import Transformer
from ._square import OnSquare, room_for
from .base import Measurement, Probe

PERCENTILES = (50, 75, 95, 99)


@dataclass(frozen=True)
class LossSurface(OnSquare):
    """The loss on a square around the weights, and how steep it is.

    Theta + a D_1 + b D_2 for a, b on a grid over [-w, w], where D_1 and D_2 are random directions, each tensor of them
    rescaled to the norm of its tensor in Theta. ``lipschitz``: for radius r the percentiles of |loss difference of
    neighbouring grid points| / grid step inside the square of half-width r.

    Grid points are members of a population, so hundreds of them are evaluated at once.
    """

    points: int = 200
    compiled: bool = False

    def _measure(self, probe: Probe) -> Measurement:
        losses = self.surface(probe)
        offsets = self.offsets
        return {"offsets": offsets.tolist(), "losses": losses.tolist(), "lipschitz": lipschitz(losses, offsets)}

    def surface(self, probe: Probe) -> npt.NDArray[np.float64]:
        """(points, points): mean loss over the probe's examples; the first axis is D_1's."""
        if probe.tokens is None or probe.targets is None:
            raise ValueError("loss_surface needs tokens and targets: Probe.of_model(model, tokens, targets=...)")
        at_once, batch = room_for(probe, self.points**2)
        losses = [
            _losses(model, probe.tokens, probe.targets, batch)[:points]
            for model, points in self.populations(probe, at_once, self.compiled)
        ]
        return torch.cat(losses).view(self.points, self.points).cpu().numpy()


@torch.no_grad()
def _losses(model: Transformer, tokens: Tensor, targets: Tensor, batch: int) -> Tensor:
    """(m,): each member's mean loss over all examples."""
    members = len(model.patterns)
    total = torch.zeros(members, dtype=torch.float64, device=tokens.device)
    for examples, wanted in zip(torch.split(tokens, batch), torch.split(targets, batch), strict=True):
        logits = model(examples)  # (m, b, outputs, classes)
        flat = wanted.expand(members, *wanted.shape)
        loss = F.cross_entropy(logits.flatten(0, 2), flat.flatten(), reduction="none")
        total += loss.view(members, -1).double().mean(1) * len(examples)
    return total / len(tokens)


def lipschitz(losses: npt.NDArray[np.float64], offsets: npt.NDArray[np.float64]) -> list[dict[str, Any]]:
    """Percentiles of the slope between neighbours, for squares of half-width 0.1 to 1.0 times the whole.

    >>> x = np.linspace(-1, 1, 21)
    >>> lipschitz(x[:, None] + 0 * x, x)[-1]  # slope 1 along one axis, 0 along the other
    {'radius': 1.0, 'p50': 0.5, 'p75': 1.0, 'p95': 1.0, 'p99': 1.0}
    """
    step = float(offsets[1] - offsets[0])
    found = []
    for share in np.linspace(0.1, 1.0, 10):
        radius = float(share * offsets[-1])
        inside = np.abs(offsets) <= radius + 1e-9
        square = losses[np.ix_(inside, inside)]
        values = _percentiles(square, step)
        names = [f"p{percentile}" for percentile in PERCENTILES]
        found.append(
            {"radius": round(radius, 10), **{n: round(float(v), 12) for n, v in zip(names, values, strict=True)}}
        )
    return found


def _percentiles(losses: npt.NDArray[np.float64], step: float) -> npt.NDArray[np.float64]:
    """Of the slopes between neighbours; NaN where there are none. Where the loss is not finite it is steepest."""
    with np.errstate(invalid="ignore"):  # differences of infinities, and what percentiles interpolate between them
        slopes = np.concatenate([np.abs(np.diff(losses, axis=axis)).ravel() for axis in (0, 1)]) / step
        slopes[~np.isfinite(slopes)] = np.inf
        if not slopes.size:
            return np.full(len(PERCENTILES), np.nan)
        found: npt.NDArray[np.float64] = np.percentile(slopes, PERCENTILES)
    return np.where(np.isnan(found), np.inf, found)
