"""What can be had without understanding: drawn as lines, so that a plateau is recognised for what it is."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np

from .. import tasks
from ..training.protocol import TEXT_TASK, RunConfig

#: ListOps at the paper's settings (shares stated with the task's rules): guessing from the operator at the root,
#: and from that operator applied to the digits that are its direct arguments.
LISTOPS = {"root operator only": 0.347, "root operator over its direct digits": 0.494}
#: Stack Manipulation at length 40, read as the top of the final stack: the best guess from its last tokens, learnt from
#: 600,000 and 6,000,000 examples and counted on 400,000 others (2026-11-16, commit 12a9bdf).
STACK, STACK_LENGTH = {"last token": 0.833, "last 8 tokens": 0.963}, 40
SAMPLE = 20_000


def baselines(config: RunConfig) -> dict[str, float]:
    """Accuracies by name: the majority class, and a task's known shortcuts. None of a text, whose files may be gone."""
    if config.task.name == TEXT_TASK:
        return {}
    lines = {"majority class": chance(config)}
    if config.data.random_labels:
        return lines
    if config.task.make() == tasks.get("listops"):
        lines |= LISTOPS
    if config.task.name == "stack_manipulation" and config.task.length == STACK_LENGTH:
        lines |= STACK
    return lines


def shortcut(config: RunConfig) -> float:
    """The best accuracy among the known baselines, of which the majority class is one."""
    return max(baselines(config).values())


def chance(config: RunConfig) -> float:
    """The share of the most frequent class, from a large sample of its own."""
    return _majority(config.task.name, json.dumps(config.task.options, sort_keys=True), config.task.length)


@lru_cache(maxsize=256)
def _majority(name: str, options: str, length: int) -> float:
    n = SAMPLE if name != "listops" else SAMPLE // 4
    targets = tasks.get(name, **json.loads(options)).sample(np.random.default_rng(0), n, length).targets
    counts = np.bincount(targets[:, 0].numpy())
    return float(counts.max() / counts.sum())
