"""One run of a language model, from its last checkpoint (or the beginning) to its end.

Nothing waits for the device inside a stretch, and only steps count as training time: not compiling, not evaluating.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..text.tokens import Tokens
from ..training import checkpoint, environment
from ..training.files import finite, write_json
from ..training.population import precision
from ..training.run_directory import RunDirectory
from . import attention_probe
from .captured import Captured, Step
from .config import LanguageConfig
from .data import Batches
from .decoder import Decoder
from .distributed import Place, fill, whole
from .schedule import rate

BETAS = (0.9, 0.95)


class LanguageRun:
    """One model, trained by this process and those that share it."""

    def __init__(
        self, config: LanguageConfig, tokens: Tokens, out: Path, device: torch.device, place: Place, threads: int
    ) -> None:
        self.config, self.device, self.place, self.threads = config, device, place, threads
        self.batches = Batches(config, tokens, device)
        self.tokens = tokens
        self.directory = RunDirectory(out, config.hash)
        self.folder = out / "groups" / config.hash
        self.model = Decoder(config.model, config.text.vocabulary, config.pattern, config.seed).to(device)
        self.compiled = device.type == "cuda" and config.train.compiled
        if self.compiled:
            self.model.compile_parts()
        self.captured = self.compiled and place.alone  # each step is a CUDA graph
        self.shared = place.shared(self.model, config.train.parallel)
        self.rate = torch.zeros((), device=device)  # a CUDA graph reads both anew at each step
        self.number = torch.zeros((), dtype=torch.int64, device=device)
        self.rows = place.rows(torch.arange(config.train.batch, device=device))
        self.optimiser = self._optimiser()
        self.step: Step = self._step
        self.running = torch.zeros(2, device=device)  # sums over a stretch: loss, the gradient's norm
        self.seconds = 0.0

    def _optimiser(self) -> torch.optim.AdamW:
        c, parameters = self.config.optimiser, list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim > 1], "weight_decay": c.weight_decay},
            {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.rate, betas=BETAS, fused=True, capturable=self.captured)

    def train(
        self,
        after_epoch: Callable[[int, dict[str, Any]], None] = lambda epoch, row: None,
        stopping: Callable[[], bool] = lambda: False,
        checkpoint_seconds: float = 60.0,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """To the end, or until ``stopping`` says so after a stretch: then KeyboardInterrupt, with a checkpoint."""
        with precision("tf32" if self.device.type == "cuda" else "ieee"):
            done = self._restore(say)
            if self.place.first:
                self.directory.start(self.config, self._environment(), done or -1)
            status = "finished" if done or self._measure(0) else "diverged"
            self._warm_up()
            saved, epoch = time.monotonic(), done
            while epoch < self.config.train.epochs and status == "finished":
                self._stretch(epoch)
                epoch += 1
                status = "finished" if self._measure(epoch) else "diverged"
                if self.place.first:
                    after_epoch(epoch, self.directory.metrics()[-1])
                last = epoch == self.config.train.epochs or status == "diverged"
                stop, save = self.place.told((stopping(), time.monotonic() - saved >= checkpoint_seconds))
                if (save or stop) and not last:
                    self._save(epoch)
                    saved = time.monotonic()
                if stop and not last:
                    raise KeyboardInterrupt
            self._finish(status, epoch)

    # --- steps ---

    def _logits(self, ids: Tensor, step: int | Tensor, rows: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            logits: Tensor = self.shared(ids, step, rows)  # (b, t, v)
        return logits

    def _loss(self, ids: Tensor, targets: Tensor, step: int | Tensor) -> Tensor:
        logits = self._logits(self.place.rows(ids), step, self.rows)
        return F.cross_entropy(logits.float().flatten(0, 1), self.place.rows(targets).flatten())

    def _step(self, ids: Tensor, targets: Tensor) -> None:
        loss = self._loss(ids, targets, self.number)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimiser.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.running += torch.stack((loss.detach(), whole(norm)))

    def _stretch(self, epoch: int) -> None:
        """The steps of one stretch; ``epoch`` counts from 0."""
        self.running.zero_()
        self._wait()
        start = time.perf_counter()
        for number in range(self.config.steps_until(epoch), self.config.steps_until(epoch + 1)):
            self.rate.fill_(self.config.optimiser.learning_rate * rate(self.config, number))
            self.number.fill_(number)
            self.step(*self.batches.at(number))
        self._wait()
        self.seconds += time.perf_counter() - start

    def _warm_up(self) -> None:
        """What is compiled, captured or looked up at the first step is not training time. Leaves no trace."""
        if self.captured:
            self._capture()
        else:
            self._loss(*self.batches.at(0), self.number).backward()  # type: ignore[no-untyped-call]
            self.optimiser.zero_grad()
        self._wait()

    @torch.no_grad()
    def _capture(self) -> None:
        known = bool(self.optimiser.state)  # of a run that goes on
        before = [p.clone() for p in self.model.parameters()]
        moments = [[x.clone() for x in self.optimiser.state[p].values()] for p in self.model.parameters() if known]
        with torch.enable_grad():
            self.step = Captured(self._step, *self.batches.at(0))
        for number, parameter in enumerate(self.model.parameters()):
            parameter.copy_(before[number])
            for place, tensor in enumerate(self.optimiser.state[parameter].values()):
                tensor.copy_(moments[number][place]) if known else tensor.zero_()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # --- measurements ---

    @torch.no_grad()
    def evaluate(self) -> float:
        """The mean loss over the validation text, in nats per token.

        A batch's number stands for the step: a random pattern draws the same each time.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.shared.eval()
        try:
            for number in range(self.batches.evaluations):
                total += self._loss(*self.batches.heldout_at(number), number).double()
        finally:
            self.shared.train()
        return float(self.place.mean(total)) / self.batches.evaluations

    def _measure(self, epoch: int) -> bool:
        """Adds a line to the curve; False if the model broke."""
        loss = self.evaluate()
        steps = self.config.steps_until(epoch) - self.config.steps_until(epoch - 1)
        row: dict[str, Any] = {
            "epoch": epoch,
            "tokens": self.config.steps_until(epoch) * self.config.step_tokens,
            "heldout_loss": loss,
            "train_seconds": self.seconds,
        }
        if epoch:
            train_loss, norm = (self.place.mean(self.running) / steps).tolist()
            row |= {"train_loss": train_loss, "gradient_norm": norm}
        if self.config.train.diagnose and epoch in (0, self.config.train.epochs):
            row["diagnostics"] = self._diagnosed()
        if self.place.first:
            self.directory.append("metrics.jsonl", [row])
        return math.isfinite(loss) and math.isfinite(row.get("train_loss", 0.0))

    def _diagnosed(self) -> dict[str, Any]:
        """In passes of as many rows as a process has in a step; all take the same ones, so the first sees them all.

        What is random is drawn as in the evaluation, for which a sequence has the same batch and row.
        """
        batch = self.config.train.batch
        wanted = min(self.config.train.diagnose, len(self.batches.evaluated))
        rows = batch // self.place.world
        own = torch.arange(rows, device=self.device)

        def passes() -> None:
            self.shared.eval()
            for first in range(0, wanted, rows):
                ids, _ = self.batches.heldout_at(first // rows, rows)
                self._logits(ids, first // batch, first % batch + own)
            self.shared.train()

        found = attention_probe.probe(self.model, passes, wanted)
        return attention_probe.measured(found) if self.place.first else {}

    def _environment(self) -> dict[str, Any]:
        c, device = self.config, self.device
        like = torch.zeros(1, device=device, dtype=getattr(torch, c.precision))
        shape = (c.train.batch // self.place.world, c.model.heads, c.model.context, c.model.width // c.model.heads)
        how = attention_probe.implementation(self.model, shape, like)
        return environment.describe(device) | {
            "precision": c.precision,
            "implementation": f"{how}, rest compiled" if self.compiled else how,
            "processes": self.place.world,
            "threads": self.threads,
            "text": self.tokens.corpus.source,
            "characters_per_token": self.tokens.characters_per_token,
        }

    # --- what stays ---

    def _state(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by name."""
        state: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            moments = self.optimiser.state[parameter]
            state |= {
                f"weight/{name}": parameter.detach(),
                f"first/{name}": moments["exp_avg"],
                f"second/{name}": moments["exp_avg_sq"],
            }
        return state

    def _save(self, epoch: int) -> None:
        state = {name: whole(tensor) for name, tensor in self._state().items()}
        if self.place.first:
            state["seconds"] = torch.tensor([self.seconds], dtype=torch.float64)
            checkpoint.save(self.folder, epoch, state)

    def _restore(self, say: Callable[[str], None]) -> int:
        """Loads the newest sound checkpoint; returns the number of stretches that are done."""
        found = checkpoint.load(self.folder, say) if self.place.first else None
        if found is not None and self.directory.lacks(range(found[0] + 1)):
            say(f"the curve of run {self.config.hash} lacks stretches up to {found[0]}; starting from the beginning")
            found = None
        done: int = self.place.told(0 if found is None else found[0])
        if done == 0:
            return 0
        steps = float(self.config.steps_until(done))
        for parameter in self.model.parameters():
            zeros = (torch.zeros_like(parameter.detach()) for _ in range(2))
            self.optimiser.state[parameter] = {
                "step": torch.tensor(steps, device=self.device),
                **dict(zip(("exp_avg", "exp_avg_sq"), zeros, strict=True)),
            }
        for name, tensor in self._state().items():
            fill(tensor, None if found is None else found[1][name], self.place)
        if found is not None:
            self.seconds = float(found[1]["seconds"])
            say(f"going on with run {self.config.hash} after stretch {done} of {self.config.train.epochs}")
        return done

    def _finish(self, status: str, epoch: int) -> None:
        """Weights first, summary last: a run with a summary is complete."""
        weights = {name: whole(tensor.detach()) for name, tensor in self.model.named_parameters()}
        if not self.place.first:
            return
        if self.config.train.keep_weights:
            self.directory.write_weights(weights)
        rows = self.directory.metrics()
        known = [(row["heldout_loss"], row["epoch"]) for row in rows if row["heldout_loss"] is not None]
        facts = {
            "status": status,
            "epochs": self.config.train.epochs,
            "diverged_epoch": epoch if status == "diverged" else None,
            "steps": self.config.steps_until(epoch),
            "tokens": self.config.steps_until(epoch) * self.config.step_tokens,
            "parameters": self.config.parameters,
            "last_heldout_loss": rows[-1]["heldout_loss"],
            "best_heldout_loss": min(known)[0] if known else None,
            "best_heldout_epoch": min(known)[1] if known else None,
            "train_seconds": self.seconds,
        }
        write_json(self.directory.path / "summary.json", finite(facts))
        checkpoint.remove(self.folder)
