"""The folder of one run: ``DIR/runs/<hash>/`` with config, environment, metrics, summary and weights.

A run with ``train.keep_weights_every`` also has ``snapshots/epoch-N.safetensors``: its weights after epoch N.

Everything is JSON, JSON lines or safetensors, readable without this package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..registry import sources
from .convergence import summarise
from .files import StorageError, append_lines, explained, finite, keep_lines, read_lines, write_atomic, write_json
from .protocol import RunConfig, run_name

WEIGHTS = "weights.safetensors"
SNAPSHOTS = "snapshots"
#: The name of a run's folder.
RUN_NAME = re.compile(r"[0-9a-f]{16}")
#: The name of a snapshot inside its run's folder. Digits are written once only: no two names for one epoch.
SNAPSHOT = re.compile(rf"{SNAPSHOTS}/epoch-(0|[1-9][0-9]{{0,8}})\.safetensors")


def load_weights(model: nn.Module, folder: Path) -> None:
    """Gives a model the trained weights that lie in a run's folder."""
    with explained(folder, "read"):
        data = (folder / WEIGHTS).read_bytes()
    try:
        model.load_state_dict(safetensors.torch.load(data))
    except (SafetensorError, RuntimeError, KeyError) as error:
        raise StorageError(f"{folder / WEIGHTS} does not fit its config.json ({error})") from None


class Recorded(Protocol):
    """A config of any kind."""

    def to_dict(self) -> dict[str, Any]: ...


class RunDirectory:
    """One run's folder. It exists once the run was started; it has a ``summary.json`` once the run is over."""

    def __init__(self, out: Path, run: str) -> None:
        self.run = run
        self.path = out / "runs" / run

    def start(self, config: Recorded, environment: dict[str, Any], last_epoch: int) -> None:
        """Records what is going to run, and cuts the curves back to where it goes on; -1: from the beginning."""
        write_json(self.path / "config.json", config.to_dict())
        write_json(self.path / "environment.json", environment)
        for name in ("metrics.jsonl", "probe.jsonl"):
            keep_lines(self.path / name, last_epoch)

    def config(self) -> RunConfig:
        return RunConfig.load(self.path / "config.json")

    def was_trained_with(self, code: Sequence[type]) -> bool:
        """Is what is a user's own among these classes as it was then?

        The folder's name says so, which is made of the config, as it was written then, and of their source: that of
        their file, if it was a plugin, else that of their lines.
        """
        if not sources(*code):
            return True
        path = self.path / "config.json"
        with explained(path, "read"):
            text = path.read_bytes()
        try:
            plain = dict(json.loads(text))
            return self.run in {run_name(plain, code, whole) for whole in (True, False)}
        except (ValueError, TypeError, AttributeError):
            raise self.damaged(path.name) from None

    def damaged(self, name: str) -> StorageError:
        """What to raise where one of its files cannot be read."""
        return StorageError(f"{self.path / name} is damaged; delete the folder {self.path} and run the study again")

    def is_finished(self) -> bool:
        return (self.path / "summary.json").exists()

    def has_weights(self) -> bool:
        return (self.path / WEIGHTS).exists()

    def check_weights(self) -> None:
        """Are they whole, if there are any? Only their table of contents is read."""
        if self.has_weights():
            try:
                with safetensors.safe_open(self.path / WEIGHTS, "pt"):
                    pass
            except (SafetensorError, OSError):
                raise self.damaged(WEIGHTS) from None

    def summary(self) -> dict[str, Any]:
        path = self.path / "summary.json"
        with explained(path, "read"):
            text = path.read_bytes()
        try:
            data: dict[str, Any] = json.loads(text)
            if data["status"] in ("finished", "diverged"):
                return data
        except (ValueError, KeyError, TypeError):
            pass
        raise self.damaged(path.name)

    def metrics(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "metrics.jsonl")

    def probes(self) -> list[dict[str, Any]]:
        return read_lines(self.path / "probe.jsonl")

    def lacks(self, epochs: Iterable[int]) -> bool:
        """Has its curve a gap: are not all of these epochs in it?"""
        return not set(epochs) <= {row["epoch"] for row in self.metrics()}

    def lacks_probes(self, steps: Iterable[int]) -> bool:
        """Was it not probed after all of these steps?"""
        return not set(steps) <= {row.get("step") for row in self.probes()}

    def append(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            append_lines(self.path / name, rows)

    def finish(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Any]:
        """Weights first, summary last: a run with a summary is complete."""
        self.write_weights(weights)
        summary = {**finite(facts), **summarise(self.metrics())}
        write_json(self.path / "summary.json", summary)
        return summary

    def write_weights(self, weights: dict[str, Tensor]) -> None:
        """The trained weights."""
        self._write(WEIGHTS, weights)

    def keep_weights(self, epoch: int, weights: dict[str, Tensor]) -> None:
        """A snapshot of the weights after so many epochs. One that is there already is replaced as a whole."""
        self._write(f"{SNAPSHOTS}/epoch-{epoch}.safetensors", weights)

    def snapshots(self) -> dict[int, str]:
        """The snapshots that there are, by epoch: their names inside this folder."""
        names = (f"{SNAPSHOTS}/{path.name}" for path in (self.path / SNAPSHOTS).glob("*"))
        return {int(found[1]): name for name in sorted(names) if (found := SNAPSHOT.fullmatch(name))}

    def weights_after(self, epoch: int) -> dict[str, Tensor]:
        """The weights of a snapshot, as those of a population of one: every tensor (1, ...)."""
        path = self.path / SNAPSHOTS / f"epoch-{epoch}.safetensors"
        with explained(path, "read"):
            data = path.read_bytes()
        try:
            return safetensors.torch.load(data)
        except SafetensorError as error:
            raise StorageError(f"{path} is damaged ({error}); train the run again") from None

    def _write(self, name: str, weights: dict[str, Tensor]) -> None:
        data = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
        write_atomic(self.path / name, data)
