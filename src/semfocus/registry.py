"""Finding things by name: one file per thing, and the file's stem is its name.

>>> from semfocus import patterns
>>> patterns.get("top_k", k=5)
TopK(k=5, sinks=0)
>>> patterns.get("topk", k=5)
Traceback (most recent call last):
ValueError: unknown pattern 'topk'; did you mean 'top_k'?
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
#: How modules begin that were made of a user's file.
PLUGIN = "semfocus_plugin_"
#: Where such a module keeps the bytes of its file as it was when it ran: the file may change, or go.
CONTENT = "__semfocus_content__"


def suggestion(name: object, choices: Iterable[str]) -> str:
    """The end of an error message: the nearest valid name, or all of them where none is near."""
    choices = sorted(choices)
    near = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"choose one of {', '.join(choices)}" if choices else "there is none"


def snake_case(name: str) -> str:
    """``TopK`` -> ``top_k``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def sources(*classes: type, whole: bool | None = None) -> dict[str, dict[str, str]]:
    """A hash of the source of each class that is a user's, to tell it from an earlier one of its name; else nothing.

    Of a plugin that is the ``whole`` file, which may hold functions it needs; of a class made elsewhere its own lines.
    """
    found = {cls.__qualname__: text for cls in classes if (text := _source(cls, whole))}
    return {"sources": found} if found else {}


@lru_cache(maxsize=256)
def _source(cls: type, whole: bool | None) -> str:
    if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return ""
    loaded: bytes | None = getattr(sys.modules.get(cls.__module__), CONTENT, None)
    if whole is None:
        whole = loaded is not None
    try:
        text = (loaded or _file_of(cls)) if whole else inspect.getsource(cls).encode()
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text).hexdigest()[:16]


def _file_of(cls: type) -> bytes:
    with open(inspect.getfile(cls), "rb") as file:
        return file.read()


class Registry(Generic[T]):
    """The instances of one noun: our own, found as files of a package, and what users add from their own files."""

    def __init__(self, noun: str, package: str) -> None:
        self.noun = noun
        self.package = package
        self._added: dict[str, type[T]] = {}
        self._own: dict[str, type[T]] = {}  # as far as they have been asked for

    @cache  # noqa: B019 (registries are few, and live as long as the program)
    def own_names(self) -> tuple[str, ...]:
        """Stems of the package's files, without importing them. ``base`` and ``_private`` files are not instances."""
        path = importlib.import_module(self.package).__path__
        stems = (module.name for module in pkgutil.iter_modules(path))
        return tuple(sorted(stem for stem in stems if stem != "base" and not stem.startswith("_")))

    def names(self) -> list[str]:
        return sorted({*self.own_names(), *self._added})

    def added(self) -> list[str]:
        """The names of what users added, in the order in which they did."""
        return list(self._added)

    def add(self, cls: type[T]) -> type[T]:
        """Registers a user's class under its name in snake case. Registering the same name again replaces it."""
        name = snake_case(cls.__name__)
        if name in self.own_names():
            raise ValueError(f"{self.noun} {name!r} exists already; give the class {cls.__name__} another name")
        self._added[name] = cls
        return cls

    def find(self, name: str) -> type[T]:
        """The class behind a name."""
        known = self._added.get(name) or self._own.get(name)
        if known is not None:
            return known
        if name not in self.own_names():
            raise ValueError(f"unknown {self.noun} {name!r}; {suggestion(name, self.names())}")
        module = importlib.import_module(f"{self.package}.{name}")
        # "listops" is ListOps, "top_k" is TopK: compare without case and underscores.
        wanted = name.replace("_", "")
        for attribute, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__ and attribute.lower() == wanted:
                self._own[name] = cast(type[T], value)
                return self._own[name]
        raise ImportError(f"{module.__name__} must define a class whose name is {name!r} in camel case")

    def get(self, name: str, **options: Any) -> T:
        """An instance, with its options checked by name."""
        cls = self.find(name)
        if abstract := sorted(getattr(cls, "__abstractmethods__", ())):
            raise ValueError(f"{self.noun} {name!r} does not define {', '.join(abstract)}")
        known = inspect.signature(cls).parameters
        for option in options:
            if option not in known:
                raise ValueError(f"{self.noun} {name!r} has no option {option!r}; {suggestion(option, known)}")
        missing = [n for n, p in known.items() if p.default is p.empty and n not in options]
        if missing:
            raise ValueError(f"{self.noun} {name!r} needs {', '.join(missing)}")
        return cls(**options)
