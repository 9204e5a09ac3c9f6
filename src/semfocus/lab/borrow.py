"""Runs that another study of the same folder has trained already. A run is its config, whoever asked for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..training.files import StorageError, explained
from ..training.run_directory import RunDirectory
from .configs import Config
from .results import Run
from .store import Store


def borrow(store: Store, configs: Sequence[Config], say: Callable[[str], None], weights: bool = False) -> int:
    """Brings finished runs of neighbouring studies into this one's folder; returns how many.

    ``weights``: only those that still have them, for a study that measures trained models.
    Files are linked where the file system can, else copied: nothing changes a finished run's files in place.
    """
    taken = sum(_bring(theirs.path, store.run(theirs.run).path) for theirs in lendable(store, configs, weights))
    if taken:
        say(f"{taken} runs are those of other studies in {store.path.parent}, and are not trained again")
    return taken


def lendable(store: Store, configs: Sequence[Config], weights: bool = False) -> Iterator[RunDirectory]:
    """Finished, sound runs of neighbouring studies that this one has not begun itself, one for each such config."""
    neighbours = [path.parent for path in sorted(store.path.parent.glob("*/runs")) if path.parent != store.path]
    for config in configs if neighbours else ():
        if not store.run(config.hash).path.exists():
            theirs = (RunDirectory(path, config.hash) for path in neighbours)
            found = next((run for run in theirs if _is_sound(run, config.seed, weights)), None)
            if found is not None:
                yield found


def _is_sound(run: RunDirectory, seed: int, weights: bool) -> bool:
    """A damaged one is trained anew: borrowed, it would come back however often its copy is deleted."""
    if not run.is_finished() or (weights and not run.has_weights()):
        return False
    found = Run(seed, run)
    try:
        run.check_weights()
        _ = found.rows, found.probes, found.environment  # who reads them is told what is damaged
    except StorageError:
        return False
    return True


def _bring(source: Path, target: Path) -> int:
    """All files, then the name: a reader never meets half a run. 0 if another process was faster."""
    half = target.with_name(f".{target.name}.{os.getpid()}")
    with explained(target, "write"):
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(source, half, copy_function=_link)
        try:
            half.rename(target)
        except OSError:
            shutil.rmtree(half, ignore_errors=True)
            if not target.exists():
                raise
            return 0
    return 1


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
