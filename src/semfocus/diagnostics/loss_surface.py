from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ..model import Transformer
from ..model.compiled import compile_parts
from .base import Diagnostic, Measurement, Probe

PERCENTILES = (50, 75, 95, 99)
#: Elements of the largest tensor of one forward pass.
ELEMENTS = {"cpu": 2**22, "cuda": 2**28}


@dataclass(frozen=True)
class LossSurface(Diagnostic):
    """The loss on a square around the weights, and how steep it is.

    Theta + a D_1 + b D_2 for a, b on a grid over [-w, w], where D_1 and D_2 are random directions, each tensor of them
    rescaled to the norm of its tensor in Theta. ``lipschitz``: for radius r the percentiles of |loss difference of
    neighbouring grid points| / grid step inside the square of half-width r.

    Grid points are members of a population, so hundreds of them are evaluated at once.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"model"})

    points: int = 200
    half_width: float = 1.0
    seed: int = 0
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.points < 2:
            raise ValueError(f"points is {self.points}; a grid needs at least 2 to a side")
        if not 0 < self.half_width < np.inf:
            raise ValueError(f"half_width is {self.half_width}; it must be a finite number above 0")

    def _measure(self, probe: Probe) -> Measurement:
        losses = self.surface(probe)
        offsets = self.offsets
        return {"offsets": offsets.tolist(), "losses": losses.tolist(), "lipschitz": lipschitz(losses, offsets)}

    @property
    def offsets(self) -> npt.NDArray[np.float64]:
        return np.linspace(-self.half_width, self.half_width, self.points)

    @torch.no_grad()
    def surface(self, probe: Probe) -> npt.NDArray[np.float64]:
        """(points, points): mean loss over the probe's examples; the first axis is D_1's."""
        if probe.model is None or probe.tokens is None or probe.targets is None:
            raise ValueError("loss_surface needs tokens and targets: Probe.of_model(model, tokens, targets=...)")
        centre = {name: p.detach()[probe.member] for name, p in probe.model.named_parameters()}
        directions = [_direction(centre, self.seed, number) for number in (1, 2)]
        offsets = torch.as_tensor(self.offsets, dtype=torch.float32, device=probe.tokens.device)
        grid = torch.cartesian_prod(offsets, offsets)  # (points^2, 2)
        together, batch = _sizes(probe, len(grid))
        model = _population(probe.model, probe.member, together)
        if self.compiled:
            compile_parts(model)
        losses = [
            _losses(model, centre, directions, part, probe.tokens, probe.targets, batch)
            for part in _padded(grid, together)
        ]
        return torch.cat(losses)[: len(grid)].view(self.points, self.points).double().cpu().numpy()


def _direction(centre: dict[str, Tensor], seed: int, number: int) -> dict[str, Tensor]:
    """A random direction; each of its tensors has the norm of the tensor it belongs to."""
    generator = torch.Generator().manual_seed(seed * 2 + number)
    drawn = {name: torch.randn(tensor.shape, generator=generator).to(tensor) for name, tensor in centre.items()}
    return {name: d * (centre[name].norm() / d.norm().clamp(min=1e-30)) for name, d in drawn.items()}


def _sizes(probe: Probe, points: int) -> tuple[int, int]:
    """Grid points at once, and examples at once."""
    model, tokens = probe.model, probe.tokens
    assert model is not None
    assert tokens is not None
    length = tokens.shape[1] + len(model.appended)
    per_example = length * max(model.config.width, model.config.mlp_width, model.config.heads * length)
    budget = ELEMENTS["cuda" if tokens.device.type == "cuda" else "cpu"] // per_example
    batch = min(len(tokens), max(1, budget // 16))
    return max(1, min(points, budget // batch)), batch


def _population(model: Transformer, member: int, together: int) -> Transformer:
    """A population of copies of one member, without its weights."""
    config, pattern, seed = model.configs[member], model.patterns[member], int(model.seeds[member])
    weights = model.embedding
    made = Transformer(
        [config] * together, [pattern] * together, [seed] * together, dtype=weights.dtype, device=weights.device
    )
    return made.eval()


def _padded(grid: Tensor, together: int) -> Iterator[Tensor]:
    """Pieces of equal size, the last filled up, so that one compiled shape serves them all."""
    for part in torch.split(grid, together):
        missing = together - len(part)
        yield torch.cat([part, part[-1:].expand(missing, -1)]) if missing else part


def _losses(
    model: Transformer,
    centre: dict[str, Tensor],
    directions: list[dict[str, Tensor]],
    places: Tensor,  # (m, 2)
    tokens: Tensor,
    targets: Tensor,
    batch: int,
) -> Tensor:
    for name, parameter in model.named_parameters():
        a, b = (places[:, i].to(parameter).view(-1, *[1] * (parameter.ndim - 1)) for i in (0, 1))
        parameter.copy_(centre[name] + a * directions[0][name] + b * directions[1][name])
    total = torch.zeros(len(places), dtype=torch.float64, device=tokens.device)
    for examples, wanted in zip(torch.split(tokens, batch), torch.split(targets, batch), strict=True):
        logits = model(examples)  # (m, b, outputs, classes)
        flat = wanted.expand(len(places), *wanted.shape)
        loss = F.cross_entropy(logits.flatten(0, 2), flat.flatten(), reduction="none")
        total += loss.view(len(places), -1).double().mean(1) * len(examples)
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
