"""Runs many configs into run directories: groups them, one process trains each group, survives interruptions."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import torch

from . import checkpoint
from .group_training import GroupTraining
from .groups import Group, members_that_fit, plan, recorded, remove_ended
from .locks import locked, try_lock
from .progress import Progress
from .protocol import RunConfig
from .run_directory import RunDirectory

#: Seconds between looks at what another process is doing.
POLL_EVERY = 0.5


class TrainingError(Exception):
    """Training cannot go on. The message is one sentence for the user."""


def out_of_memory(error: BaseException) -> bool:
    """Whether that is what went wrong. A CPU's allocator has no exception of its own, and numbers may be beyond it."""
    said = ("allocate memory", "size calculation overflowed")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in said)


class Trainer:
    """Trains runs into ``out``. Calling it again with the same configs goes on where it stopped."""

    def __init__(
        self,
        out: str | Path,
        *,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        checkpoint_seconds: float = 60.0,
        checkpoint_epochs: int | None = None,
        progress: Progress | None = None,
        stopping: Callable[[], bool] = lambda: False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.out = Path(out)
        self.device = torch.device(device)
        self.threads = threads
        self.checkpoint_seconds = checkpoint_seconds
        self.checkpoint_epochs = checkpoint_epochs
        self.progress = progress or Progress(None)
        self.stopping = stopping  # asked after every epoch: if so, a checkpoint is written and training ends
        self.dtype = dtype

    def run(self, configs: Sequence[RunConfig]) -> list[RunDirectory]:
        """All runs, in the order given; those with a summary already are not repeated.

        Several processes may train into one folder: each group is claimed by one of them, and what a killed process
        leaves behind is taken over by the others.
        """
        wanted = {config.hash: config for config in configs}
        directories = {run: RunDirectory(self.out, run) for run in wanted}
        threads = torch.get_num_threads()
        try:
            self._train(wanted, directories)
        finally:
            torch.set_num_threads(threads)
        return list(directories.values())

    def _train(self, wanted: dict[str, RunConfig], directories: dict[str, RunDirectory]) -> None:
        remove_ended(self.out)
        unfinished = {run: config for run, config in wanted.items() if not directories[run].is_finished()}
        self.progress.plan(len(wanted), sum(config.train.epochs for config in unfinished.values()))
        waiting = False
        while unfinished:
            self.progress.finished(len(wanted) - len(unfinished))
            claimed = self._claim(unfinished)
            if claimed is not None:
                group, lock = claimed
                with lock:
                    if not self._fits(group):
                        self._halve(group)
            else:
                if self.stopping():
                    raise KeyboardInterrupt
                if not waiting:
                    self.progress.say(f"another process trains the last {len(unfinished)} runs; waiting for them")
                waiting = True
                time.sleep(POLL_EVERY)
            unfinished = {run: config for run, config in unfinished.items() if not directories[run].is_finished()}
        self.progress.finished(len(wanted))

    def _claim(self, unfinished: dict[str, RunConfig]) -> tuple[Group, IO[str]] | None:
        """The next group that no other process has, with its lock; None where others have all that is left."""
        with locked(self.out):
            groups = recorded(self.out, set(unfinished))
            grouped = {run for group in groups for run in group.runs}
            # A group that is recorded no longer may have ended since the caller looked: its runs are over.
            waiting = {run for run in unfinished.keys() - grouped if not RunDirectory(self.out, run).is_finished()}
            rest = [config for run, config in unfinished.items() if run in waiting]
            on_gpu = self.device.type == "cuda"
            groups += plan(rest, lambda config: members_that_fit(config, self.device), on_gpu)
            for group in groups:
                lock = try_lock(group.folder(self.out) / ".lock")
                if lock is None:
                    continue
                left = group.left(self.out)
                if len(left) == len(group.configs):
                    group.record(self.out)
                    return group, lock
                with lock:  # the others are over by now; they may have come from another machine
                    groups += self._divide(group, left)  # the next of this loop
        return None

    def _fits(self, group: Group) -> bool:
        """Trains a group to its end; False if the device's memory did not hold it."""
        try:
            GroupTraining(self, group).run()
            return True
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        # Only here, outside the handler, are the failed step's tensors free to go.
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return False

    def _halve(self, group: Group) -> None:
        """Leaves two groups in the place of one that did not fit, each with its part of the last checkpoint."""
        members = len(group.configs)
        if members == 1:
            raise TrainingError(
                f"out of memory with a single model of run {group.runs[0]}; use a smaller batch, model or length"
            )
        middle = members // 2
        self.progress.say(f"out of memory with {members} models at once; going on with groups of {members - middle}")
        with locked(self.out):
            self._divide(group, range(middle), range(middle, members))

    def _divide(self, group: Group, *parts: Sequence[int]) -> list[Group]:
        """Leaves groups of some of its members in the place of one, each with its part of the last checkpoint."""
        folder = group.folder(self.out)
        found = checkpoint.load(folder, self.progress.say)
        groups = []
        for members in filter(None, parts):
            part = group.of(members)
            if found is not None:
                state = {name: tensor[list(members)] for name, tensor in found[1].items()}
                checkpoint.save(part.folder(self.out), found[0], state)
            groups.append(part)
        for part in groups:  # only now: a group that is recorded replaces the one it came from
            part.record(self.out)
        checkpoint.remove(folder)
        return groups
