from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..randomness import absorb, key_of
from ._budgeted import Budgeted
from .base import Pattern, View, query_places, require_int


@dataclass(frozen=True)
class FixedRandom(Budgeted):
    """k keys per query drawn once, the same for every input: a control for top-k.

    The draw depends on ``seed``, and inside a model also on the run's seed and the layer; each head has its own.
    """

    input_dependent = False

    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self, "seed", 0)

    @classmethod
    def examples(cls) -> list[Pattern]:
        return [cls(1), cls(3), cls(3, seed=1)]

    def priority(self, view: View) -> Tensor:
        fixed = view.noise.fixed ^ key_of(self.seed, view.q.device)
        heads = torch.arange(view.lead[-1], device=view.q.device)
        # One axis of its own for each of: members (if any), heads, queries, keys; size 1 for the batch.
        lead = absorb(fixed.reshape(*fixed.shape, *[1] * (len(view.lead) - fixed.ndim)), heads)
        key = view.visible.cumsum(-1) - 1  # the rank of each
        return absorb(absorb(lead[..., None, None], query_places(view.visible, view.positions)), key)
