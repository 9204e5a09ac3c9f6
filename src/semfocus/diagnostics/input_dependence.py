from __future__ import annotations

import torch

from .base import Diagnostic, Measurement, Probe


class InputDependence(Diagnostic):
    """Does the choice follow the input, or only the position?

    ``overlap``: the mean share of a query's kept keys that the same query keeps for the next input of the batch.
    ``chance``: the same for sets of that size drawn at random, k/n. ``lift`` = (overlap - chance) / (1 - chance): 0
    for a choice that knows nothing of position, 1 for one that is the same whatever the input. ``positional_share``:
    the share of the scores' variance (around each query's mean, which the softmax ignores) that is explained by query
    and key position alone, i.e. by the mean over the batch; corrected for the batch's size.

    Needs at least two inputs. Keys invisible for either of a pair are left out.
    """

    def _measure(self, probe: Probe) -> Measurement:
        layers = [self._layer(probe, layer) for layer in probe.layers]
        names = list(layers[0])
        pooled = {name: sum(layer[name] for layer in layers) / len(layers) for name in names}
        return {"pooled": pooled, "layers": layers}

    def _layer(self, probe: Probe, layer: int) -> dict[str, float]:
        overlaps = torch.zeros(3, dtype=torch.float64)  # share, chance, queries
        variances = torch.zeros(2, dtype=torch.float64)  # by position, and the rest
        for rows in probe.rows(layer):
            batch = rows.kept.ndim - 4  # (..., b, h, c, s)
            if batch < 0 or rows.kept.shape[batch] < 2:
                raise ValueError("input_dependence needs at least two inputs in its batch")
            visible = rows.visible & rows.counted[..., None]
            overlaps += self._overlap(rows.kept & visible, visible, batch)
            variances += self._variance(rows.scores, visible, batch)
        overlap, chance = (overlaps[:2] / overlaps[2].clamp(min=1)).tolist()
        lift = (overlap - chance) / (1 - chance) if chance < 1 else 0.0
        positional, rest = variances[0].clamp(min=0), variances[1]
        share = float(positional / (positional + rest)) if positional + rest > 0 else 0.0
        return {"overlap": overlap, "chance": chance, "lift": lift, "positional_share": share}

    @staticmethod
    def _overlap(kept: torch.Tensor, visible: torch.Tensor, batch: int) -> torch.Tensor:
        other, both = kept.roll(1, batch), visible & visible.roll(1, batch)
        mine, theirs = (kept & both).sum(-1).double(), (other & both).sum(-1).double()
        shared, keys = (kept & other & both).sum(-1).double(), both.sum(-1).double()
        counted = (mine > 0) & (theirs > 0)
        share = (shared / mine.clamp(min=1))[counted].sum()
        chance = (theirs / keys.clamp(min=1))[counted].sum()
        return torch.stack([share, chance, counted.sum().double()]).cpu()

    @staticmethod
    def _variance(scores: torch.Tensor, visible: torch.Tensor, batch: int) -> torch.Tensor:
        everywhere = visible.all(batch, keepdim=True).expand(scores.shape)
        z = scores.double().masked_fill(~everywhere, 0.0)
        count = everywhere.sum(-1, keepdim=True).clamp(min=1)
        z = (z - z.sum(-1, keepdim=True) / count).masked_fill(~everywhere, 0.0)
        inputs = z.shape[batch]
        within = z.var(batch, correction=1).sum()  # of the inputs around the mean over the batch
        between = z.mean(batch).square().sum() - within / inputs  # what chance alone adds to the mean is taken off
        return torch.stack([between, within]).cpu()
