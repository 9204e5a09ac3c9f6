"""A population on one device: the step, the evaluation, and on a GPU both as CUDA graphs.

Nothing here touches the disk, and nothing inside an epoch waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model import Transformer
from ..model.compiled import compile_parts, compiled
from ..patterns.base import View, chosen
from ..registry import sources
from .data import Split, batch_order, resident
from .optimiser import FlatWeights, Optimiser, descend
from .protocol import RunConfig

#: Largest tensor, in elements, that one evaluation batch may need.
EVALUATION_ELEMENTS = {"cuda": 2**28, "cpu": 2**22}
WARM_UP = 3


@dataclass(frozen=True)
class Measured:
    """Per member, on the device: mean loss, share of right targets, share of examples with all targets right.

    From training also the mean of the gradient's norm over the steps of an epoch, before clipping, and its deviation.
    """

    loss: Tensor  # (m,)
    accuracy: Tensor
    sequence_accuracy: Tensor | None = None
    gradient_norm: Tensor | None = None
    gradient_deviation: Tensor | None = None

    def columns(self, split: str, tape: bool = False) -> dict[str, Tensor]:
        """As a curve has them, by name; of a tape also whole sequences."""
        columns = {f"{split}_loss": self.loss, f"{split}_accuracy": self.accuracy}
        if tape and self.sequence_accuracy is not None:
            columns[f"{split}_sequence_accuracy"] = self.sequence_accuracy
        # The largest of some NaN logits is not an answer.
        broken = ~self.loss.isfinite()
        return {name: column.masked_fill(broken, torch.nan) for name, column in columns.items()}


class Population:
    """Runs that share their shapes, trained in lock step. Member i is ``configs[i]``."""

    def __init__(
        self,
        configs: Sequence[RunConfig],
        device: torch.device | str = "cpu",
        *,
        dtype: torch.dtype = torch.float32,
        compiled: bool | None = None,
    ) -> None:
        self.configs = list(configs)
        self.device = torch.device(device)
        self.train_config = configs[0].train
        self.splits = resident(configs, self.device)
        self.model = Transformer(
            [config.model_config() for config in configs],
            [config.pattern for config in configs],
            [config.seed for config in configs],
            dtype=dtype,
            device=self.device,
        )
        on_gpu = self.device.type == "cuda"
        self.compiled = on_gpu if compiled is None else compiled
        self.tally = tally
        self.weights = FlatWeights(self.model)
        self.optimiser = Optimiser([config.optimiser for config in configs], self.weights)
        if self.compiled:
            self._compile()
        members = len(configs)
        self.batch = self.train_config.batch
        self.steps_per_epoch = self.splits["train"].examples // self.batch
        self.order = torch.zeros(members, self.splits["train"].examples, dtype=torch.int64, device=self.device)
        self.step_index = torch.zeros((), dtype=torch.int64, device=self.device)  # counts through the whole run
        self.cursor = torch.zeros((), dtype=torch.int64, device=self.device)  # batch within the epoch
        self.alive = torch.ones(members, dtype=torch.bool, device=self.device)
        # Sums over an epoch of training: loss, right and counted targets, the gradient's norm and its square; over an
        # evaluation: loss, right and counted targets, whole sequences.
        self.running = torch.zeros(5, members, dtype=torch.float64, device=self.device)
        self.sums = torch.zeros(4, members, dtype=torch.float64, device=self.device)
        self.evaluated = torch.zeros((), dtype=torch.int64, device=self.device)  # examples so far
        self.train_step = self._captured(self._one_step) if on_gpu else self._one_step
        self._evaluators: dict[tuple[str, int], Callable[[], None]] = {}
        self.attended = self.splits["train"].tokens.shape[2] + len(self.model.appended)  # tokens that attention sees
        self.watch: Callable[[str, int, int], None] | None = None  # told what is going on, and how many steps are done

    def _compile(self) -> None:
        for pattern, config in {config.pattern: config for config in self.configs}.items():
            # What a compiler says of a mistake in a user's pattern nobody understands: so once without it.
            if sources(type(pattern)):
                tokens = config.length + pattern.global_tokens
                q = torch.zeros(2, 1, tokens, config.model.width, device=self.device)
                chosen(pattern, View(q, q, torch.ones(tokens, tokens, dtype=torch.bool, device=self.device)))
        compile_parts(self.model)
        self.optimiser.descend = compiled(descend)
        self.tally = compiled(tally)

    # --- training ---

    def train_epoch(self, epoch: int, after_step: Callable[[int], None] | None = None) -> Measured:
        """One pass over the training examples; ``epoch`` counts from 0. Returns loss and accuracy as met on the way."""
        self.start_epoch(epoch)
        what = f"training, epoch {epoch + 1}"
        for step in range(self.steps_per_epoch):
            self.train_step()
            self._tell(what, step + 1, self.steps_per_epoch)
            if after_step is not None:
                after_step(step)
        loss, right, counted, norm, square = self.running.clone()
        steps = self.steps_per_epoch
        spread = (square / steps - (norm / steps).square()).clamp(min=0).sqrt()
        return Measured(loss / steps, right / counted, gradient_norm=norm / steps, gradient_deviation=spread)

    def _tell(self, what: str, done: int, of: int) -> None:
        if self.watch is not None:
            self.watch(what, done, of)

    def start_epoch(self, epoch: int) -> None:
        self.model.train()
        self.order.copy_(batch_order(self.model.seeds, epoch, self.order.shape[1]))
        self.optimiser.start_epoch(epoch)
        self.cursor.zero_()
        self.running.zero_()
        self.step_index.fill_(epoch * self.steps_per_epoch)

    def _one_step(self) -> None:
        here = self.cursor * self.batch + torch.arange(self.batch, device=self.device)
        tokens, targets, counted = self.splits["train"].take(self.order[:, here])
        with precision(self.configs[0].precision):
            logits = self.model(tokens, self.step_index)
            losses = cross_entropy(logits, targets).mean((1, 2))  # (m,)
            # The sum of the members' losses: no member's gradient sees another member.
            gradients = torch.autograd.grad(losses.sum(), self.weights.parameters)
        with torch.no_grad():
            norms = self.optimiser.update(gradients, self.alive & losses.isfinite(), self.step_index)
            self.alive &= norms.isfinite() & losses.isfinite()
            self.running += self.tally(losses, logits, targets, counted, norms)
            self.cursor += 1
            self.step_index += 1

    # --- evaluation ---

    def evaluate(self, split: str, examples: int | None = None) -> Measured:
        """Loss and accuracy over a split (or its first examples), in evaluation mode."""
        data = self.splits[split]
        examples = data.examples if examples is None else min(examples, data.examples)
        chunk = self._evaluation_batch(examples)
        one_chunk = self._evaluators.setdefault((split, chunk), self._evaluator(data, chunk))
        self.model.eval()
        self.sums.zero_()
        self.evaluated.zero_()
        with torch.no_grad():
            what, chunks = f"evaluating, {split}", examples // chunk
            for i in range(chunks):
                one_chunk()
                self._tell(what, i + 1, chunks)
            rest = examples % chunk
            if rest:
                self._add_sums(data, torch.arange(examples - rest, examples, device=self.device))
        self.model.train()
        loss, right, counted, whole = self.sums.clone()
        return Measured(loss / examples, right / counted, whole / examples)

    def _evaluator(self, data: Split, chunk: int) -> Callable[[], None]:
        def one_chunk() -> None:
            self._add_sums(data, self.evaluated + torch.arange(chunk, device=self.device))
            self.evaluated.add_(chunk)

        return self._captured(one_chunk) if self.device.type == "cuda" else one_chunk

    def _add_sums(self, data: Split, here: Tensor) -> None:
        tokens, targets, counted = data.take(here.expand(len(self.configs), -1))
        with precision(self.configs[0].precision):
            logits = self.model(tokens, self.step_index + here[0])  # other random keys for other examples
        loss = cross_entropy(logits, targets).mean(2)
        right, whole = right_answers(logits, targets, counted)
        parts = (loss.sum(1), right.sum((1, 2)), counted.sum((1, 2)), whole.sum(1))
        self.sums.add_(torch.stack([part.double() for part in parts]))

    def _evaluation_batch(self, examples: int) -> int:
        """As many examples at once as memory allows, and if possible a number that divides all splits evenly."""
        config = self.model.config
        scores = 0 if self._keeps_no_scores() else config.heads * self.attended
        per_example = len(self.configs) * self.attended * max(config.width, config.mlp_width, scores)
        if any(pattern.random or pattern.batch_dependent for pattern in self.model.patterns):
            return min(self.batch, examples)  # what such a pattern keeps must not depend on the size of the population
        most = min(max(1, EVALUATION_ELEMENTS[self.device.type] // per_example), examples)
        common = math.gcd(examples, *(split.examples for split in self.splits.values()))
        even = max(size for size in range(1, most + 1) if common % size == 0)
        return even if 4 * even >= most else most

    def _keeps_no_scores(self) -> bool:
        """Do kernels that never write a matrix of scores evaluate all members?"""
        config = self.model.config
        if self.device.type != "cuda":
            return False
        shape = (1, self.batch, config.heads, self.attended, config.width)
        with precision(self.configs[0].precision):
            names = {
                self.model.implementation(i, shape, training=False, compiled=self.compiled)
                for i in {pattern: i for i, pattern in enumerate(self.model.patterns)}.values()
            }
        return names <= {"block", "fused", "sdpa"}

    def implementation(self, member: int) -> dict[str, str]:
        """Which attention a member trains and is evaluated with."""
        together = sum(pattern == self.model.patterns[member] for pattern in self.model.patterns)
        names = {}
        for mode, examples in (("training", self.batch), ("evaluation", self._evaluation_batch(self.order.shape[1]))):
            shape = (together, examples, self.model.config.heads, self.attended, self.model.config.width)
            with precision(self.configs[0].precision):
                name = self.model.implementation(member, shape, mode == "training", self.compiled)
            names[mode] = f"{name}, compiled" if self.compiled else name
        return names

    def weights_of(self, member: int) -> dict[str, Tensor]:
        """The weights of one member, as those of a population of one."""
        return {name: tensor[member : member + 1].clone() for name, tensor in self.model.state_dict().items()}

    # --- CUDA graphs ---

    def _captured(self, function: Callable[[], None]) -> Callable[[], None]:
        """A function of no arguments as a CUDA graph. The runs that warm it up leave no trace."""
        graph: torch.cuda.CUDAGraph | None = None

        def replay() -> None:
            nonlocal graph
            if graph is None:
                graph = self._capture(function)
            graph.replay()

        return replay

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        state = self.mutable()
        saved = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                function()
                for tensor, value in zip(state, saved, strict=True):
                    tensor.copy_(value)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        return graph

    def mutable(self) -> list[Tensor]:
        """Everything a step or an evaluation changes."""
        counters = [self.step_index, self.cursor, self.evaluated]
        return [*self.optimiser.state().values(), *counters, self.alive, self.running, self.sums]


def tally(losses: Tensor, logits: Tensor, targets: Tensor, counted: Tensor, norms: Tensor) -> Tensor:
    """What a step adds to the sums of its epoch, (5, m)."""
    right, _ = right_answers(logits, targets, counted)
    parts = (losses, right.sum((1, 2)), counted.sum((1, 2)), norms, norms.square())
    return torch.stack([part.double() for part in parts])


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """logits (m, b, o, c), targets (m, b, o) -> losses (m, b, o)."""
    return F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none").view(targets.shape)


def right_answers(logits: Tensor, targets: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Which counted targets are right (m, b, o), and in which examples all of them are (m, b)."""
    right = logits.argmax(-1) == targets
    return right & counted, (right | ~counted).all(2)


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Float32 matrix products as asked for inside, as they were afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
