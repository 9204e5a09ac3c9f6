"""Initial weights: each tensor is a function of (run seed, its name) alone.

So a model's start depends neither on its pattern, nor on its neighbours in a population, nor on how many rows its
embedding has: runs that differ only in their pattern start from the same weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

#: Half-width of the uniform distribution of embeddings and read-out.
SMALL = 0.1


def each(seeds: Sequence[int], draw: Callable[[int], T]) -> list[T]:
    """What is drawn for each seed. Members of a population often share theirs: equal ones are drawn once."""
    made = {seed: draw(seed) for seed in dict.fromkeys(seeds)}
    return [made[seed] for seed in seeds]


def uniform(seed: int, name: str, shape: tuple[int, ...], bound: float) -> Tensor:
    """float64 on the CPU, uniform in [-bound, bound]."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return (2.0 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1.0) * bound


def linear(seed: int, name: str, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Weight (inputs, outputs) and bias (outputs,), as ``torch.nn.Linear`` draws them: uniform in 1/sqrt(inputs)."""
    bound = inputs**-0.5
    return uniform(seed, f"{name}.weight", (inputs, outputs), bound), uniform(seed, f"{name}.bias", (outputs,), bound)


def embedding(seed: int, name: str, rows: int, width: int) -> Tensor:
    """(rows, width). Row by row, so that a larger vocabulary leaves the first rows as they were."""
    return torch.stack([uniform(seed, f"{name}.{row}", (width,), SMALL) for row in range(rows)])
