"""How far two runs of one shape are apart, snapshot by snapshot: their weights, and their losses on equal examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..model import Transformer
from ..training.data import make_split
from ..training.population import cross_entropy
from .results import Run


def compared(first: Run, second: Run, examples: int, device: str = "cpu") -> dict[str, dict[str, float]]:
    """Per epoch of which both have a snapshot: distances of the weights and of the losses on held-out examples.

    The examples are the first ones of the first run; the two are meant to share them.
    """
    losses = _losses(first, examples, device)
    found = {}
    for epoch in sorted(first.directory.snapshots().keys() & second.directory.snapshots().keys()):
        a, b = (run.directory.weights_after(epoch) for run in (first, second))
        apart = (losses(a) - losses(b)).abs()
        found[str(epoch)] = {**distance(a, b), "loss_mean": float(apart.mean()), "loss_max": float(apart.max())}
    return found


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, float]:
    """The Euclidean distance of all weights together, and relative to the norm of the first.

    >>> one = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    >>> distance(one, {"w": torch.tensor([3.0, 1.0]), "b": torch.tensor([4.0])})
    {'distance': 1.0, 'norm': 5.0, 'relative': 0.2}
    """
    if a.keys() != b.keys():
        raise ValueError(f"weights {sorted(a.keys() ^ b.keys())} are in one of the two models only")
    apart = math.sqrt(sum(float((a[name].double() - b[name].double()).square().sum()) for name in a))
    norm = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in a.values()))
    return {"distance": apart, "norm": norm, "relative": apart / norm}


def _losses(run: Run, examples: int, device: str) -> Callable[[dict[str, Tensor]], Tensor]:
    """A function from weights to the losses (b,) on the run's first held-out examples."""
    config = run.directory.config()
    model = Transformer(config.model_config(), config.pattern, config.seed, device=device).eval()
    made = make_split(config, "heldout")
    tokens, targets = (part[None, :examples].long().to(device) for part in made[:2])  # (1, b, t), (1, b, outputs)

    def losses(weights: dict[str, Tensor]) -> Tensor:
        model.load_state_dict(weights)
        with torch.no_grad():
            return cross_entropy(model(tokens), targets)[0].mean(-1)

    return losses
