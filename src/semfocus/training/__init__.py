"""Training: a typed config per run, and a trainer that trains many runs as one population."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..extras import needed
from .protocol import RunConfig, paper
from .strict import ConfigError

if TYPE_CHECKING:
    from .trainer import Trainer

__all__ = ["ConfigError", "RunConfig", "Trainer", "paper"]


def __getattr__(name: str) -> Any:
    # The trainer needs the extra packages of semfocus[lab]; configs do not.
    if name == "Trainer":
        with needed("Trainer", "lab"):
            return importlib.import_module(".trainer", __name__).Trainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
