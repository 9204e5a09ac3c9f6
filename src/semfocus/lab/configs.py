"""The kinds of run that the laboratory knows: classifiers, trained as populations, and language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..language.config import LanguageConfig
from ..training.protocol import TEXT_TASK, RunConfig

Config = RunConfig | LanguageConfig


def config_of(data: Mapping[str, Any]) -> Config:
    """A config from plain data. Classifiers have a task, language models a text."""
    return LanguageConfig.from_dict(data) if "text" in data else RunConfig.from_dict(data)


def text_hash(config: Config) -> str:
    """By which the text of a run is known; empty where it has none."""
    if isinstance(config, LanguageConfig):
        return config.text.sha256
    return str(config.task.options["sha256"]) if config.task.name == TEXT_TASK else ""
