"""``KEY=VALUE`` on the command line: checked against the typed config, and refused where the study sets the key.

>>> parse("model.width=32")
(('model', 'width'), 32)
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from ..training.strict import ConfigError
from .configs import Config, config_of
from .study import Arm, Study

Override = tuple[tuple[str, ...], Any]


def parse(text: str) -> Override:
    """A key's path and its value: a number, true, false, or else a string."""
    key, equals, value = text.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(f"{text!r} is not KEY=VALUE, such as model.width=32")
    return path, _value(value.strip())


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def overridden(study: Study, size: str, arms: Sequence[Arm], texts: Iterable[str]) -> list[Arm]:
    """All arms of a size with the overrides laid over their configs."""
    overrides = [parse(text) for text in texts]
    for number, (path, _) in enumerate(overrides):
        _refuse_fixed(study, size, path)
        if path in [earlier for earlier, _ in overrides[:number]]:
            raise ConfigError(f"{'.'.join(path)} is overridden twice; give it once")
    return [dataclasses.replace(arm, config=changed(arm.config, overrides)) for arm in arms]


def changed(config: Config, overrides: Sequence[Override]) -> Config:
    """A config with some of its fields replaced."""
    data = config.to_dict()
    for path, value in overrides:
        table = data
        for i, name in enumerate(path[:-1]):
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{'.'.join(path[: i + 1])} is {inner!r}; it has no field {path[i + 1]!r}")
            table = inner
        _refuse_table(path, table.get(path[-1]), value)
        table[path[-1]] = value
    return config_of(data)


def _refuse_table(path: tuple[str, ...], old: Any, new: Any) -> None:
    """The fields that a table leaves out would silently have their defaults; a pattern's are not to be mixed."""
    if len(path) == 1 and path != ("pattern",) and isinstance(old, dict) and isinstance(new, dict):
        one, value = next(iter((new or old).items()))
        example = f"{path[0]}.{one}={json.dumps(value)}"
        raise ConfigError(f"{path[0]} cannot be replaced as a whole; override its fields: {example}")


def _refuse_fixed(study: Study, size: str, path: tuple[str, ...]) -> None:
    if path == ("seed",):
        raise ConfigError("seed cannot be overridden: every arm runs with the same seeds (use --seeds N)")
    if path == ("preset",):
        raise ConfigError("preset cannot be overridden: a study's configs are complete (override single fields)")
    key = ".".join(path)
    varied = dict.fromkeys(study.varies, f"what the study {study.name!r} varies")
    for fixed, what in {**varied, **study.fixed(size)}.items():
        if f"{key}.".startswith(f"{fixed}."):
            raise ConfigError(f"{key} cannot be overridden: it is {what}")
        if f"{fixed}.".startswith(f"{key}."):
            raise ConfigError(f"{key} cannot be overridden: {fixed} is {what}")
