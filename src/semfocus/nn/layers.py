"""The attention layers of somebody's model: how they are counted, named, chosen and described."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from torch import nn

from ..patterns._positions import follows_positions
from ..patterns.base import Pattern
from ..registry import suggestion


@dataclass(frozen=True)
class Layer:
    """One attention layer: its place among the model's, its name in ``named_modules``, its class."""

    index: int
    name: str
    kind: str
    cross: bool = False  # do queries and keys come from different sequences?


@dataclass(frozen=True)
class Focused:
    """What ``focus`` did. ``left`` holds the layers it did not touch, each with the reason.

    ``unreached``: names and classes of modules that attend by code of their own, which ``focus`` cannot change.
    """

    pattern: Pattern
    changed: tuple[Layer, ...]
    left: tuple[tuple[Layer, str], ...] = ()
    unreached: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        total = len(self.changed) + len(self.left)
        lines = [f"{self.pattern.label} in {len(self.changed)} of {total} attention layers"]
        lines += [f"  {layer.index}  {layer.name}  {layer.kind}" for layer in self.changed]
        if self.left:
            lines.append("left as they were")
            lines += [f"  {layer.index}  {layer.name}  {layer.kind}: {reason}" for layer, reason in self.left]
        if self.unreached:
            lines.append("beyond reach: they attend by code of their own")
            lines += [f"  {name}  {kind}" for name, kind in self.unreached]
        return "\n".join(lines)


def chosen(layers: Sequence[Layer], wanted: Iterable[SupportsIndex | str] | None, pattern: Pattern) -> Focused:
    """Which layers get the pattern: those wanted, by index or name, or all (None) in which it has a meaning.

    In cross attention, queries and keys stand in different sequences: there a pattern over positions means nothing.
    """
    meaningless = f"cross attention, and {pattern.label} follows positions, which two sequences do not share"
    if wanted is None:
        skipped = {layer.index for layer in layers if layer.cross and follows_positions(pattern)}
        reasons = dict.fromkeys(skipped, meaningless)
        picked = {layer.index for layer in layers} - skipped
    else:
        picked = {_index(choice, layers) for choice in _listed(wanted)}
        reasons = {layer.index: "not in layers" for layer in layers if layer.index not in picked}
        for layer in layers:
            if layer.index in picked and layer.cross and follows_positions(pattern):
                raise ValueError(f"layers names {layer.name!r}; it is {meaningless}: use a pattern such as TopK")
    if not picked:
        raise ValueError(f"layers is {wanted!r}; no attention layer is left for {pattern.label}: name at least one")
    return Focused(
        pattern,
        tuple(layer for layer in layers if layer.index in picked),
        tuple((layer, reasons[layer.index]) for layer in layers if layer.index not in picked),
    )


def _listed(wanted: Iterable[SupportsIndex | str]) -> list[SupportsIndex | str]:
    if isinstance(wanted, str) or not isinstance(wanted, Iterable):
        raise ValueError(f"layers is {wanted!r}; it must be a list of indices or names, such as [0, 1]")
    return list(wanted)


def _index(choice: SupportsIndex | str, layers: Sequence[Layer]) -> int:
    if isinstance(choice, str):
        names = {layer.name: layer.index for layer in layers}
        if choice not in names:
            raise ValueError(f"layers names {choice!r}; {suggestion(choice, names)}")
        return names[choice]
    if isinstance(choice, bool) or not isinstance(choice, SupportsIndex):
        raise ValueError(f"layers holds {choice!r}; it must hold indices from 0 to {len(layers) - 1}, or names")
    index = operator.index(choice)
    if not 0 <= index < len(layers):
        raise ValueError(f"layers holds {index}; this model's attention layers are 0 to {len(layers) - 1}")
    return index


def described(modules: dict[str, nn.Module], cross: set[str]) -> list[Layer]:
    """The layers of these modules, numbered in their order."""
    return [Layer(i, name, type(m).__name__, name in cross) for i, (name, m) in enumerate(modules.items())]
