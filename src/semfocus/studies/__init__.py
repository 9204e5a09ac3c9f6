"""The studies: one question per file, and the file's stem is the study's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.registry import Registry

if TYPE_CHECKING:
    from semfocus.lab.study import Study

__all__ = ["get", "names", "registry"]

registry: Registry[Study] = Registry("study", "semfocus.studies")


def names() -> list[str]:
    """The names of all studies, without importing any of them."""
    return registry.names()


def get(name: str) -> Study:
    """The study of that name."""
    return registry.get(name)
