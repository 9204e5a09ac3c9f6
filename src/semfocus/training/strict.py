"""Typed configs from plain data, strictly: a mistake is an error that names the field, the value and what would do."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from ..registry import suggestion

T = TypeVar("T")

#: Beyond it floating-point numbers no longer tell whole numbers apart.
LARGEST = 2**53


class ConfigError(ValueError):
    """A mistake in a config. The message is one sentence for its author."""


def at_least(section: object, **lows: float) -> None:
    """Refuses fields below their least values."""
    for name, low in lows.items():
        value = getattr(section, name)
        if not value >= low:
            raise ValueError(f"{name} is {value!r}; it must be at least {low}")


def refuse_unknown(cls: type, data: Mapping[str, Any], *more: str) -> None:
    """Refuses keys that are neither fields of a dataclass nor among ``more``."""
    known = [f.name for f in dataclasses.fields(cls)]
    for key in data:
        if key not in known:
            raise ConfigError(f"unknown field {key!r}; {suggestion(key, [*known, *more])}")


def laid_over(base: Mapping[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merged, the later ones on top, one level deep: what ``RunConfig.from_dict`` takes.

    >>> laid_over({"model": {"width": 8, "blocks": 2}}, {"model": {"width": 16}})
    {'model': {'width': 16, 'blocks': 2}}
    """
    merged: dict[str, Any] = {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in base.items()
    }
    for other in others:
        for name, value in other.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
            merged[name] = {**merged[name], **value} if both else value
    return merged


def build(cls: type[T], data: object, path: str = "", beside: Mapping[str, str] = MappingProxyType({})) -> T:
    """An instance of a dataclass from a mapping; nested dataclasses from nested mappings. Nothing is converted.

    ``beside`` has the fields of neighbouring tables with their full names: a field may stand in the wrong one.

    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: int
    >>> build(Point, {"x": 1})
    Point(x=1)
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path or 'the config'} is {data!r}; it must be a table of {cls.__name__} fields")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    types = _types(cls)  # type: ignore[arg-type]  # a class is hashable
    for key in data:
        if key not in fields:
            wanted = f"did you mean {beside[key]!r}?" if key in beside else suggestion(key, fields)
            raise ConfigError(f"unknown field {_join(path, str(key))!r}; {wanted}")
    for name, f in fields.items():
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{_join(path, name)!r} is missing")
    tables = {name: kind for name, kind in types.items() if dataclasses.is_dataclass(kind)}
    inside = {f.name: f"{name}.{f.name}" for name, kind in tables.items() for f in dataclasses.fields(kind)}
    values = {name: _value(types[name], value, _join(path, name), inside) for name, value in data.items()}
    try:
        return cls(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(_join(path, str(error))) from None


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _value(kind: Any, value: object, path: str, beside: Mapping[str, str]) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else build(kind, value, path, beside)
    if isinstance(kind, type) and kind not in (int, float, bool, str) and isinstance(value, kind):
        return value
    if get_origin(kind) is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            raise ConfigError(f"{path} is {value!r}; {suggestion(value, map(str, get_args(kind)))}")
        return value
    if get_origin(kind) in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        return _value(next(k for k in get_args(kind) if k is not NoneType), value, path, beside)
    if get_origin(kind) is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ConfigError(f"{path} is {value!r}; it must be a table")
        return dict(value)
    return _plain(kind, value, path)


def _plain(kind: Any, value: object, path: str) -> object:
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    assert kind in wanted, f"{path}: no rule for fields of type {kind}"
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{path} is {value!r}; it must be {wanted[kind]}")
    if kind is int and isinstance(value, int) and abs(value) > LARGEST:
        raise ConfigError(f"{path} is {value}; it must be a whole number of at most {LARGEST}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} is {value!r}; it must be a finite number")
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
