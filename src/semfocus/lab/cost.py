"""What a run costs: steps, arithmetic, and the time of its pattern's own step."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..training.environment import describe
from ..training.files import write_json
from ..training.locks import locked
from ..training.population import Population
from ..training.protocol import RunConfig

#: A backward pass costs about two forward passes.
PASSES = 3
TIMED_STEPS = 10
#: Measurements, and at least as many as fill so many seconds: steps on a GPU take less than a millisecond.
REPEATS, SECONDS = 3, 0.1


def flops_per_step(config: RunConfig) -> float:
    """Floating-point operations of the matrix products in one training step, as many as the pattern needs at least.

    A pattern that looks at the input has to score every key; one that does not scores what it keeps.
    """
    model = config.model_config()
    tokens = config.attended
    kept = min(config.pattern.budget or tokens, tokens)
    scored = tokens if config.pattern.input_dependent else kept
    d, inner = model.width, model.heads * model.width
    per_token = 2 * d * 3 * inner + 2 * inner * (scored + kept) + 2 * inner * d + 4 * d * model.mlp_width
    return float(PASSES * config.train.batch * tokens * model.blocks * per_token)


def steps_per_epoch(config: RunConfig) -> int:
    return config.data.train // config.train.batch


class Clock:
    """The time of one training step of one model, per pattern and shape, measured once and kept in a file.

    Inside a population a run has no time of its own, so a model is timed alone, after the study. On a GPU the step is a
    CUDA graph of uncompiled operations: launches cost nothing, and hundreds of shapes need not be compiled.
    """

    def __init__(self, path: Path, device: torch.device | None = None) -> None:
        """``device`` None: only to read, the times of the device of which there are most."""
        self.path, self.device = path, device
        tables = _by_device(path)
        most = max(tables, key=lambda name: len(tables[name]), default="")
        self.name = describe(device)["device"] if device is not None else most
        self.known = tables.get(self.name, {})  # times of different devices never mix

    def get(self, config: RunConfig) -> float | None:
        """Milliseconds per step, if it has been measured."""
        known = self.known.get(clock_key(config), {}).get("milliseconds")
        return float(known) if isinstance(known, int | float) else None

    def measure(self, config: RunConfig) -> None:
        assert self.device is not None
        if self.get(config) is None:
            milliseconds = time_step(config, self.device)
            self.known[clock_key(config)] = {"milliseconds": milliseconds, **describe(self.device)}
            with locked(self.path.parent):  # others may have timed other steps meanwhile
                tables = _by_device(self.path)
                write_json(self.path, {**tables, self.name: {**tables.get(self.name, {}), **self.known}})


def _by_device(path: Path) -> dict[str, dict[str, Any]]:
    """A clock's file: entries by device and shape; nothing of what cannot be read, or is no table."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    tables = _tables(found)
    return {device: _tables(entries) for device, entries in tables.items()}


def _tables(found: object) -> dict[str, dict[str, Any]]:
    return {name: table for name, table in found.items() if isinstance(table, dict)} if isinstance(found, dict) else {}


def clock_key(config: RunConfig) -> str:
    """What the time of a step depends on. Not the task: vocabulary and classes are a sliver of the work."""
    model = {k: v for k, v in asdict(config.model).items() if k not in ("attention_scale", "mask_padding")}
    length = config.length + config.pattern.global_tokens
    outputs = config.model_config().outputs
    parts = [config.pattern.label, length, outputs, config.train.batch, config.precision, config.optimiser.name, model]
    return json.dumps(parts, sort_keys=True)


def time_step(config: RunConfig, device: torch.device) -> float:
    """Milliseconds per training step of one model alone: the best of several short measurements."""
    population = Population([config], device, compiled=False)
    population.start_epoch(0)
    steps = min(TIMED_STEPS, population.steps_per_epoch)

    def measure() -> float:
        population.cursor.zero_()
        _wait(device)
        start = time.perf_counter()
        for _ in range(steps):
            population.train_step()
        _wait(device)
        return time.perf_counter() - start

    measure()  # warms up
    taken: list[float] = []
    while len(taken) < REPEATS or sum(taken) < SECONDS:
        taken.append(measure())
    return 1000 * min(taken) / steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
