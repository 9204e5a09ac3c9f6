"""Runs many configs of language models into run directories, one after another; survives interruptions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from ..training import checkpoint
from ..training.locks import try_lock
from ..training.progress import Progress
from ..training.run_directory import RunDirectory
from ..training.strict import ConfigError
from ..training.trainer import POLL_EVERY, TrainingError, out_of_memory
from . import distributed
from .config import LanguageConfig
from .data import text_of
from .distributed import Place
from .run import LanguageRun


class LanguageTrainer:
    """Trains runs into ``out``. Calling it again with the same configs goes on where it stopped.

    Started by ``torchrun``, all processes share every model; this one must be the first of them.
    """

    def __init__(
        self,
        out: str | Path,
        *,
        device: str = "cpu",
        threads: int | None = None,
        checkpoint_seconds: float = 60.0,
        progress: Progress | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.out, self.checkpoint_seconds, self.stopping = Path(out), checkpoint_seconds, stopping
        self.threads = threads or 1  # such small models gain nothing from a second one
        self.progress = progress or Progress(None)
        self.place = Place.here()
        self.device = self.place.device(device)

    def run(self, configs: Sequence[LanguageConfig]) -> list[RunDirectory]:
        """All runs, in the order given; those with a summary already are not repeated."""
        wanted = {config.hash: config for config in configs}
        directories = {run: RunDirectory(self.out, run) for run in wanted}
        checkpoint.remove_rest(self.out / "groups")
        unfinished = [run for run in wanted if not directories[run].is_finished()]
        self.place.join(self.device)
        self._check([wanted[run] for run in unfinished])
        self.progress.plan(len(wanted), sum(wanted[run].train.epochs for run in unfinished))
        threads = torch.get_num_threads()
        try:
            if self.device.type == "cpu":
                torch.set_num_threads(self.threads)
            while unfinished:
                self.progress.finished(len(wanted) - len(unfinished))
                if not any(self._claimed(wanted[run]) for run in unfinished):
                    if self.stopping():
                        raise KeyboardInterrupt
                    time.sleep(POLL_EVERY)  # another process trains all that is left
                unfinished = [run for run in unfinished if not directories[run].is_finished()]
        finally:
            torch.set_num_threads(threads)
        self.progress.finished(len(wanted))
        return list(directories.values())

    def _check(self, configs: Sequence[LanguageConfig]) -> None:
        """Before the first run, not in the middle of the night."""
        for config in configs:
            if config.train.batch % self.place.world:
                raise ConfigError(
                    f"train.batch is {config.train.batch}; it must be a multiple of the {self.place.world} processes"
                )
            if config.pattern.batch_dependent and not self.place.alone:
                raise ConfigError(
                    f"pattern is {config.pattern.label}; what it keeps for one example depends on the whole batch, of "
                    f"which each of {self.place.world} processes has a part: train it in one process, without torchrun"
                )
            text_of(config)

    def _claimed(self, config: LanguageConfig) -> bool:
        """Trains a run unless another process has it, or has finished it by now."""
        folder = self.out / "groups" / config.hash
        lock: IO[str] | None = try_lock(folder / ".lock")
        if lock is None:
            return False
        with lock:
            if RunDirectory(self.out, config.hash).is_finished():
                checkpoint.remove(folder)
                return True
            self.place.told({"config": config.to_dict(), "out": str(self.out), "threads": self.threads})
            try:
                self._one(config)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                raise TrainingError(
                    f"out of memory in run {config.hash}; use a smaller train.batch, model or context"
                ) from None
        return True

    def _one(self, config: LanguageConfig) -> None:
        def after(epoch: int, row: dict[str, Any]) -> None:
            self.progress.epoch(epoch, config.train.epochs, [row], 1)

        run = LanguageRun(config, text_of(config), self.out, self.device, self.place, self.threads)
        run.train(after, self.stopping, self.checkpoint_seconds, self.progress.say)


def follow(device: str) -> None:
    """Takes part in what the first process trains, until it has no more."""

    def work(job: dict[str, Any], place: Place, own: torch.device) -> None:
        config = LanguageConfig.from_dict(job["config"])
        torch.set_num_threads(job["threads"])
        LanguageRun(config, text_of(config), Path(job["out"]), own, place, job["threads"]).train()

    distributed.follow(device, work)
