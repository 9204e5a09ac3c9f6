"""Leaving somebody's model exactly as it was, whatever happens in between."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

#: Attributes whose content is restored too.
CONTAINERS = (dict, OrderedDict, list, set)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restores classes, attributes (flags, hooks, configs), buffers and torch's random state at the end.

    >>> layer = nn.Dropout()
    >>> with unchanged(layer):
    ...     _ = layer.eval()
    ...     layer.note = "gone afterwards"
    >>> layer.training, hasattr(layer, "note")
    (True, False)
    """
    modules = [(module, type(module), _Attributes(module)) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    tensors = [*model.parameters(), *model.buffers()]
    cards = sorted({x.device.index for x in tensors if x.device.type == "cuda"})
    with torch.random.fork_rng(cards):
        try:
            yield
        finally:
            for module, cls, attributes in modules:
                if type(module) is not cls:
                    module.__class__ = cls
                attributes.restore(module)
            for buffer, copy in buffers:
                if not torch.equal(buffer, copy):  # writing what is there would still count as a change for autograd
                    with torch.no_grad():
                        buffer.copy_(copy)


class _Attributes:
    """The attributes of a module, and what stood in those that are containers (its parts, hooks, caches)."""

    def __init__(self, module: nn.Module) -> None:
        self.values = dict(vars(module))
        held = [value for value in self.values.values() if type(value) in CONTAINERS]
        self.contents: list[tuple[Any, Any]] = [(container, container.copy()) for container in held]

    def restore(self, module: nn.Module) -> None:
        for container, content in self.contents:
            if _same(container, content):  # what was not touched may belong to others too
                continue
            container.clear()
            if isinstance(container, list):
                container.extend(content)
            else:
                container.update(content)
        vars(module).clear()
        vars(module).update(self.values)


def _same(container: Any, content: Any) -> bool:
    """By identity: the values may be tensors."""
    if isinstance(container, set):
        return bool(container == content)
    keys = (list(container), list(content)) if isinstance(container, dict) else ((), ())
    values = [map(id, x.values() if isinstance(x, dict) else x) for x in (container, content)]
    return keys[0] == keys[1] and list(values[0]) == list(values[1])
