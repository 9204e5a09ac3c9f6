"""A trained decoder back from its run directory."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ..training.files import StorageError, explained
from ..training.run_directory import WEIGHTS, RunDirectory, load_weights
from .config import LanguageConfig
from .decoder import Decoder


def load_decoder(directory: str | Path, device: torch.device | str = "cpu") -> Decoder:
    """The model of a finished run that kept its weights (``train.keep_weights``), in evaluation mode.

    model = load_decoder("lab/language_model/runs/0f3a...")
    logits = model(tokens)  # tokens (b, t) -> (b, t, vocabulary)
    """
    path = Path(directory).resolve()
    if not (path / WEIGHTS).is_file():
        raise StorageError(f"{path} holds no weights; train the run to its end with train.keep_weights=true")
    with explained(path, "read"):
        config = _config(path / "config.json")
    if not RunDirectory(path.parent.parent, path.name).was_trained_with(config.code):
        raise StorageError(f"{path}: its pattern has changed since it was trained; load the file as it was")
    model = Decoder(config.model, config.text.vocabulary, config.pattern, config.seed).to(device)
    load_weights(model, path)
    return model.eval()


def _config(path: Path) -> LanguageConfig:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "task" in data:
            raise StorageError(f"{path.parent} holds a classifier: semfocus.load_run gives it back")
        return LanguageConfig.from_dict(data)
    except ValueError as error:  # syntax, encoding and config errors
        raise StorageError(f"{path}: {error}") from None
