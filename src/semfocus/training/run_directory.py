"""The folder of one run: ``DIR/runs/<hash>/`` with config, environment, metrics, summary and weights.

Everything is JSON, JSON lines or safetensors, readable without this package.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from .convergence import summarise
from .files import append_lines, finite, keep_lines, read_lines, write_atomic, write_json
from .protocol import RunConfig


class RunDirectory:
    """One run's folder. It exists once the run was started; it has a ``summary.json`` once the run is over."""

    def __init__(self, out: Path, run: str) -> None:
        self.run = run
        self.path = out / "runs" / run

    def start(self, config: RunConfig, environment: dict[str, Any], last_epoch: int) -> None:
        """Records what is going to run, and cuts the curves back to where it goes on; -1: from the beginning."""
        write_json(self.path / "config.json", config.to_dict())
        write_json(self.path / "environment.json", environment)
        for name in ("metrics.jsonl", "probe.jsonl"):
            keep_lines(self.path / name, last_epoch)

    def config(self) -> RunConfig:
        return RunConfig.load(self.path / "config.json")

    def is_finished(self) -> bool:
        return (self.path / "summary.json").exists()

    def summary(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return data

    def metrics(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "metrics.jsonl")

    def append(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            append_lines(self.path / name, rows)

    def finish(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Any]:
        """Weights first, summary last: a run with a summary is complete."""
        data = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
        write_atomic(self.path / "weights.safetensors", data)
        summary = {**finite(facts), **summarise(self.metrics())}
        write_json(self.path / "summary.json", summary)
        return summary
