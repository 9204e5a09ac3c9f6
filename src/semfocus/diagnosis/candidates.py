"""The numbers that the study ``mechanism`` scores as predictors of learning speed, measured on any model.

Only those that attention alone tells: gradients and losses are not measured here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..theory import w_comparison
from .measure import LayerValues, Values

#: Name, then k, then the value; None where it has none. The names are the study's.
Candidates = dict[str, dict[int, float | None]]


def candidates(layers: Sequence[LayerValues], ks: Sequence[int]) -> Candidates:
    """Quantiles are over an even sample of the queries of all layers and heads, as in the study over all of them."""
    found: Candidates = {}
    for k in ks:
        for name, value in _at(layers, k).items():
            found.setdefault(name, {})[k] = value
    return found


def _at(layers: Sequence[LayerValues], k: int) -> dict[str, float | None]:
    def quantile(q: float, name: str) -> float | None:
        return _quantile([layer.sampled[name] for layer in layers], q)

    full, top, gap = quantile(0.75, "delta_s"), quantile(0.75, f"delta_h_{k}"), quantile(0.25, f"separation_{k}")
    before, after = quantile(0.5, "entropy"), quantile(0.5, f"entropy_{k}")
    wide, narrow = quantile(0.5, "support"), quantile(0.5, f"support_{k}")
    comparison = None
    if full is not None and top is not None and gap is not None and full > 0:
        comparison = float(w_comparison(full, top, max(gap, 1e-9)))
    return {
        "dispersion ratio, 75 %": ratio(full, top),
        "W-comparison, 75 %": comparison,
        "kept mass": quantile(0.5, f"kept_mass_{k}"),
        "entropy lost": None if before is None or after is None else before - after,
        "log effective support ratio": log_ratio(wide, narrow),
        "largest in-degree over k": max(float(layer.largest[k].max()) for layer in layers) / k,
    }


def _quantile(values: Sequence[Values], q: float) -> float | None:
    known = np.concatenate([part[~np.isnan(part)] for part in values])
    found = float(np.quantile(known, q, method="nearest")) if known.size else math.nan
    return found if math.isfinite(found) else None


def ratio(full: float | None, top: float | None) -> float | None:
    """Where it may be 0: a single key has no dispersion at all, and 0 is the smallest of ratios."""
    return top / full if full and top is not None else None


def log_ratio(full: float | None, top: float | None) -> float | None:
    return math.log(top / full) if full and top else None
