"""A training step as a CUDA graph: hundreds of launches become one."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], None]


class Captured:
    """Replays ``step(ids, targets)`` on other tokens of the same shape.

    A few steps are taken before it is captured, and so leave their traces in whatever the step changes.
    """

    def __init__(self, step: Step, ids: Tensor, targets: Tensor) -> None:
        self.ids, self.targets = ids.clone(), targets.clone()
        aside = torch.cuda.Stream(ids.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(ids.device))
        with torch.cuda.stream(aside), warnings.catch_warnings():
            # An optimiser that can be captured warns of every step that is not.
            warnings.filterwarnings("ignore", message=".*capturable.*")
            for _ in range(3):
                step(self.ids, self.targets)
        torch.cuda.current_stream(ids.device).wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step(self.ids, self.targets)

    def __call__(self, ids: Tensor, targets: Tensor) -> None:
        self.ids.copy_(ids)
        self.targets.copy_(targets)
        self.graph.replay()
