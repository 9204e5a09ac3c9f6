"""A user's own file: what it registers joins ours under its own name."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from . import patterns, studies, tasks
from .patterns.base import Pattern
from .registry import CONTENT, PLUGIN, Registry
from .tasks.base import Task

C = TypeVar("C", bound=type[Any])


class PluginError(ValueError):
    """A file that cannot be used. The message is one sentence for its author."""


def blamed(error: BaseException | None) -> str | None:
    """One sentence on an exception that came out of a user's file, for its author; None where it is not the file's.

    What our own functions raise when a file calls them wrongly is the file's; any other failure in them is ours.
    """
    sentence, method = None, ""
    for frame, line in traceback.walk_tb(getattr(error, "__traceback__", None)):
        module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if module.startswith(PLUGIN) and file == frame.f_globals.get("__file__"):  # not what dataclasses wrote into it
            method = method or frame.f_code.co_qualname
            sentence = f"{method}: {type(error).__name__}: {error} ({file}:{line})"
        elif module.partition(".")[0] == __package__ and not isinstance(error, ValueError | LookupError):
            sentence = None
    return None if sentence is None else " ".join(sentence.split())


def register(cls: C) -> C:
    """Class decorator that makes a pattern, task, diagnostic or study known by its name in snake case, as ours are."""
    from . import diagnostics
    from .lab.study import Study

    adders: dict[type, Callable[[Any], object]] = {
        Pattern: patterns.register,
        Task: tasks.registry.add,
        diagnostics.Diagnostic: diagnostics.registry.add,
        Study: studies.registry.add,
    }
    base = next((base for base in adders if isinstance(cls, type) and issubclass(cls, base)), None)
    if base is None:
        raise ValueError(
            "register takes a class derived from semfocus.Pattern, tasks.Task, diagnostics.Diagnostic or "
            f"lab.study.Study, not {cls!r}"
        )
    _check_methods(cls, base)
    if base in (Pattern, Task):
        _check_dataclass(cls)
    adders[base](cls)
    return cls


def _check_dataclass(cls: type) -> None:
    """Knobs are a dataclass's fields, and what is equal must be the same key of a table."""
    if not dataclasses.is_dataclass(cls) or not getattr(cls, "__dataclass_params__").frozen:  # noqa: B009 (mypy)
        raise ValueError(
            f"class {cls.__name__} must be a frozen dataclass before it is registered; write @dataclass(frozen=True) "
            "between @semfocus.register and the class"
        )


def _check_methods(cls: type, base: type) -> None:
    """Every method must take what ours of that name takes: it is called with that, perhaps hours later."""
    for name, ours in vars(base).items():
        method = getattr(cls, name)
        if inspect.isfunction(ours) and inspect.isfunction(method):
            wanted = inspect.signature(ours).parameters
            try:
                inspect.signature(method).bind(*wanted)
            except TypeError as error:
                raise ValueError(f"{cls.__name__}.{name} must take ({', '.join(wanted)}): {error}") from None


def load(path: Path) -> None:
    """Runs a user's file, so that what it registers is known."""
    if not path.is_file():
        raise PluginError(f"{path}: no such file")
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        setattr(module, CONTENT, path.read_bytes())
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PluginError(f"{path}: {type(error).__name__}: {error}") from None


def load_all(paths: Sequence[Path]) -> None:
    """Files that are used together: no two may register the same name, since one would stand for both."""
    from . import diagnostics

    registries: tuple[Registry[Any], ...] = (patterns.registry, tasks.registry, diagnostics.registry, studies.registry)
    owners: dict[tuple[str, str], Path] = {}
    for path in paths:
        load(path)
        for registry in registries:
            for name in registry.added():
                if registry.find(name).__module__ != _module_name(path):
                    continue
                other = owners.setdefault((registry.noun, name), path)
                if other.resolve() != path.resolve():
                    raise PluginError(f"{path}: {registry.noun} {name!r} is in {other} too; rename one of them")


def content(path: Path) -> bytes:
    """The file as it was when it was loaded: what everything it registered is known by."""
    found: bytes = getattr(sys.modules[_module_name(path)], CONTENT)
    return found


def _module_name(path: Path) -> str:
    """Never that of a module that exists, and another for another file of the same name."""
    return f"{PLUGIN}{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
