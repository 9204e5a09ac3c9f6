"""One update for a whole population: all weights of all members in one matrix, one row per member.

Every number that differs between members (learning rate, clipping, SGD or Adam) is a column, so an update is a handful
of operations whatever the number of members and tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .protocol import OptimiserConfig

#: Each tensor starts at a multiple of this many numbers, so that matrix products see aligned memory.
ALIGNMENT = 32
BETA1, BETA2, ADAM_EPS = 0.9, 0.999, 1e-8
#: Added to the norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does.
CLIP_EPS = 1e-6


class FlatWeights:
    """The parameters of a population as views into one matrix (m, p)."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        members = self.parameters[0].shape[0]
        self.slices, total = [], 0
        for parameter in self.parameters:
            size = parameter[0].numel()
            self.slices.append(slice(total, total + size))
            total += -(-size // ALIGNMENT) * ALIGNMENT
        self.matrix = torch.zeros(members, total, dtype=self.parameters[0].dtype, device=self.parameters[0].device)
        ends = [*(part.start for part in self.slices[1:]), total]
        gaps = [end - part.stop for part, end in zip(self.slices, ends, strict=True)]
        self.gaps = [self.matrix.new_zeros(members, gap) if gap else None for gap in gaps]
        for parameter, part in zip(self.parameters, self.slices, strict=True):
            view = self.matrix[:, part].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view

    def flatten(self, gradients: Sequence[Tensor]) -> Tensor:
        """Gradients as a matrix (m, p) of the same layout."""
        parts = []
        for gradient, gap in zip(gradients, self.gaps, strict=True):
            parts.append(gradient.flatten(1))
            if gap is not None:
                parts.append(gap)
        return torch.cat(parts, dim=1)


def clipped(flat: Tensor, clip: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (m, p) of clipped norm, 0 for members that must not move; the norms (m, 1); who moves (m, 1)."""
    norm: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    moving = alive[:, None] & norm.isfinite()
    flat = flat * (clip / (norm + CLIP_EPS)).clamp(max=1.0)
    return torch.where(moving, flat, 0.0), norm, moving  # not a product with 0: that would keep NaN


def descend(weights: Tensor, flat: Tensor, clip: Tensor, rate: Tensor, alive: Tensor) -> Tensor:
    """A step of SGD, in place. Returns the gradients' norms (m,)."""
    flat, norm, _ = clipped(flat, clip, alive)
    weights.sub_(rate * flat)
    return norm[:, 0]


class Optimiser:
    """SGD or Adam, per member, with the global norm of each member's gradient clipped."""

    def __init__(self, configs: Sequence[OptimiserConfig], weights: FlatWeights) -> None:
        self.weights = weights
        like = weights.matrix
        clips = [config.clip or float("inf") for config in configs]
        self.base_rate = torch.tensor([c.learning_rate for c in configs], dtype=torch.float64, device=like.device)
        self.decay = torch.tensor([c.decay for c in configs], dtype=torch.float64, device=like.device)
        self.clip = torch.tensor(clips, dtype=like.dtype, device=like.device)[:, None]
        self.rate = torch.zeros_like(self.clip)  # (m, 1), set at the start of each epoch
        self.is_adam = torch.tensor([c.name == "adam" for c in configs], device=like.device)[:, None]
        self.descend = descend  # a population may put a compiled one here
        self.moments: tuple[Tensor, Tensor] | None = None
        if any(c.name == "adam" for c in configs):
            self.moments = (torch.zeros_like(like), torch.zeros_like(like))

    def start_epoch(self, epoch: int) -> None:
        """Epochs count from 0 here: the first one uses the learning rate as given."""
        self.rate.copy_((self.base_rate * self.decay**epoch).to(self.rate.dtype)[:, None])

    def update(self, gradients: Sequence[Tensor], alive: Tensor, step: Tensor) -> Tensor:
        """One step for members that are alive and whose gradient is finite. Returns its norm, before clipping (m,)."""
        flat = self.weights.flatten(gradients)
        if self.moments is None:
            return self.descend(self.weights.matrix, flat, self.clip, self.rate, alive)
        flat, norm, moving = clipped(flat, self.clip, alive)
        flat = torch.where(self.is_adam & moving, self._adam(flat, step), flat)
        self.weights.matrix.sub_(self.rate * flat)
        return norm[:, 0]

    def _adam(self, flat: Tensor, step: Tensor) -> Tensor:
        assert self.moments is not None
        first, second = self.moments
        first.mul_(BETA1).add_(flat, alpha=1 - BETA1)
        second.mul_(BETA2).addcmul_(flat, flat, value=1 - BETA2)
        count = (step + 1).to(flat.dtype)
        mean, square = first / (1 - torch.pow(BETA1, count)), second / (1 - torch.pow(BETA2, count))
        moved: Tensor = mean / (square.sqrt() + ADAM_EPS)
        return moved

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold."""
        moments = {} if self.moments is None else {"adam_first": self.moments[0], "adam_second": self.moments[1]}
        return {"weights": self.weights.matrix, **moments}
