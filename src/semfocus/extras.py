"""Packages that only some parts need: whoever lacks one is told which extra brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(who: str, extra: str) -> Iterator[None]:
    """Around imports: what is missing is named, with what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "semfocus").partition(".")[0]
        if package == "semfocus":  # our own mistake
            raise
        raise ModuleNotFoundError(f"{who} needs {package}: pip install 'semfocus[{extra}]'", name=package) from None
