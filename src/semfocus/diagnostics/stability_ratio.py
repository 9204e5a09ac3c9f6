from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..theory import is_vacuous, xi_h, xi_r
from .base import Diagnostic, Measurement, Probe, Rows, summarise
from .dispersion import Dispersion
from .separation import Separation


@dataclass(frozen=True)
class StabilityRatio(Diagnostic):
    """Movement of the attention weights over movement of the scores, beside the theory's bound for it.

    r_i = ||a_i - a'_i||_2 / ||z_i - z'_i||_2 under Gaussian noise on the embedded tokens, over the visible keys. The
    bound is xi_r = e^delta / n for a pattern that does not look at scores (and for full attention) and xi_h for one
    that does, with the larger dispersion and the smaller separation of the two (of patterns that do not keep the best
    keys that is 0 at most, and their bound infinite). ``exceeded``: the share of queries whose ratio is larger than
    their bound. ``vacuous``: the share whose bound says no more than is true of every softmax
    (``semfocus.theory.is_vacuous``).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"model"})

    noise: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.noise > 0:
            raise ValueError(f"noise is {self.noise}; it must be a number above 0")

    def _measure(self, probe: Probe) -> Measurement:
        noisy = probe.noisy(self.noise, self.seed)
        layers = []
        for layer in probe.layers:
            pairs = zip(map(_precise, probe.rows(layer)), map(_precise, noisy.rows(layer)), strict=True)
            layers.append(np.concatenate([_compared(before, after) for before, after in pairs], axis=1))  # (3, queries)
        pooled = np.concatenate(layers, axis=1)
        return {"pooled": _described(pooled), "layers": [_described(layer) for layer in layers]}


def _precise(rows: Rows) -> Rows:
    """The same scores and choice in float64: where little moves, the rounding of float32 weights moves as much."""
    precise = copy.copy(rows)
    precise.scores = rows.scores.double()
    return precise


def _compared(before: Rows, after: Rows) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    moved = (before.weights - after.weights).norm(dim=-1)
    step = (before.scores - after.scores).masked_fill(~before.visible, 0.0).norm(dim=-1)
    ratio = torch.where(step > 0, moved / step, torch.nan)
    delta = torch.maximum(Dispersion().values(before), Dispersion().values(after)).clamp(min=0).cpu().numpy()
    kept = before.kept.sum(-1).clamp(min=1).cpu().numpy()
    if before.pattern.input_dependent:
        smaller = torch.minimum(Separation().values(before), Separation().values(after)).clamp(min=0)
        separation = smaller.cpu().numpy()
        bound = xi_h(delta, kept, separation)
        vacuous = is_vacuous(bound, separation)
    else:
        bound = xi_r(delta, kept)
        vacuous = is_vacuous(bound)
    ratio = ratio.masked_fill(~before.counted, torch.nan)
    return np.stack([ratio.cpu().numpy().ravel(), bound.ravel(), vacuous.ravel()])


def _described(compared: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> dict[str, object]:
    ratio, bound, vacuous = compared[:, ~np.isnan(compared[0])]
    if not ratio.size:
        return {"ratio": summarise(ratio), "bound": summarise(bound), "exceeded": 0.0, "vacuous": 0.0}
    tolerance = 1e-6
    return {
        "ratio": summarise(ratio),
        "bound": summarise(bound),
        "exceeded": float((ratio > bound + tolerance).mean()),
        "vacuous": float(vacuous.mean()),
    }
