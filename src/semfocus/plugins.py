"""A user's own file: what it registers joins ours under its own name."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, TypeVar

from . import patterns, studies, tasks
from .patterns.base import Pattern
from .registry import PLUGIN
from .tasks.base import Task

C = TypeVar("C", bound=type[Any])


class PluginError(ValueError):
    """A file that cannot be used. The message is one sentence for its author."""


def register(cls: C) -> C:
    """Class decorator that makes a pattern, task or study known under its name in snake case, wherever ours are."""
    from .lab.study import Study

    if isinstance(cls, type) and issubclass(cls, Pattern):
        patterns.register(cls)
    elif isinstance(cls, type) and issubclass(cls, Task):
        tasks.registry.add(cls)
    elif isinstance(cls, type) and issubclass(cls, Study):
        studies.registry.add(cls)
    else:
        raise ValueError(
            f"register takes a class derived from semfocus.Pattern, tasks.Task or lab.study.Study, not {cls!r}"
        )
    return cls


def load(path: Path) -> None:
    """Runs a user's file, so that what it registers is known."""
    if not path.is_file():
        raise PluginError(f"{path}: no such file")
    # Never the name of a module that exists, and another for another file of the same name.
    name = f"{PLUGIN}{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PluginError(f"{path}: {type(error).__name__}: {error}") from None
