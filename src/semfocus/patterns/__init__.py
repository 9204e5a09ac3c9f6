"""Patterns: which keys a query keeps. One pattern per file; the file's stem is its name.

>>> get("banded", width=5).label
'banded(width=5)'
"""

from __future__ import annotations

import ast
from typing import Any, TypeVar

from ..registry import Registry, snake_case
from .base import Pattern, View

__all__ = ["Pattern", "View", "find", "get", "names", "parse", "register", "registry"]

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


def parse(text: str) -> Pattern:
    """A pattern as one writes it on a command line: a name, and its knobs in brackets.

    >>> parse("banded(5, global_tokens=1)").label
    'banded(width=5, global_tokens=1)'
    """
    head, bracket, rest = text.strip().partition("(")
    written = snake_case(head.replace("-", "_")) + bracket + rest  # TopK(5) and top-k(5) are top_k(5)
    try:
        call = ast.parse(written, mode="eval").body
        name, values = (call.func, call) if isinstance(call, ast.Call) else (call, None)
        if not isinstance(name, ast.Name) or (values and any(k.arg is None for k in values.keywords)):
            raise ValueError
        positional = [ast.literal_eval(value) for value in values.args] if values else []
        written_knobs = [(str(k.arg), ast.literal_eval(k.value)) for k in values.keywords] if values else []
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"pattern is {text!r}; write a name, or a name with knobs such as top_k(5)") from None
    cls = find(name.id)
    fields = list(getattr(cls, "__dataclass_fields__", {}))
    if positional and not fields:
        raise ValueError(f"pattern is {text!r}; {name.id} has no knobs")
    if len(positional) > 1:
        raise ValueError(f"pattern is {text!r}; only the first knob may go without its name ({', '.join(fields)})")
    knobs: dict[str, Any] = {fields[0]: positional[0]} if positional else {}
    for knob, value in written_knobs:
        if knob in knobs:
            raise ValueError(f"pattern is {text!r}; {knob} is given twice")
        knobs[knob] = value
    return get(name.id, **knobs)
