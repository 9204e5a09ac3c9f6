"""The tasks: each makes examples and can solve them.

Fifteen come from the Chomsky hierarchy benchmark of Delétang et al. (2022), with its token ids; ``listops`` comes from
the Long Range Arena. One file per task, and the file's stem is the task's name.

>>> import numpy as np
>>> from semfocus import tasks
>>> task = tasks.get("even_pairs")
>>> examples = task.sample(np.random.default_rng(0), n=3, length=8)
>>> examples.tokens.shape, examples.targets.shape
(torch.Size([3, 8]), torch.Size([3, 1]))
>>> [task.solve(row) for row in examples.tokens] == examples.targets.tolist()
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from semfocus.registry import Registry

if TYPE_CHECKING:
    from semfocus.tasks.base import Examples, Task

__all__ = ["Examples", "Task", "get", "names", "registry"]

registry: Registry[Task] = Registry("task", "semfocus.tasks")
names, get = registry.names, registry.get


def __getattr__(name: str) -> Any:
    # The base class needs torch, which takes seconds to import; listing names should not wait for it.
    if name in {"Examples", "Task"}:
        return getattr(importlib.import_module("semfocus.tasks.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
