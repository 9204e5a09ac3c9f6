from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from .base import Diagnostic, Measurement, Probe, summarise
from .separation import Separation


@dataclass(frozen=True)
class SelectionStability(Diagnostic):
    """Fraction of kept indices that stay kept under Gaussian noise on the embedded tokens.

    For each noise level (a multiple of the embeddings' root mean square): mean over queries of |S_i n S'_i| / |S_i|,
    per layer and pooled, and by quartile of the query's separation without noise (lowest first): does a larger
    separation make the choice more stable?
    """

    needs: ClassVar[frozenset[str]] = frozenset({"model"})

    levels: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.levels, tuple) or not self.levels or not all(level > 0 for level in self.levels):
            raise ValueError(f"levels is {self.levels}; it must be a tuple of numbers above 0")

    def _measure(self, probe: Probe) -> Measurement:
        by_level: list[dict[str, Any]] = []
        for level in self.levels:
            noisy = probe.noisy(level, self.seed)
            layers = [self._layer(probe, noisy, layer) for layer in probe.layers]
            unchanged = np.concatenate([values for values, _ in layers])
            separation = np.concatenate([values for _, values in layers])
            by_level.append(
                {
                    "noise": level,
                    "pooled": summarise(unchanged),
                    "layers": [summarise(values) for values, _ in layers],
                    "by_separation": _by_quartile(unchanged, separation),
                }
            )
        return {"levels": by_level}

    @staticmethod
    def _layer(probe: Probe, noisy: Probe, layer: int) -> tuple[Any, Any]:
        unchanged, separation = [], []
        for before, after in zip(probe.rows(layer), noisy.rows(layer), strict=True):
            kept = before.kept.sum(-1).double()
            same = (before.kept & after.kept).sum(-1).double() / kept.clamp(min=1)
            unchanged.append(same.masked_fill(~before.counted, torch.nan).flatten())
            separation.append(Separation().values(before).double().flatten())
        return torch.cat(unchanged).cpu().numpy(), torch.cat(separation).cpu().numpy()


def _by_quartile(unchanged: Any, separation: Any) -> list[float] | None:
    """Mean unchanged share in the four quarters of queries ordered by separation; None where nothing is dropped."""
    known = np.isfinite(separation) & ~np.isnan(unchanged)
    if known.sum() < 4:
        return None
    order = np.argsort(separation[known], kind="stable")
    return [float(part.mean()) for part in np.array_split(unchanged[known][order], 4)]
