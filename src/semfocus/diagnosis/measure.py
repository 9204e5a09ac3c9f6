"""The numbers of one attention layer, a few queries at a time: no (t, s) matrix is ever kept.

Shapes: ... leading axes (batch, model), h heads, c queries of a chunk, s keys, n visible keys of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..diagnostics.base import Rows
from ..patterns.base import keep_best
from ..patterns.full import Full
from ..reference import Problem, masked_softmax
from ..theory import is_vacuous, xi_h, xi_s

#: Scores of one chunk.
CHUNK_ELEMENTS = 2**21
#: What needs the weights under every k, and what is pooled over layers, is measured on about so many queries a head.
SAMPLED = 512
#: A large batch is sampled by examples first, so that each still has so many queries, from its first to its last.
POSITIONS = 32
#: Gaussian noise on the scores, for the measured stability.
NOISE = 0.01

Values = NDArray[np.float64]


@dataclass(frozen=True)
class LayerValues:
    """One number per head and query (h, queries), NaN where a query sees nothing or is padding.

    ``values`` are of all queries, ``sampled`` of some of them; ``largest`` in-degrees are per head (h,).
    """

    values: dict[str, Values]
    sampled: dict[str, Values]
    largest: dict[int, Values]  # by k
    most_keys: int


@torch.no_grad()
def measure(problem: Problem, ks: Sequence[int], real: Tensor | None) -> LayerValues:
    """``real`` (broadcastable to (..., h, t)) says which queries are not padding; None: all."""
    problem = replace(problem, pattern=Full(), packed=None)
    queries, per_row = problem.q.shape[-2], problem.q.shape[:-2].numel() * problem.k.shape[-2]
    chunk = max(1, min(1024, CHUNK_ELEMENTS // max(per_row, 1)))
    examples, every = _steps(problem)
    generator = torch.Generator(problem.q.device).manual_seed(0)
    values: list[dict[str, Values]] = []
    sampled: list[dict[str, Values]] = []
    degrees = {k: torch.zeros((), dtype=torch.int64, device=problem.q.device) for k in ks}  # (..., h, s) in the end
    for start in range(0, queries, chunk):
        stop = min(start + chunk, queries)
        rows = Rows(problem.rows(start, stop), None if real is None else real[..., start:stop])
        counted = rows.counted  # (..., h, c)
        some: tuple[Any, ...] = (*examples, ..., slice(-start % every, None, every))  # of (..., h, c)
        kept = {}  # of the sampled queries
        for k in ks:
            chosen = keep_best(rows.scores, rows.visible, k)
            degrees[k] = degrees[k] + (chosen & counted[..., None]).sum(-2)
            kept[k] = chosen[(*some, slice(None))].clone()
        found = _of_every_query(rows, ks)
        values.append(_flat(found, counted))
        found = {name: value[some] for name, value in found.items()}
        found |= _of_sampled_queries(rows, kept, some, generator)
        sampled.append(_flat(found, counted[some]))
    joined = _joined(values)
    # A key's in-degree belongs to one example; per head the largest of all examples counts.
    largest = {k: _heads_first(degree).amax(1).double().cpu().numpy() for k, degree in degrees.items()}
    most = int(np.nan_to_num(joined["keys"]).max(initial=0))
    return LayerValues(_with_bounds(joined, ks), _joined(sampled), largest, most)


def _steps(problem: Problem) -> tuple[tuple[slice, ...], int]:
    """Which examples are sampled, as an index of the first axis (none without a batch), and every which query."""
    batch, queries = problem.q.shape[:-3], problem.q.shape[-2]
    every = max(1, queries // max(POSITIONS, SAMPLED // max(batch.numel(), 1)))
    enough = -(-SAMPLED // max(1, queries // every))
    return ((slice(None, None, max(1, batch.numel() // enough)),) if batch else ()), every


def _of_every_query(rows: Rows, ks: Sequence[int]) -> dict[str, Tensor]:
    """(..., h, c) each, all from the best max(ks) + 1 scores of a query."""
    scores, keys = rows.scores.masked_fill(~rows.visible, -torch.inf), rows.visible.sum(-1)
    best = scores.topk(min(max(ks) + 1, scores.shape[-1]), dim=-1).values  # (..., h, c, k)
    total = scores.logsumexp(-1, keepdim=True)
    entropy = torch.special.entr((scores - total).exp()).sum(-1)
    lowest = rows.scores.masked_fill(~rows.visible, torch.inf).amin(-1)
    held = (best - total).exp().cumsum(-1)
    found = {
        "keys": keys.to(scores.dtype),
        "entropy": entropy,
        "entropy_share": torch.where(keys > 1, entropy / keys.clamp(min=2).log(), torch.nan),
        "delta_s": best[..., 0] - lowest,
    }
    for k in ks:
        last = keys.clamp(min=1, max=k)[..., None] - 1  # of the kept keys, in the order of their scores
        worst = best.gather(-1, last)[..., 0]
        next_one = best[..., k] if k < best.shape[-1] else torch.full_like(worst, -torch.inf)
        found |= {
            f"kept_mass_{k}": held.gather(-1, last)[..., 0].clamp(max=1.0),
            f"if_uniform_{k}": keys.clamp(max=k) / keys.clamp(min=1),
            f"drops_{k}": (keys > k).to(scores.dtype),
            f"delta_h_{k}": best[..., 0] - worst,
            f"separation_{k}": worst - next_one,  # infinite where nothing is dropped
        }
    return found


def _of_sampled_queries(
    rows: Rows, kept: dict[int, Tensor], some: tuple[Any, ...], generator: torch.Generator
) -> dict[str, Tensor]:
    """Entropy, effective support and measured stability, of full attention (no suffix) and of top-k (``_k``)."""
    scores, visible = (x[(*some, slice(None))] for x in (rows.scores, rows.visible))
    noise = torch.randn(scores.shape, generator=generator, dtype=scores.dtype, device=scores.device)
    step = NOISE * noise.masked_fill(~visible, 0.0)
    found: dict[str, Tensor] = {}
    for suffix, chosen in [("", visible), *((f"_{k}", keys) for k, keys in kept.items())]:
        weights = masked_softmax(scores, chosen)
        k = int(suffix[1:] or scores.shape[-1])
        moved = masked_softmax(scores + step, keep_best(scores + step, visible, k))
        found |= {
            f"entropy{suffix}": torch.special.entr(weights).sum(-1),
            f"support{suffix}": 1.0 / weights.square().sum(-1),
            f"ratio{suffix}": (weights - moved).norm(dim=-1) / step.norm(dim=-1),
        }
    return found


def _with_bounds(values: dict[str, Values], ks: Sequence[int]) -> dict[str, Values]:
    """And whether they are vacuous: 1 or 0, NaN where a bound is."""
    values["xi_s"] = xi_s(values["delta_s"], values["keys"])
    values["vacuous_s"] = np.where(np.isnan(values["xi_s"]), np.nan, is_vacuous(values["xi_s"]))
    for k in ks:
        kept = np.minimum(values["keys"], k)
        separation = np.maximum(values[f"separation_{k}"], 0.0)
        bound = xi_h(values[f"delta_h_{k}"], kept, separation)
        values[f"xi_h_{k}"] = bound
        values[f"vacuous_{k}"] = np.where(np.isnan(bound), np.nan, is_vacuous(bound, separation))
    return values


def _flat(found: dict[str, Tensor], counted: Tensor) -> dict[str, Values]:
    return {
        name: _heads_first(value.double().masked_fill(~counted, torch.nan)).cpu().numpy()
        for name, value in found.items()
    }


def _heads_first(x: Tensor) -> Tensor:
    """(..., h, n) -> (h, everything else)."""
    return x.movedim(-2, 0).flatten(1)


def _joined(parts: Sequence[dict[str, Values]]) -> dict[str, Values]:
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
