"""What every task is: a source of examples and a slow, plainly right solver to check them with."""

from __future__ import annotations

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from semfocus.registry import snake_case

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Tokens = Sequence[int] | IntArray | torch.Tensor


@dataclass(frozen=True, eq=False)
class Examples:
    """A batch of one length: int64 ``tokens`` (n, T) and ``targets`` (n, O). O is 1 where the answer is one class."""

    tokens: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class TaskError(ValueError):
    """A mistake in a task's own code. The message is one sentence for its author."""


class Task(ABC):
    """A task. Subclasses are frozen dataclasses whose fields are the options; they define ``_sample`` and ``_solve``.

    Token ids are ``0 .. vocabulary - 1`` and class ids ``0 .. num_classes - 1``. The id of padding is ``vocabulary``.
    """

    @property
    def name(self) -> str:
        """The name in the registry, which is the stem of the task's file."""
        return snake_case(type(self).__name__)

    @property
    def summary(self) -> str:
        """One line for tables: the first of the class's docstring."""
        return (inspect.getdoc(type(self)) or "").partition("\n")[0]

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of token ids."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Number of ids a target can have."""

    @property
    def minimum_length(self) -> int:
        """The least ``length`` for which ``sample`` makes proper examples."""
        return 1

    @property
    def pad(self) -> int:
        """The id of padding, one past the vocabulary."""
        return self.vocabulary

    def input_length(self, length: int) -> int:
        """T, the number of tokens in an example of that length."""
        return length

    def output_length(self, length: int) -> int:
        """O, the number of targets of an example of that length."""
        return 1

    def must_meet(self, length: int) -> list[tuple[int, int]]:
        """Positions whose tokens the rule combines pairwise: a model must bring both of each pair to one place.

        Empty where that is not certain, and where training sets are memorised rather than understood. Only pairs
        without which no sum of local functions gives the right class.
        """
        return []

    def check(self) -> None:
        """Refuses numbers of ids that are none: when a config is made, not in the middle of a run."""
        for name in ("vocabulary", "num_classes"):
            ids = getattr(self, name)
            if not _is_whole(ids) or ids < 1:
                raise TaskError(f"{type(self).__name__}.{name} is {ids!r}; it must be a whole number of at least 1")

    def sample(self, rng: np.random.Generator, n: int, length: int) -> Examples:
        """Draws ``n`` examples of one length. The generator is the only source of randomness."""
        if not isinstance(rng, np.random.Generator):
            raise ValueError(f"rng is {rng!r}; sampling needs a numpy Generator such as numpy.random.default_rng(0)")
        n = whole_number("n", n, minimum=0, who="a sample")
        length = whole_number("length", length, minimum=self.minimum_length, who=self.name)
        try:
            tokens, targets = self._sample(rng, n, length)
        except (TypeError, LookupError, ArithmeticError, AttributeError, ValueError) as error:
            raise TaskError(f"{self.name}._sample: {error}") from error
        return Examples(
            tokens=self._whole("tokens", tokens, n, self.input_length(length), self.pad + 1),
            targets=self._whole("targets", targets, n, self.output_length(length), self.num_classes),
        )

    def split(self, name: str, rng: np.random.Generator, n: int, length: int) -> Examples:
        """The examples of one split of a run: drawn like any others, unless a split has a file of its own."""
        return self.sample(rng, n, length)

    def solve(self, tokens: Tokens) -> list[int]:
        """The targets of one sequence, worked out in plain Python. Works for lengths below ``minimum_length`` too."""
        return self._solve(self._checked(tokens))

    def answer_mask(self, targets: torch.Tensor) -> torch.Tensor:
        """Which targets count for accuracy: all of them, unless the answer ends before the row does."""
        return torch.ones_like(targets, dtype=torch.bool)

    @abstractmethod
    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        """Tokens and targets for checked arguments; the target of a one-class task may lack its second axis."""

    @abstractmethod
    def _solve(self, tokens: list[int]) -> list[int]:
        """The targets of at least one valid id; ``ValueError`` where the ids make no sense together."""

    def _whole(self, what: str, drawn: object, n: int, width: int, ids: int) -> torch.Tensor:
        """What ``_sample`` gave, (n, width), each of the numbers 0 .. ids - 1."""
        if not isinstance(drawn, np.ndarray) or drawn.dtype.kind not in "iub":
            kind = f"an array of {drawn.dtype}" if isinstance(drawn, np.ndarray) else f"of type {type(drawn).__name__}"
            raise TaskError(f"{self.name}._sample: {what} is {kind}; it must be a numpy array of whole numbers")
        if drawn.shape != (n, width) and not (width == 1 and drawn.shape == (n,)):
            raise TaskError(f"{self.name}._sample: {what} has shape {drawn.shape}; it must be ({n}, {width})")
        if drawn.size and not 0 <= (worst := drawn.min() if drawn.min() < 0 else drawn.max()) < ids:
            raise TaskError(f"{self.name}._sample: {what} holds {worst}; it must lie in 0..{ids - 1}")
        return as_tensor(drawn.reshape(n, width))

    def _checked(self, tokens: object) -> list[int]:
        values = listed(tokens)
        if not values:
            raise ValueError(f"tokens is empty; {self.name} needs at least one id")
        for position, value in enumerate(values):
            if not _is_whole(value) or not 0 <= value < self.vocabulary:
                raise ValueError(f"tokens[{position}] is {value!r}; {self.name} has the ids 0..{self.vocabulary - 1}")
        return [int(value) for value in values]


def listed(tokens: object) -> list[Any]:
    """The entries of a sequence (of numbers or of scalar tensors), numpy array or tensor."""
    values = tokens.tolist() if isinstance(tokens, np.ndarray | torch.Tensor) else tokens
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ValueError(f"tokens is {tokens!r}; it must be one sequence of ids")
    return [value.item() if isinstance(value, torch.Tensor) and value.ndim == 0 else value for value in values]


def whole_number(argument: str, value: object, minimum: int, who: str) -> int:
    """``value`` as an int, or an error that says what would do."""
    if not _is_whole(value):
        raise ValueError(f"{argument} is {value!r}; {who} needs a whole number of at least {minimum}")
    number = operator.index(value)  # type: ignore[arg-type]
    if number < minimum:
        raise ValueError(f"{argument} is {number}; {who} needs at least {minimum}")
    return number


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def as_tensor(array: IntArray) -> torch.Tensor:
    # A copy, always: torch takes no negative strides, and targets must not share memory with tokens.
    return torch.from_numpy(np.array(array, dtype=np.int64, order="C"))
