"""What a decoder's attention does on a batch, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import diagnostics
from ..diagnostics import Probe
from ..functional import explain
from ..patterns.full import Full
from ..patterns.top_k import TopK
from ..reference import Problem
from .decoder import Attended, Block

DIAGNOSTICS = ("dispersion", "separation", "entropy", "effective_support", "kept_mass")
#: Of a full model: the weight that its best so many keys hold.
WOULD_KEEP = 16
MASS = f"mass_of_top_{WOULD_KEEP}"


@torch.no_grad()
def probe(model: nn.Module, run: Callable[[], object], rows: int) -> Probe:
    """The attention problems that ``run``, forward passes of the model, poses in the first so many rows.

    The model is left as it was. Whole batches are passed through it, since another shape would be compiled anew.
    """
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    seen: dict[Block, list[Problem]] = {block: [] for block in blocks}

    def recording(block: Block, attend: Callable[[Problem], Attended]) -> Callable[[Problem], Attended]:
        def record(problem: Problem) -> Attended:
            seen[block].append(_first([problem], rows))
            return attend(problem)

        return record

    originals = [block.attend for block in blocks]
    try:
        for block, attend in zip(blocks, originals, strict=True):
            block.attend = recording(block, attend)
        run()
    finally:
        for block, attend in zip(blocks, originals, strict=True):
            block.attend = attend
    return Probe(tuple(_first(passes, rows) for passes in seen.values()))


def _first(passes: Sequence[Problem], rows: int) -> Problem:
    """The problem of a layer for the first rows, which draw what they drew among all; values are not looked at."""
    parts = zip(*((p.q, p.k, p.noise.fresh) for p in passes), strict=True)
    q, k, fresh = (torch.cat([x[:rows] for x in part])[:rows].detach() for part in parts)
    return replace(passes[0], q=q, k=k, v=k, noise=replace(passes[0].noise, fresh=fresh))


def measured(found: Probe) -> dict[str, Any]:
    """Plain data: of every diagnostic the summary over all layers, and the median of each layer."""
    named = {name: diagnostics.get(name).measure(found) for name in DIAGNOSTICS}
    if all(isinstance(problem.pattern, Full) for problem in found.problems):
        named[MASS] = diagnostics.get("kept_mass").measure(found.with_pattern(TopK(WOULD_KEEP)))
    return {
        name: {**one["pooled"], "layers": [layer.get("q50") for layer in one["layers"]]} for name, one in named.items()
    }


def implementation(model: nn.Module, shape: tuple[int, int, int, int], like: Tensor) -> str:
    """What "auto" takes for queries (b, h, t, e) of this dtype and device."""
    block = next(block for block in model.modules() if isinstance(block, Block))
    x = like.detach().flatten()[0].expand(shape)
    return explain(x, x, x, block.pattern, is_causal=True, scale=block.scale).choice
