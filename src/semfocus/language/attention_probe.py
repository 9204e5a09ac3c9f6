"""What a decoder's attention does on a batch, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import diagnostics
from ..diagnostics import Probe
from ..patterns.full import Full
from ..patterns.top_k import TopK
from .decoder import Block, Seen

DIAGNOSTICS = ("dispersion", "separation", "entropy", "effective_support", "kept_mass")
#: Of a full model: the weight that its best so many keys hold.
WOULD_KEEP = 16
MASS = f"mass_of_top_{WOULD_KEEP}"


@torch.no_grad()
def probe(model: nn.Module, run: Callable[[], object], rows: int) -> Probe:
    """The attention problems that ``run``, a forward pass of the model, poses in the first rows of its batch.

    The model is left as it was. A whole batch is passed through it, since another shape would be compiled anew.
    """
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    seen: list[tuple[Block, Tensor, Tensor]] = []

    def recording(block: Block, before: Callable[..., Seen]) -> Callable[..., Seen]:
        def record(*arguments: Any) -> Seen:
            q, k, v = before(*arguments)
            seen.append((block, q[:rows], k[:rows]))
            return q, k, v

        return record

    originals = [block.before for block in blocks]
    try:
        for block, before in zip(blocks, originals, strict=True):
            block.before = recording(block, before)
        run()
    finally:
        for block, before in zip(blocks, originals, strict=True):
            block.before = before
    problems = [Probe.of(q, k, b.pattern, is_causal=True, scale=b.scale).problems[0] for b, q, k in seen]
    return Probe(tuple(problems))


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
    from ..functional import explain

    block = next(block for block in model.modules() if isinstance(block, Block))
    x = like.detach().flatten()[0].expand(shape)
    return explain(x, x, x, block.pattern, is_causal=True, scale=block.scale).choice
