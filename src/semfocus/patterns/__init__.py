"""Patterns: which keys a query keeps. One pattern per file; the file's stem is its name.

>>> get("banded", width=5).label
'banded(width=5)'
"""

from __future__ import annotations

from typing import TypeVar

from ..registry import Registry
from .base import Pattern, View

__all__ = ["Pattern", "View", "find", "get", "names", "register", "registry"]

registry: Registry[Pattern] = Registry("pattern", "semfocus.patterns")
names, find, get = registry.names, registry.find, registry.get

P = TypeVar("P", bound=Pattern)


def register(cls: type[P]) -> type[P]:
    """Class decorator that makes a user's pattern known under its name in snake case, wherever ours are."""
    if not (isinstance(cls, type) and issubclass(cls, Pattern)):
        raise ValueError(f"register takes a class derived from semfocus.Pattern, not {cls!r}")
    if not isinstance(getattr(cls, "input_dependent", None), bool):
        raise ValueError(f"{cls.__name__}.input_dependent must be set to True or False in the class body")
    registry.add(cls)
    return cls
