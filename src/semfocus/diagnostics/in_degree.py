from __future__ import annotations

import numpy as np
import torch

from .base import Diagnostic, Measurement, Probe, by_layer_and_head


class InDegree(Diagnostic):
    """How many queries keep a key, and beta, the same over the budget.

    D_j = number of i with j in S_i        beta = max_j D_j / k

    The mean of D is the mean number of kept keys; a key that everyone keeps has D = number of queries. Keys that no
    query sees are left out, and so are queries that are padding. ``beta`` uses the pattern's budget, no larger than the
    most keys a query sees, or the mean number of kept keys where it has none.
    """

    def _measure(self, probe: Probe) -> Measurement:
        layers, limits = [], []
        for layer in probe.layers:
            degree: torch.Tensor | None = None
            seen: torch.Tensor | None = None
            most = 0  # keys that a query sees
            for rows in probe.rows(layer):
                counts = rows.counted[..., None]
                counted, visible = (rows.kept & counts).sum(-2), (rows.visible & counts).any(-2)  # (..., h, s)
                degree = counted if degree is None else degree + counted
                seen = visible if seen is None else seen | visible
                most = max(most, int(rows.visible.sum(-1).max()))
            assert degree is not None
            assert seen is not None
            values = degree.double().masked_fill(~seen, torch.nan).movedim(-2, 0).flatten(1)  # (h, keys)
            layers.append(values.cpu().numpy())
            limits.append(most)
        found = by_layer_and_head(layers)
        everything = np.concatenate([values.ravel() for values in layers])
        budget = probe.problems[0].pattern.budget
        groups = zip(
            (found["pooled"], *found["layers"]), (everything, *layers), (max(limits, default=0), *limits), strict=True
        )
        for group, values, most in groups:
            if np.isnan(values).all():  # no query sees a key
                continue
            kept = (min(budget, most) if budget else float(np.nanmean(values))) or 1.0
            group["beta"] = float(np.nanmax(values)) / kept
        return found
