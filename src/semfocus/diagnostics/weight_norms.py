from __future__ import annotations

from typing import ClassVar

import torch

from ..model.block import Block, Linear
from .base import Diagnostic, Measurement, Probe


class WeightNorms(Diagnostic):
    """Spectral norms of a block's maps: V, W = Q'K / sqrt(d), the output O, and the MLP's P and R.

    A bias is an extra column: ||[A b]||, and a token has an extra 1. For several heads the largest. The score's
    multiplier belongs to W. With ``cosine_scores`` queries and keys are normalised afterwards, and W bounds no score.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"model"})

    def _measure(self, probe: Probe) -> Measurement:
        model, m = probe.model, probe.member
        assert model is not None
        scale = float(model.scales[m].flatten()[0])
        d, layers = model.config.width, []
        for block in model.blocks:
            assert isinstance(block, Block)
            # Each head's map (d, d + 1).
            q, k, v = _with_bias(block.qkv, m).reshape(3, model.config.heads, d, d + 1)
            layers.append(
                {
                    "V": _norm(v),
                    "W": _norm(q.transpose(1, 2) @ k) * scale / d**0.5,
                    "O": _norm(_with_bias(block.output, m)),
                    "P": _norm(_with_bias(block.mlp_in, m)),
                    "R": _norm(_with_bias(block.mlp_out, m)),
                }
            )
        pooled = {name: max(layer[name] for layer in layers) for name in layers[0]}
        return {"pooled": pooled, "layers": layers}


def _with_bias(linear: Linear, member: int) -> torch.Tensor:
    """A member's map, (out, in + 1), with its bias as the last column. On the CPU: a GPU is slow at small ones."""
    weight, bias = linear.weight[member], linear.bias[member]
    return torch.cat([weight.detach(), bias.detach()]).cpu().double().T


def _norm(matrix: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, ord=2).max())
