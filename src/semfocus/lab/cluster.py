"""Many machines: populations as Ray tasks. Ray finds the machines, schedules, and retries when one dies.

Where the store's folder is visible to a worker (one machine, or a shared file system) it trains straight into it,
with checkpoints, so a retry goes on where the dead worker stopped. Elsewhere it trains into a folder of its own and
sends the finished runs back. Either way the driver ends with the same store as on one machine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from .. import plugins
from ..training.files import write_atomic
from ..training.groups import CPU_MEMBERS, Group, members_that_fit, plan, recorded
from ..training.locks import locked
from ..training.progress import Progress
from ..training.protocol import RunConfig
from ..training.run_directory import RunDirectory
from ..training.trainer import Trainer, TrainingError
from .configs import Config
from .execute import Executor
from .store import Store

#: How often a population is tried again when its worker or node dies, before the study gives up.
RETRIES = 5
POLL_EVERY = 0.5
#: Seconds until a shared file system shows every machine what another one wrote.
LATE = 60.0
#: So many runs are named that did not come back.
NAMED = 3
TOKEN = ".visible"
Files = dict[str, dict[str, bytes]]


@dataclass(frozen=True)
class Job:
    """What a worker is told."""

    configs: tuple[dict[str, Any], ...]
    store: str
    token: str  # the content of the store's token file: who reads it sees the same folder
    device: str
    threads: int
    plugins: tuple[tuple[str, bytes], ...]  # name and content of each file


class Board:
    """An actor to which workers post their progress and from which the driver reads it."""

    def __init__(self) -> None:
        self.posted: list[tuple[Any, ...]] = []

    def post(self, *entry: Any) -> None:
        self.posted.append(entry)

    def read(self) -> list[tuple[Any, ...]]:
        posted, self.posted = self.posted, []
        return posted


class RemoteProgress(Progress):
    """Sends what a ``Progress`` would show to the driver, at most once a second."""

    def __init__(self, board: Any) -> None:
        super().__init__(None)
        self.board = board
        self.sent = 0.0
        self.unsent = 0

    def say(self, sentence: str) -> None:
        self.board.post.remote("say", sentence)

    def epoch(self, epoch: int, epochs: int, rows: list[dict[str, Any]], worked: int) -> None:
        self.unsent += worked
        now = time.monotonic()
        if now - self.sent >= 1.0 or epoch == epochs:
            self.board.post.remote("epoch", epoch, epochs, rows, self.unsent)
            self.sent, self.unsent = now, 0


def train_population(job: Job, board: Any) -> Files:
    """On a worker: trains one population; returns its files, or nothing where they are in the store already."""
    _load_plugins(job)
    configs = [RunConfig.from_dict(data) for data in job.configs]
    store = Path(job.store)
    visible = _read(store / TOKEN) == job.token
    out = store if visible else Path(tempfile.mkdtemp(prefix="semfocus-"))
    try:
        Trainer(out, device=job.device, threads=job.threads, progress=RemoteProgress(board)).run(configs)
        if visible:
            return {}
        folders = [RunDirectory(out, config.hash).path for config in configs]
        return {folder.name: _files(folder) for folder in folders}
    finally:
        if not visible:
            shutil.rmtree(out, ignore_errors=True)


def _files(folder: Path) -> dict[str, bytes]:
    """Everything in a folder, by its name there; snapshots lie in a folder of their own."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def how_many_fit(job: Job) -> int:
    """On a worker with a GPU: the largest population of such runs."""
    import torch

    _load_plugins(job)
    return members_that_fit(RunConfig.from_dict(job.configs[0]), torch.device("cuda"))


def _load_plugins(job: Job) -> None:
    for name, content in job.plugins:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)  # to the byte: runs are named by it
            plugins.load(path)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def on_ray(
    address: str | None,
    device: str,
    threads: int | None,
    progress: Progress,
    stopping: Callable[[], bool],
    plugin_files: Sequence[Path],
) -> Executor:
    """An executor that hands populations to Ray. ``address`` None: a running cluster, or else this machine."""

    def train(store: Store, given: Sequence[Config]) -> None:
        configs = [config for config in given if isinstance(config, RunConfig)]
        if len(configs) < len(given):
            raise TrainingError("--on ray trains classifiers only; start language models with torchrun (--on local)")
        _connect(address)
        files = tuple((path.name, plugins.content(path)) for path in plugin_files)
        Driver(store, device, threads or 1, progress, stopping, files).run(configs)

    return train


def _connect(address: str | None) -> None:
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        ray.init(address=address or os.environ.get("RAY_ADDRESS"), **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise TrainingError(f"no Ray cluster at {address or 'this machine'} ({str(error).splitlines()[0]})") from None


class Driver:
    """Plans the populations, submits them, and puts their results into the store."""

    def __init__(
        self,
        store: Store,
        device: str,
        threads: int,
        progress: Progress,
        stopping: Callable[[], bool],
        files: tuple[tuple[str, bytes], ...],
    ) -> None:
        self.store, self.threads, self.progress, self.stopping, self.files = store, threads, progress, stopping, files
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        if device == "cuda" and not gpus:
            raise TrainingError("--device is cuda; the Ray cluster has no GPU (try cpu)")
        self.device = "cuda" if gpus and device != "cpu" else "cpu"
        self.slots = gpus if self.device == "cuda" else max(int(resources.get("CPU", 1)) // threads, 1)
        self.wanted = {"num_gpus": 1} if self.device == "cuda" else {"num_cpus": threads}
        self.token = secrets.token_hex(16)
        self.board = ray.remote(num_cpus=0)(Board).remote()

    def run(self, configs: Sequence[RunConfig]) -> None:
        """Returns when every run is in the store."""
        wanted = {config.hash: config for config in configs}
        unfinished = self._unfinished(wanted)
        self.progress.plan(len(wanted), sum(config.train.epochs for config in unfinished.values()))
        self.progress.finished(len(wanted) - len(unfinished))
        if not unfinished:
            return
        write_atomic(self.store.path / TOKEN, self.token.encode())
        with locked(self.store.path):
            begun = recorded(self.store.path, set(unfinished))
        # Of a group some members may be over, or may not be asked for.
        groups = [group.of(i for i, run in enumerate(group.runs) if run in unfinished) for group in begun]
        grouped = {run for group in groups for run in group.runs}
        rest = [config for run, config in unfinished.items() if run not in grouped]
        groups += plan(rest, self._members(len(unfinished)), self.device == "cuda")
        self.progress.say(
            f"{len(groups)} populations on {self.slots} {'GPUs' if self.device == 'cuda' else 'CPU slots'}"
        )
        self._until_done([self._job(group) for group in groups], wanted)
        self._check(wanted)

    def _check(self, wanted: dict[str, RunConfig]) -> None:
        """Every run must be there when its worker has ended without a complaint."""
        end = time.monotonic() + LATE
        while (lost := self._unfinished(wanted)) and time.monotonic() < end and not self.stopping():
            time.sleep(POLL_EVERY)
        if lost and self.stopping():
            raise KeyboardInterrupt
        if lost:
            named = [f"{run} ({config.pattern.label}, seed {config.seed})" for run, config in lost.items()]
            more = [f"{len(named) - NAMED} more"] if len(named) > NAMED else []
            raise TrainingError(
                f"{len(lost)} of {len(wanted)} runs are not in {self.store.path / 'runs'} though their workers ended: "
                f"{', '.join([*named[:NAMED], *more])}; does every machine have the same version of semfocus?"
            )

    def _unfinished(self, wanted: dict[str, RunConfig]) -> dict[str, RunConfig]:
        return {run: config for run, config in wanted.items() if not self.store.run(run).is_finished()}

    def _job(self, group: Group) -> Job:
        configs = tuple(config.to_dict() for config in group.configs)
        return Job(configs, str(self.store.path.resolve()), self.token, self.device, self.threads, self.files)

    def _members(self, runs: int) -> Callable[[RunConfig], int]:
        """Populations that fit, and small enough that every slot has one."""
        share = -(-runs // self.slots)
        if self.device == "cpu":
            return lambda config: min(CPU_MEMBERS, share)
        ask = ray.remote(**self.wanted)(how_many_fit)
        return lambda config: min(int(ray.get(ask.remote(self._job(Group((config,)))))), share)

    def _until_done(self, jobs: list[Job], wanted: dict[str, RunConfig]) -> None:
        # Ray's own retries first; what it gives up on is submitted again here, so a lost node does not end a study.
        task = ray.remote(**self.wanted, max_retries=RETRIES)(train_population)
        waiting = {task.remote(job, self.board): (job, RETRIES) for job in jobs}
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=POLL_EVERY)
            for reference in done:
                job, left = waiting.pop(reference)
                try:
                    self._keep(ray.get(reference))
                except ray.exceptions.RayTaskError as error:
                    raise TrainingError(f"a population failed on its worker: {error.cause!r}") from None
                except ray.exceptions.RayError as error:
                    if not left:
                        raise TrainingError(f"a population died {RETRIES + 1} times ({type(error).__name__})") from None
                    self.progress.say(f"a worker died ({type(error).__name__}); its population is submitted again")
                    waiting[task.remote(job, self.board)] = (job, left - 1)
            self._show(wanted)
            if self.stopping():
                for reference in waiting:
                    ray.cancel(reference, force=True)
                raise KeyboardInterrupt

    def _show(self, wanted: dict[str, RunConfig]) -> None:
        for kind, *entry in ray.get(self.board.read.remote()):
            if kind == "say":
                self.progress.say(*entry)
            else:
                self.progress.epoch(*entry)
        self.progress.finished(len(wanted) - len(self._unfinished(wanted)))

    def _keep(self, files: Files) -> None:
        """Runs sent back by a worker, summary last: a run with a summary is complete."""
        for run, contents in files.items():
            folder = self.store.run(run).path
            for name in sorted(contents, key=lambda name: name == "summary.json"):
                write_atomic(folder / name, contents[name])
