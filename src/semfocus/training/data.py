"""The examples of a population: made from each run's own config, padded, and laid side by side on the device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..randomness import absorb, bits, key_of
from .protocol import RunConfig

SPLITS = ("train", "heldout", "test")
# What the bits of the batch order are drawn for; dropout uses other keys of the same seed.
ORDER_SITE = 2**31 - 3
#: Draws among which a twin finds an example that differs from the one it replaces.
TWIN_DRAWS = 64
#: tokens (N, t), targets and counted (N, outputs)
Examples = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Split:
    """Examples of all members. Members with equal data share one of the u sets: member i uses set ``owner[i]``."""

    tokens: Tensor  # (u, N, t), small integers
    targets: Tensor  # (u, N, outputs)
    counted: Tensor  # (u, N, outputs) bool: which targets count for accuracy
    owner: Tensor  # (m,)

    @property
    def examples(self) -> int:
        return self.tokens.shape[1]

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """tokens (m, b, t), targets and counted (m, b, outputs) of rows (m, b)."""
        owner = self.owner[:, None]
        return self.tokens[owner, rows].long(), self.targets[owner, rows].long(), self.counted[owner, rows]


def data_key(config: RunConfig) -> str:
    """What the examples of a run depend on. Equal keys, equal data."""
    parts = [config.data_seed, asdict(config.task), config.model.read_out, asdict(config.data)]
    return json.dumps(parts, sort_keys=True)


def make_split(config: RunConfig, split: str) -> Examples:
    """The examples of one run. Each split has a generator of its own."""
    made = _examples(config, split, _generator(config, split), getattr(config.data, split))
    return _with_twin(config, made) if split == "train" and config.data.twin else made


def _with_twin(config: RunConfig, made: Examples) -> Examples:
    """The same examples but for one, which is drawn anew until it differs. Nothing else of the run changes by it."""
    row = config.data.twin - 1
    drawn = _examples(config, "train", _generator(config, f"twin {config.data.twin}"), TWIN_DRAWS)
    differs = [(new != old[row]).any(1) for new, old in zip(drawn, made, strict=True)]
    other = torch.stack(differs).any(0).nonzero().flatten()
    if len(other) == 0:
        raise ValueError(f"data.twin is {config.data.twin}; {config.task.name} gave no other example to put there")
    chosen = int(other[0])
    tokens, targets, counted = (
        torch.cat([old[:row], new[chosen : chosen + 1], old[row + 1 :]]) for new, old in zip(drawn, made, strict=True)
    )
    return tokens, targets, counted


def _examples(config: RunConfig, split: str, rng: np.random.Generator, n: int) -> Examples:
    task = config.task.make()
    examples = task.split(split, rng, n, config.task.length)
    tokens = F.pad(examples.tokens, (0, config.length - examples.tokens.shape[1]), value=task.pad)
    targets, counted = examples.targets, task.answer_mask(examples.targets)
    if config.model.read_out == "mean":  # one class per example: the first output token
        targets, counted = targets[:, :1], torch.ones_like(counted[:, :1])
    if config.data.random_labels:
        shuffled = torch.from_numpy(rng.permutation(len(targets)))
        targets, counted = targets[shuffled], counted[shuffled]
    return tokens, targets, counted


def _generator(config: RunConfig, split: str) -> np.random.Generator:
    text = json.dumps([config.data_seed, asdict(config.task), split], sort_keys=True)
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little"))


def resident(configs: Sequence[RunConfig], device: torch.device) -> dict[str, Split]:
    """All splits of a population, on the device. Splits of size 0 are left out."""
    keys = [data_key(config) for config in configs]
    makers = dict(zip(keys, configs, strict=True))  # equal keys, equal data: whose config makes it does not matter
    order = list(makers)
    owner = torch.tensor([order.index(key) for key in keys], device=device)
    splits = {}
    for name in SPLITS:
        if getattr(configs[0].data, name):
            made = [make_split(config, name) for config in makers.values()]
            tokens, targets, counted = (torch.stack(part) for part in zip(*made, strict=True))
            splits[name] = Split(_small(tokens).to(device), _small(targets).to(device), counted.to(device), owner)
    return splits


def _small(ids: Tensor) -> Tensor:
    """Token ids in one byte where they fit: most data sets are read again and again."""
    return ids.to(torch.uint8 if ids.numel() == 0 or int(ids.max()) < 256 else torch.int32)


def batch_order(seeds: Tensor, epoch: int | Tensor, examples: int) -> Tensor:
    """(m, N): a permutation of the examples for each seed, a function of (seed, epoch) alone."""
    key = absorb(absorb(key_of(seeds), ORDER_SITE), epoch)
    return bits(key, (examples,)).argsort(dim=-1, stable=True)
