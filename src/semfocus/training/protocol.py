"""The config of one run: everything its result depends on, and nothing else.

A run is read from TOML or JSON. What is left out comes from the task's recipe in the paper:

    seed = 0
    [task]
    name = "even_pairs"
    [pattern]
    name = "top_k"
    k = 5

``preset = "paper"`` also pads and pools exactly as the original runs did.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .. import patterns, tasks
from ..model.config import SMALLEST, ModelConfig, ModelOptions
from ..patterns import Pattern
from ..registry import sources, suggestion
from ..tasks import Task
from .strict import ConfigError, at_least, build, laid_over, refuse_unknown

PRESETS = ("default", "paper")
#: A task that is made from a user's text files. It is not in the registry: no rule solves it.
TEXT_TASK = "next_token"


@dataclass(frozen=True)
class Recipe:
    """What the paper chose for one task."""

    length: int
    learning_rate: float
    decay: float
    epochs: int
    blocks: int


NNCH = Recipe(length=40, learning_rate=0.1, decay=0.9995, epochs=200, blocks=5)
RECIPES = {
    # The longest sequence has 599 tokens; one PAD more makes rows of 600, which matrix units like better.
    "listops": Recipe(length=600, learning_rate=1.0, decay=0.99, epochs=200, blocks=10),
    "even_pairs": dataclasses.replace(NNCH, epochs=100),
    "stack_manipulation": NNCH,
    "missing_duplicate_string": dataclasses.replace(NNCH, epochs=250),
    "modular_arithmetic_brackets": dataclasses.replace(NNCH, epochs=600),
    "solve_equation": dataclasses.replace(NNCH, epochs=600),
    "cycle_navigation": dataclasses.replace(NNCH, epochs=750),
    "parity_check": dataclasses.replace(NNCH, epochs=1000),
}


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Which examples: a task, its options, and the length asked of it."""

    name: str
    length: int
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            task = self.make()
        except ValueError as error:
            raise ValueError(f"options: {error}") from None
        task.check()
        # All of them, so that an option left at its default and the same one written out are one run.
        object.__setattr__(self, "options", dataclasses.asdict(task))  # type: ignore[call-overload]
        if self.length < task.minimum_length:
            raise ValueError(f"length is {self.length}; {self.name} needs at least {task.minimum_length}")

    def make(self) -> Task:
        if self.name == TEXT_TASK:
            from ..text.next_token import NextToken

            return build(NextToken, self.options)
        return tasks.get(self.name, **self.options)


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """The update rule. The learning rate is multiplied by ``decay`` once per epoch."""

    learning_rate: float
    decay: float
    name: Literal["sgd", "adam"] = "sgd"
    clip: float = 0.5  # largest global norm of a model's gradient; 0: no clipping

    def __post_init__(self) -> None:
        at_least(self, clip=0.0)
        if 0.0 < self.clip < SMALLEST:
            raise ValueError(f"clip is {self.clip!r}; it must be 0 (no clipping) or at least {SMALLEST:g}")
        if not 0.0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate is {self.learning_rate!r}; it must be positive and finite")
        if not 0.0 < self.decay <= 1.0:
            raise ValueError(f"decay is {self.decay!r}; it must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How many examples, from which seed."""

    train: int = 5000
    heldout: int = 2000
    test: int = 0  # a third split, which chooses nothing
    seed: int | None = None  # None: the run's own seed
    random_labels: bool = False  # labels shuffled among the examples of each split
    pad_multiple: int = 1  # sequences are padded to a multiple of this
    twin: int = 0  # n > 0: the n-th training example is replaced by another; 0: none

    def __post_init__(self) -> None:
        at_least(self, train=1, heldout=1, test=0, pad_multiple=1, twin=0)
        if self.twin > self.train:
            raise ValueError(f"twin is {self.twin}; it must be at most train, {self.train}")
        if self.seed is not None:
            at_least(self, seed=0)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, and what is measured on the way. The last incomplete batch of an epoch is left out."""

    epochs: int
    batch: int = 25
    eval_every: int = 1  # epochs between evaluations; the last epoch is always evaluated
    probe_every: int = 0  # steps between probes; 0: no probe
    probe_epochs: int = 20  # epochs in which to probe
    probe_examples: int = 1000  # the first training examples
    diagnose_every: int = 0  # epochs between diagnostics of the attention; 0: none
    diagnose_examples: int = 128  # the first training examples
    keep_weights_every: int = 0  # epochs between snapshots of the weights, first and last included; 0: none

    def __post_init__(self) -> None:
        at_least(self, epochs=0, batch=1, eval_every=1, probe_every=0, probe_epochs=0, probe_examples=1)
        at_least(self, diagnose_every=0, diagnose_examples=1, keep_weights_every=0)
        if self.diagnose_every % self.eval_every:
            raise ValueError(
                f"diagnose_every is {self.diagnose_every}; it must be a multiple of eval_every, {self.eval_every}"
            )

    def probed_steps(self, per_epoch: int, epochs: int | None = None) -> range:
        """After which steps it is probed, with so many steps an epoch: of the whole run, or of its first epochs.

        >>> TrainConfig(epochs=3, probe_every=5, probe_epochs=2).probed_steps(8)
        range(5, 17, 5)
        """
        if not self.probe_every:
            return range(0)
        done = self.epochs if epochs is None else epochs
        return range(self.probe_every, min(self.probe_epochs, done) * per_epoch + 1, self.probe_every)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run."""

    task: TaskConfig
    pattern: Pattern
    model: ModelOptions
    optimiser: OptimiserConfig
    data: DataConfig
    train: TrainConfig
    seed: int = 0
    precision: Literal["ieee", "tf32"] = "ieee"  # of float32 matrix products on a GPU

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; it must be at least 0 and below 2^63")
        if self.train.batch > self.data.train:
            raise ValueError(f"train.batch is {self.train.batch}; it must be at most data.train, {self.data.train}")

    @property
    def data_seed(self) -> int:
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def length(self) -> int:
        """Tokens of a padded example, without the tokens a model appends."""
        given, multiple = self.task.make().input_length(self.task.length), self.data.pad_multiple
        return -(-given // multiple) * multiple

    @property
    def attended(self) -> int:
        """Tokens that attention sees: those of a padded example, and those that the model appends."""
        model = self.model_config()
        return self.length + (model.outputs if model.read_out == "tape" else 0) + self.pattern.global_tokens

    def model_config(self) -> ModelConfig:
        task = self.task.make()
        outputs = task.output_length(self.task.length) if self.model.read_out == "tape" else 1
        return ModelConfig(
            vocabulary=task.vocabulary, classes=task.num_classes, outputs=outputs, **dataclasses.asdict(self.model)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads back as an equal config."""
        return plain_data(self)

    @property
    def hash(self) -> str:
        """The name of the run: equal configs, equal names. A user's pattern or task is known by its source, too."""
        return run_name(self.to_dict(), self.code)

    @property
    def code(self) -> tuple[type, ...]:
        """What may be a user's own."""
        task = () if self.task.name == TEXT_TASK else (tasks.registry.find(self.task.name),)
        return type(self.pattern), *task

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> RunConfig:
        """A config from plain data; what is missing comes from the preset and the task's recipe."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"the config is {data!r}; it must be a table")
        given = {key: value for key, value in data.items() if key != "preset"}
        refuse_unknown(RunConfig, given, "preset")
        preset = data.get("preset", "default")
        if preset not in PRESETS:
            raise ConfigError(f"preset is {preset!r}; {suggestion(preset, PRESETS)}")
        pattern = read_pattern(given.get("pattern", {"name": "full"}))
        merged = laid_over(_defaults(_task_name(given), pattern, preset), given)
        return build(RunConfig, {**merged, "pattern": pattern})

    @staticmethod
    def load(path: str | Path) -> RunConfig:
        """Reads one run from a .toml or .json file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
            data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
            return RunConfig.from_dict(data)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        except ValueError as error:  # syntax, encoding and config errors
            raise ConfigError(f"{path}: {error}") from None


def plain_data(config: Any) -> dict[str, Any]:
    """The config of a run of any kind as tables, its pattern with its name."""
    data = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    plain = {k: dataclasses.asdict(v) if dataclasses.is_dataclass(v) else v for k, v in data.items()}  # type: ignore[arg-type]
    plain["pattern"] = {"name": config.pattern.name, **plain["pattern"]}
    return plain


def run_name(plain: Mapping[str, Any], code: Sequence[type], whole: bool | None = None) -> str:
    """What a run is called by everything that it is known by: its config, and the source of what is a user's own.

    A text is known by its content, not by where it lies. ``whole``: see ``registry.sources``.
    """
    known = {**plain, **sources(*code, whole=whole)}
    if plain.get("text", {}).get("sha256"):
        known["corpus"] = ""
    try:
        text = json.dumps(known, sort_keys=True, separators=(",", ":"))
    except TypeError as error:
        raise ConfigError(
            f"the config of pattern {plain['pattern']['name']!r} cannot be kept ({error}); a knob must be a number, a "
            "text, True, False, None or a tuple of these"
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def paper(task: str | Mapping[str, Any], pattern: Pattern, seed: int = 0, **sections: Any) -> RunConfig:
    """The paper's run of a pattern on a task: ``paper("even_pairs", TopK(5), seed=3, precision="tf32")``.

    ``task`` may also be a table such as ``{"name": "even_pairs", "length": 20}``.
    """
    named = {"name": task} if isinstance(task, str) else task
    return RunConfig.from_dict({"preset": "paper", "task": named, "pattern": pattern, "seed": seed, **sections})


def _task_name(data: Mapping[str, Any]) -> str:
    task = data.get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    if not isinstance(name, str) or name not in (TEXT_TASK, *tasks.names()):
        raise ConfigError(f"task.name is {name!r}; {suggestion(name, tasks.names())}")
    return name


def read_pattern(given: object) -> Pattern:
    """A pattern, or a table with its name and knobs."""
    if isinstance(given, Pattern):
        return given
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ConfigError(f"pattern is {given!r}; it must be a table with a name, one of {', '.join(patterns.names())}")
    knobs = {key: _frozen(value) for key, value in given.items() if key != "name"}
    try:
        return patterns.get(given["name"], **knobs)
    except ValueError as error:
        raise ConfigError(f"pattern: {error}") from None


def _frozen(value: object) -> object:
    """A tuple that was written as a list, as JSON and TOML do: patterns are looked up by what they are."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _defaults(task: str, pattern: Pattern, preset: str) -> dict[str, Any]:
    recipe = RECIPES.get(task, NNCH)
    data: dict[str, Any] = {
        "task": {"name": task, "length": recipe.length},
        "model": {"blocks": recipe.blocks},
        "optimiser": {"learning_rate": recipe.learning_rate, "decay": recipe.decay},
        "data": {"seed": 0} if task in ("listops", TEXT_TASK) else {},  # one data set for all seeds
        "train": {"epochs": recipe.epochs},
    }
    if preset == "paper":
        data["model"] |= {"mask_padding": False, "pool_padding": True}
        data["data"] |= {"pad_multiple": getattr(pattern, "k", getattr(pattern, "width", 1))}
    return data
