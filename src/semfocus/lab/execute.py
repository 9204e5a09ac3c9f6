"""Runs a study: plans its arms, trains what is missing, asks for follow-ups, times the steps, writes the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..training.progress import Progress
from ..training.protocol import RunConfig
from ..training.strict import ConfigError
from ..training.trainer import Trainer
from .cost import Clock
from .overrides import overridden
from .results import Results
from .store import Manifest, Question, Store
from .study import Arm, Study, check_arms

#: Trains configs into a store's folder; finished runs are not repeated.
Executor = Callable[[Store, Sequence[RunConfig]], None]


def ask(study: Study, size: str, seeds: int | None, overrides: Sequence[str], plugins: Sequence[str] = ()) -> Question:
    """A checked question."""
    own = study.size(size).seeds
    changed = bool(overrides or plugins) or (seeds is not None and seeds != own)
    return Question(study.name, size, own if seeds is None else seeds, tuple(overrides), changed, tuple(plugins))


def plan(study: Study, question: Question) -> Manifest:
    """The runs that can be named before anything has run, with the overrides applied."""
    arms = overridden(study, study.runs(question.size), question.overrides)
    return _manifest(study, question, arms)


def _manifest(study: Study, question: Question, arms: Sequence[Arm]) -> Manifest:
    check_arms(study, arms)
    return Manifest(question, tuple(arms))


def execute(
    study: Study,
    question: Question,
    root: Path,
    train: Executor,
    say: Callable[[str], None],
    resumed: Manifest | None = None,
) -> Results:
    """Trains all runs of a question, its follow-ups included. Running it again goes on where it stopped.

    ``resumed`` is the manifest of an earlier call, whose runs are kept as they were planned then.
    """
    store = Store(root, study.name)
    manifest = replace(resumed, recorded={}) if resumed else _keep_date(store, plan(study, question))
    _refuse_empty(manifest)
    store.write(manifest)
    train(store, manifest.configs())
    results = Results(store, manifest)
    known = {(arm.panel, arm.label) for arm in manifest.arms}
    more = [arm for arm in study.follow_up(question.size, results) if (arm.panel, arm.label) not in known]
    if more:
        say(f"{len(more)} follow-up arms, chosen by what the first ones gave")
        arms = (*manifest.arms, *more)
        manifest = replace(_manifest(study, question, arms), created=manifest.created)
        store.write(manifest)
        train(store, manifest.configs())
        results = Results(store, manifest)
    return results


def _keep_date(store: Store, manifest: Manifest) -> Manifest:
    """A question that was asked before keeps its date."""
    if manifest.question.name in store.names():
        return replace(manifest, created=store.manifest(manifest.question.name).created)
    return manifest


def _refuse_empty(manifest: Manifest) -> None:
    for arm in manifest.arms:
        if arm.config.train.epochs < 1:
            raise ConfigError("train.epochs is 0; a study needs at least 1")


def on_this_machine(
    device: str, threads: int | None, progress: Progress, stopping: Callable[[], bool] = lambda: False
) -> Executor:
    """The ordinary executor: one process, one device."""

    def train(store: Store, configs: Sequence[RunConfig]) -> None:
        Trainer(store.path, device=device, threads=threads, progress=progress, stopping=stopping).run(configs)

    return train


def time_steps(results: Results, device: str, say: Callable[[str], None]) -> None:
    """Measures the step of every pattern alone, where that has not been done."""
    clock = Clock(results.store.path / "clock.json", torch.device(device))
    waiting = [arm.config for arm in results.arms if clock.get(arm.config) is None]
    if waiting:
        say("timing one step of each pattern alone")
    for config in waiting:
        clock.measure(config)
