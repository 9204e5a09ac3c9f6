"""A model whose parts are compiled, where no kernel of our own serves them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

import torch
import torch._dynamo
from torch import Tensor

from ..randomness import Noise
from .block import Block, Settings
from .transformer import Transformer, run_block, run_embedding, run_keys

P = ParamSpec("P")
R = TypeVar("R")

#: Compiled versions of the block that one process may hold.
VERSIONS = 1024


@cache
def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """One version per shape, pattern and mode, shared by layers and populations."""
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, VERSIONS)  # beyond it a call would silently not be compiled
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, VERSIONS)
    # Without this, the order in which a compiled kernel sums is the fastest of several, timed anew by each process.
    return torch.compile(function, dynamic=False, options={"deterministic": True})


def compile_parts(model: Transformer) -> None:
    """Blocks, embedding and keys."""
    model.run_block = _block_compiled_where_it_pays
    model.run_embedding, model.run_keys = compiled(run_embedding), compiled(run_keys)


def _block_compiled_where_it_pays(
    block: Block, h: Tensor, visible: Tensor | None, scales: Tensor, noise: Noise, eps: float, settings: Settings
) -> Tensor:
    """Where kernels of our own serve all of a block, there is nothing to compile."""
    run = run_block if settings.fused else compiled(run_block)
    return run(block, h, visible, scales, noise, eps, settings)
