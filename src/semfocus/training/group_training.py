"""One group of runs, trained in lock step: epochs, evaluations, probes, diagnostics, checkpoints."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import diagnostics
from . import checkpoint, environment
from .groups import Group
from .population import Measured, Population
from .run_directory import RunDirectory
from .threads import choose_threads

if TYPE_CHECKING:
    from .trainer import Trainer

#: Seconds between writing metrics to disk. What is in memory only is computed again after a crash.
FLUSH_EVERY = 2.0
#: Measured every ``train.diagnose_every`` epochs.
DIAGNOSTICS = ("dispersion", "separation", "in_degree", "entropy", "effective_support", "kept_mass", "weight_norms")


class GroupTraining:
    """One group from its last checkpoint (or the beginning) to its end."""

    def __init__(self, trainer: Trainer, group: Group) -> None:
        self.trainer, self.group = trainer, group
        self.out, self.say = trainer.out, trainer.progress.say
        self.folder = group.folder(trainer.out)
        self.config = group.configs[0].train
        self.population = Population(group.configs, trainer.device, dtype=trainer.dtype)
        self.probed_steps = self.config.probed_steps(self.population.steps_per_epoch)
        if trainer.device.type == "cpu":  # a GPU's epochs are short, and its steps are queued long before they are done
            self.population.watch = trainer.progress.within
        self.directories = [RunDirectory(trainer.out, run) for run in group.runs]
        self.diverged = torch.full((len(group.configs),), -1, dtype=torch.int64)  # epoch at which, or -1
        self.rows: list[list[dict[str, Any]]] = [[] for _ in group.configs]  # not yet on disk
        self.probes: list[list[dict[str, Any]]] = [[] for _ in group.configs]
        self.newest: list[dict[str, Any]] = []
        self.flushed = self.saved = time.monotonic()
        self.measured = time.perf_counter()

    def run(self) -> None:
        self._choose_threads()
        done = self._restore()
        self._start(done)
        if done == 0:
            self._measure(0, None)
            self._flush()
            self._keep_weights(0)
        self.trainer.progress.work -= done * len(self.directories)
        for epoch in range(done, self.config.epochs):
            self._epoch(epoch)
        self._finish()

    def _choose_threads(self) -> None:
        if self.trainer.device.type == "cpu":
            threads = choose_threads(self.population, self.trainer.threads or self.group.threads)
            self.group = Group(self.group.configs, threads)

    def _restore(self) -> int:
        """Loads the newest sound checkpoint; returns the number of epochs that are done."""
        found = checkpoint.load(self.folder, self.say)
        if found is None:
            return 0
        epoch, state = found
        if (broken := self._with_a_gap(epoch, state["diverged"])) is not None:
            self.say(f"the curve of run {broken} lacks epochs up to {epoch}; starting its group from the beginning")
            return 0
        for name, tensor in self._state().items():
            tensor.copy_(state[name])
        # Epochs set it themselves, but after the last one there is still the test to come.
        self.population.step_index.fill_(epoch * self.population.steps_per_epoch)
        self.say(f"going on with {len(self.directories)} runs after epoch {epoch}")
        return epoch

    def _with_a_gap(self, done: int, diverged: Tensor) -> str | None:
        """A run whose curve on disk does not reach its checkpoint: what is missing can only be trained again."""
        for directory, broke in zip(self.directories, diverged.tolist(), strict=True):
            end = done if broke < 0 else broke - 1
            wanted = {*range(0, end + 1, self.config.eval_every), *({end} if end == self.config.epochs else ())}
            probed = self.config.probed_steps(self.population.steps_per_epoch, end)
            if directory.lacks(wanted) or directory.lacks_probes(probed):
                return directory.run
        return None

    def _state(self) -> dict[str, Tensor]:
        """What a checkpoint holds: all of it has one row per member."""
        state = self.population.optimiser.state()
        return {**state, "alive": self.population.alive, "diverged": self.diverged}

    def _start(self, done: int) -> None:
        facts = environment.describe(self.trainer.device) | {
            "precision": self.group.configs[0].precision,
            "dtype": str(self.trainer.dtype).removeprefix("torch."),
            "threads": self.group.threads,
            "population": len(self.directories),
        }
        for i, (directory, config) in enumerate(zip(self.directories, self.group.configs, strict=True)):
            own = facts | {"implementation": self.population.implementation(i)}
            directory.start(config, own, done if done else -1)
        self.group.record(self.out)

    def _epoch(self, epoch: int) -> None:
        before = epoch * self.population.steps_per_epoch
        probes: list[tuple[int, Measured]] = []

        def probe(step: int) -> None:
            if before + step + 1 in self.probed_steps:
                probes.append((before + step + 1, self.population.evaluate("train", self.config.probe_examples)))

        probing = self.probed_steps and before < self.probed_steps[-1]
        running = self.population.train_epoch(epoch, probe if probing else None)
        done = epoch + 1
        last = done == self.config.epochs
        if done % self.config.eval_every == 0 or last:
            self._measure(done, running)
        else:
            self._note_divergence(done, self.population.alive.cpu())
        for step, measured in probes:
            self._add_probe(done, step, measured)
        self._keep_weights(done)  # before the checkpoint: what goes on from there need not look back
        self.trainer.progress.epoch(done, self.config.epochs, self.newest, len(self.directories))
        now = time.monotonic()
        if now - self.flushed >= FLUSH_EVERY or last:
            self._flush()
        every = self.trainer.checkpoint_epochs
        stopping = self.trainer.stopping()
        if now - self.saved >= self.trainer.checkpoint_seconds or (every and done % every == 0) or last or stopping:
            self._flush()
            checkpoint.save(self.folder, done, self._state())
            self.saved = now
        if stopping and not last:
            raise KeyboardInterrupt

    def _measure(self, epoch: int, running: Measured | None) -> None:
        """Evaluates all members and adds a line for each that has not diverged before."""
        columns: dict[str, Tensor] = {}
        for split in ("train", "heldout"):
            measured = self.population.evaluate(split)
            columns |= measured.columns(split, self.population.model.config.read_out == "tape")
        if running is not None:
            columns |= {"running_loss": running.loss, "running_accuracy": running.accuracy}
            if running.gradient_norm is not None and running.gradient_deviation is not None:
                columns |= {"gradient_norm": running.gradient_norm, "gradient_deviation": running.gradient_deviation}
        # The only wait for the device in an epoch.
        table = torch.stack([column.double() for column in columns.values()] + [self.population.alive.double()]).cpu()
        now = time.perf_counter()
        seconds, self.measured = now - self.measured, now  # of the whole population, since its last line
        before = self.diverged.clone()
        self._note_divergence(epoch, table[-1].bool() & table[0].isfinite())
        self.newest = []
        diagnosed = self._diagnose(epoch)
        for i, values in enumerate(table[:-1].T.tolist()):
            if before[i] < 0:
                row = {"epoch": epoch, **dict(zip(columns, values, strict=True)), "seconds": round(seconds, 4)}
                if diagnosed is not None:
                    row["diagnostics"] = diagnosed[i]
                self.rows[i].append(row)
                self.newest.append(row)

    def _diagnose(self, epoch: int) -> list[dict[str, Any]] | None:
        """Per member, what its attention does on its first training examples; None when it is not time for it."""
        every = self.config.diagnose_every
        if not every or (epoch % every and epoch != self.config.epochs):
            return None
        split = self.population.splits["train"]
        first = torch.arange(min(self.config.diagnose_examples, split.examples), device=self.population.device)
        tokens, _, _ = split.take(first.expand(len(self.directories), -1))
        probes = diagnostics.Probe.of_population(self.population.model, tokens)
        measured = {name: diagnostics.get(name) for name in DIAGNOSTICS}
        return [{name: one.measure(probe)["pooled"] for name, one in measured.items()} for probe in probes]

    def _keep_weights(self, epoch: int) -> None:
        """Snapshots of the members that have not diverged, where it is this epoch's turn."""
        every = self.config.keep_weights_every
        if not every or (epoch % every and epoch != self.config.epochs):
            return
        for i in (self.diverged < 0).nonzero().flatten().tolist():
            self.directories[i].keep_weights(epoch, self.population.weights_of(i))

    def _note_divergence(self, epoch: int, alive: Tensor) -> None:
        newly = (self.diverged < 0) & ~alive
        self.diverged[newly] = epoch
        self.population.alive &= alive.to(self.population.device)
        for i in newly.nonzero().flatten().tolist():
            self.say(f"run {self.group.runs[i]} diverged in epoch {epoch}; its neighbours go on")

    def _add_probe(self, epoch: int, step: int, measured: Measured) -> None:
        columns = {name: column.tolist() for name, column in measured.columns("train").items()}
        for i, rows in enumerate(self.probes):
            if self.diverged[i] < 0:
                rows.append({"epoch": epoch, "step": step, **{name: values[i] for name, values in columns.items()}})

    def _flush(self) -> None:
        for directory, rows, probes in zip(self.directories, self.rows, self.probes, strict=True):
            directory.append("metrics.jsonl", rows)
            directory.append("probe.jsonl", probes)
            rows.clear()
            probes.clear()
        self.flushed = time.monotonic()

    def _finish(self) -> None:
        self._flush()
        test: dict[str, Tensor] = {}
        if "test" in self.population.splits:
            test = self.population.evaluate("test").columns("test")
        for i, directory in enumerate(self.directories):
            diverged = int(self.diverged[i])
            facts: dict[str, Any] = {
                "status": "finished" if diverged < 0 else "diverged",
                "epochs": self.config.epochs,
                "diverged_epoch": None if diverged < 0 else diverged,
                "steps": self.config.epochs * self.population.steps_per_epoch,
            }
            facts |= {name: float(column[i]) if diverged < 0 else None for name, column in test.items()}
            directory.finish(self.population.weights_of(i), facts)
        checkpoint.remove(self.folder)
