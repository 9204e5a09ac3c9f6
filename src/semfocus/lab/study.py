"""What a study is: a question, the runs that answer it, and the claims its page judges.

A study is one file in ``semfocus/studies`` (or a user's own, by ``--plugin``) with one class. Its docstring says what
is asked, what is expected, and which outcome would refute it. ``runs(size)`` is plain Python that returns arms.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .. import patterns, tasks
from ..patterns.base import Pattern, whole_number
from ..registry import snake_case, suggestion
from ..training.protocol import RunConfig
from ..training.strict import ConfigError
from ..training.strict import laid_over as laid_over
from .configs import Config

if TYPE_CHECKING:
    from ..report.page import Section
    from .claims import Claim, Judged
    from .results import Results

T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """How large a study is: what it costs, and how many seeds every arm gets."""

    summary: str
    seeds: int

    def __post_init__(self) -> None:
        whole_number("seeds", self.seeds, 1)


@dataclass(frozen=True)
class Arm:
    """One line in one plot: a config that is run with several seeds.

    All arms of a panel share their task and their number of epochs, so they can be compared seed by seed.
    """

    panel: str  # "even_pairs", or "listops, 6 blocks"
    label: str  # "top-k(5)"
    config: Config  # its seed is replaced
    seeds: tuple[int, ...] | None = None  # None: as many as the size says, counted from 0

    @property
    def key(self) -> tuple[str, str]:
        """By which a study knows it."""
        return self.panel, self.label

    def with_seed(self, seed: int) -> Config:
        return replace(self.config, seed=seed)


class Study(ABC):
    """A question. Define ``sizes``, ``varies``, ``runs`` and ``claims``."""

    #: What each size costs. Sizes that make no sense for a study may be left out.
    sizes: ClassVar[Mapping[str, Size]]
    #: Sizes that are the paper's own experiment. Of all others the page and the terminal say that they are not.
    paper_sizes: ClassVar[tuple[str, ...]] = ("paper",)
    #: Config keys that differ between arms: overriding them would ask another question, so it is refused.
    varies: ClassVar[tuple[str, ...]] = ("task.name", "pattern", "data.pad_multiple")

    @property
    def name(self) -> str:
        """The stem of its file."""
        return snake_case(type(self).__name__)

    @property
    def summary(self) -> str:
        """One line for tables: the first of the docstring."""
        return self.question.partition("\n")[0]

    @property
    def question(self) -> str:
        """The whole docstring, which every page shows."""
        return inspect.getdoc(type(self)) or ""

    @abstractmethod
    def runs(self, size: str) -> list[Arm]:
        """The arms that can be named before anything has run."""

    def follow_up(self, size: str, results: Results) -> list[Arm]:
        """Arms that depend on the outcome of ``runs``, such as settings chosen on tuning seeds."""
        return []

    def foreseen(self, size: str) -> list[Arm]:
        """Arms such as ``follow_up`` will give, with any outcome: what does not fit them is refused at the start."""
        return []

    def settled(self, size: str, arms: Sequence[Arm]) -> list[Arm]:
        """Arms with the overrides laid over them, once more checked and completed: by what a file holds, say."""
        return list(arms)

    def measure(self, results: Results, device: str, say: Callable[[str], None]) -> None:  # noqa: B027 (optional)
        """Measures trained models, after the runs and before the page; see ``lab.measure``. What is there stays."""

    def fixed(self, size: str) -> Mapping[str, str]:
        """More config keys that a size sets itself, each with what it is, such as "the length of a file's lines"."""
        return {}

    @abstractmethod
    def claims(self, results: Results) -> list[Claim]:
        """What the page judges, in the order in which it is shown."""

    def sections(self, results: Results) -> list[Section]:
        """Figures and tables of this study's own; they come before the standard ones."""
        return []

    def standard_sections(self, results: Results, judged: Sequence[Judged]) -> list[Section]:
        """What the pages of all studies have; other figures where accuracy is not the question."""
        from ..report.page import standard_sections

        return standard_sections(results, judged)

    def size(self, name: str) -> Size:
        if not isinstance(getattr(self, "sizes", None), Mapping):
            raise ConfigError(
                f"study {self.name!r} must declare its sizes, such as {{'smoke': Size('seconds', seeds=2)}}"
            )
        if name not in self.sizes:
            raise ConfigError(f"size is {name!r}; {suggestion(name, self.sizes)}")
        size = self.sizes[name]
        if not isinstance(size, Size):
            raise ConfigError(
                f"{type(self).__name__}.sizes[{name!r}] is {size!r}; it must be a Size such as Size('seconds', seeds=2)"
            )
        return size


def label_of(pattern: Pattern, scale: float = 1.0) -> str:
    """How an arm is called on a page.

    >>> from semfocus import Banded, Full, TopK
    >>> label_of(TopK(5)), label_of(Full(), 4.0), label_of(Banded(9, global_tokens=3))
    ('top-k(5)', 'full x 4', 'banded(9)+G(3)')
    """
    size = getattr(pattern, "k", getattr(pattern, "width", None))
    known = {"k", "width", "global_tokens"}
    rest = [f"{name}={value}" for name, value in _knobs(pattern).items() if name not in known]
    inside = ", ".join(([] if size is None else [str(size)]) + rest)
    label = pattern.name.replace("_", "-") + (f"({inside})" if inside else "")
    if pattern.global_tokens:
        label += f"+G({pattern.global_tokens})"
    return label if scale == 1.0 else f"{label} x {scale:g}"


def arm(
    task: str, pattern: Pattern, sections: Mapping[str, Any], *, scale: float = 1.0, panel: str = "", label: str = ""
) -> Arm:
    """The paper's run of a pattern on a task with ``sections`` laid over it, in the panel of that task."""
    merged = laid_over({"task": {"name": task}}, sections, {"model": {"attention_scale": scale}})
    config = RunConfig.from_dict({"preset": "paper", **merged, "pattern": pattern})
    return Arm(panel or task, label or label_of(pattern, scale), config)


def _knobs(pattern: Pattern) -> dict[str, Any]:
    """Knobs that are not at their default."""
    fields = getattr(pattern, "__dataclass_fields__", {}).values()
    return {f.name: getattr(pattern, f.name) for f in fields if getattr(pattern, f.name) != f.default}


def listed(study: Study, method: str, given: Iterable[T], kind: type) -> list[T]:
    """What a method of a study gave, which may be a user's own: refused unless it is a list of what it should be."""
    items = list(given) if isinstance(given, Iterable) else []
    wrong = [item for item in items if not isinstance(item, kind)] if isinstance(given, Iterable) else [given]
    if wrong:
        name = f"{type(study).__name__}.{method}"
        raise ConfigError(f"{name} gave {wrong[0]!r:.80}; it must give a list of {kind.__name__}s")
    return items


def check_arms(study: Study, arms: Sequence[Arm]) -> None:
    """A study's own mistakes, found before hours of training: equal names, panels that cannot be compared."""
    seen: set[tuple[str, str]] = set()
    shared: dict[tuple[str, str], object] = {}
    for arm in arms:
        if arm.key in seen:
            raise ConfigError(f"study {study.name!r} has two arms {arm.label!r} in panel {arm.panel!r}")
        seen.add(arm.key)
        alike: dict[str, object] = {"epochs": arm.config.train.epochs}
        if isinstance(arm.config, RunConfig):
            train = arm.config.train
            alike |= {"eval_every": train.eval_every, "probe_every": train.probe_every, "task": arm.config.task.name}
        for what, value in alike.items():
            known = shared.setdefault((arm.panel, what), value)
            if known != value:
                raise ConfigError(
                    f"study {study.name!r}: arms of panel {arm.panel!r} have {what} {known} and {value}; "
                    "those of one panel are compared seed by seed, so it must be the same"
                )


def listed_arms(study: Study, method: str, given: Iterable[Arm]) -> list[Arm]:
    """The arms that a method of a study gave, each refused unless it is what it should be."""
    arms = listed(study, method, given, Arm)
    for arm in arms:
        _check_arm(study, arm)
    return arms


def _check_arm(study: Study, arm: Arm) -> None:
    for name in ("panel", "label"):
        if not isinstance(getattr(arm, name), str) or not getattr(arm, name):
            raise ConfigError(f"study {study.name!r}: an arm's {name} is {getattr(arm, name)!r}; it must be a name")
    if arm.seeds is not None and (not isinstance(arm.seeds, tuple) or not all(isinstance(s, int) for s in arm.seeds)):
        raise ConfigError(f"study {study.name!r}: seeds of arm {arm.label!r} is {arm.seeds!r}; (0, 1, 2) would do")
    if isinstance(arm.config, Mapping):
        raise ConfigError(
            f"study {study.name!r}: the config of arm {arm.label!r} is a dict; arm(...) makes a config of it"
        )


def joined_patterns(size: int = 5) -> list[Pattern]:
    """A user's patterns, which take part in a study beside ours: with the given budget, where they have one."""
    joined = []
    for name in patterns.registry.added():
        cls = patterns.find(name)
        try:
            pattern = cls.examples()[0]
        except Exception as error:
            raise ValueError(f"pattern {name!r}: no instance to run ({error}); give its knobs defaults") from None
        with suppress(Exception):  # a user's own rules may forbid that budget: then its default it is
            pattern = pattern.with_budget(size) or pattern
        joined.append(pattern)
    return joined


def joined_tasks() -> list[str]:
    """The names of a user's tasks."""
    return tasks.registry.added()
