"""A trained model back from its run directory."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import torch

from ..extras import needed
from ..model import Transformer
from .files import StorageError


def load_run(directory: str | Path, device: torch.device | str = "cpu") -> Transformer:
    """The model of a finished run, in evaluation mode: a population of one.

    model = semfocus.load_run("lab/convergence/runs/0f3a...")
    logits = model(tokens)  # tokens (b, t) -> (1, b, outputs, classes)
    """
    with needed("load_run", "lab"):  # here and not above: the library itself must import without it
        from .run_directory import WEIGHTS, RunDirectory, load_weights

    path = Path(directory).resolve()
    run = RunDirectory(path.parent.parent, path.name)
    if path.parent.name != "runs" or not (path / "config.json").is_file():
        raise StorageError(f"{path} is no run directory; it must be .../runs/<hash> with a config.json")
    if _of_language(path / "config.json"):
        raise StorageError(f"{path} holds a language model: semfocus.language.load.load_decoder gives it back")
    if not (path / WEIGHTS).is_file():
        state = "has no weights (packed without them?)" if run.is_finished() else "is not finished"
        raise StorageError(f"{path} {state}; train it again to get its model")
    config = run.config()
    if not run.was_trained_with(config.code):
        raise StorageError(f"{path}: its pattern or task has changed since it was trained; load the file as it was")
    model = Transformer(config.model_config(), config.pattern, config.seed, device=device)
    load_weights(model, path)
    return model.eval()


def _of_language(config: Path) -> bool:
    """Language models have a text, classifiers a task."""
    with suppress(OSError, ValueError):  # what is damaged is told by who reads all of it
        data = json.loads(config.read_text(encoding="utf-8"))
        return isinstance(data, dict) and "text" in data
    return False
