"""A square around a model's weights, its points evaluated many at a time as members of a population."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..model import Transformer
from ..model.compiled import compile_parts
from .base import Diagnostic, Probe

#: Elements of the largest tensor of one forward pass.
ELEMENTS = {"cpu": 2**22, "cuda": 2**28}


@dataclass(frozen=True)
class OnSquare(Diagnostic):
    """Theta + a D_1 + b D_2 for a, b on a grid over [-w, w].

    D_1 and D_2 are random directions, each tensor of them rescaled to the norm of its tensor in Theta. Equal seeds
    give equal directions, whatever is measured.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"model"})

    points: int
    half_width: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.points < 2:
            raise ValueError(f"points is {self.points}; a grid needs at least 2 to a side")
        if not 0 < self.half_width < np.inf:
            raise ValueError(f"half_width is {self.half_width}; it must be a finite number above 0")

    @property
    def offsets(self) -> npt.NDArray[np.float64]:
        return np.linspace(-self.half_width, self.half_width, self.points)

    def populations(self, probe: Probe, together: int, compiled: bool = False) -> Iterator[tuple[Transformer, int]]:
        """The points of the grid, along D_2 first: a population with the weights of ``together`` of them at a time.

        Beside it how many of its members are points; the last ones may fill it up. It is one population throughout,
        so that one compiled shape serves all points: use it before the next is asked for.
        """
        assert probe.model is not None
        centre = {name: p.detach()[probe.member] for name, p in probe.model.named_parameters()}
        directions = [direction(centre, self.seed, number) for number in (1, 2)]
        offsets = torch.as_tensor(self.offsets, dtype=torch.float32, device=probe.model.embedding.device)
        model = _copies(probe.model, probe.member, together)
        if compiled:
            compile_parts(model)
        for part in torch.split(torch.cartesian_prod(offsets, offsets), together):  # (points, 2)
            filled = torch.cat([part, part[-1:].expand(together - len(part), -1)])
            _place(model, centre, directions, filled)
            yield model, len(part)


def room_for(probe: Probe, points: int) -> tuple[int, int]:
    """How many points, and how many of the probe's examples, memory has room for in one forward pass."""
    model, tokens = probe.model, probe.tokens
    assert model is not None
    assert tokens is not None
    length = tokens.shape[1] + len(model.appended)
    per_example = length * max(model.config.width, model.config.mlp_width, model.config.heads * length)
    budget = ELEMENTS["cuda" if tokens.device.type == "cuda" else "cpu"] // per_example
    batch = min(len(tokens), max(1, budget // 16))
    return max(1, min(points, budget // batch)), batch


def direction(centre: dict[str, Tensor], seed: int, number: int) -> dict[str, Tensor]:
    """A random direction; each of its tensors has the norm of the tensor it belongs to."""
    generator = torch.Generator().manual_seed(seed * 2 + number)
    drawn = {name: torch.randn(tensor.shape, generator=generator).to(tensor) for name, tensor in centre.items()}
    return {name: d * (centre[name].norm() / d.norm().clamp(min=1e-30)) for name, d in drawn.items()}


def _copies(model: Transformer, member: int, together: int) -> Transformer:
    """A population of copies of one member, without its weights."""
    config, pattern, seed = model.configs[member], model.patterns[member], int(model.seeds[member])
    weights = model.embedding
    made = Transformer(
        [config] * together, [pattern] * together, [seed] * together, dtype=weights.dtype, device=weights.device
    )
    return made.eval()


@torch.no_grad()
def _place(
    model: Transformer,
    centre: dict[str, Tensor],
    directions: list[dict[str, Tensor]],
    places: Tensor,  # (m, 2)
) -> None:
    for name, parameter in model.named_parameters():
        a, b = (places[:, i].to(parameter).view(-1, *[1] * (parameter.ndim - 1)) for i in (0, 1))
        parameter.copy_(centre[name] + a * directions[0][name] + b * directions[1][name])
