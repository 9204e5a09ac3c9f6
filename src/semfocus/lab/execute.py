"""Runs a study: plans its arms, trains what is missing, asks for follow-ups, times the steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..language.config import LanguageConfig
from ..language.trainer import LanguageTrainer
from ..registry import suggestion
from ..text.corpus import refuse_another
from ..training.files import StorageError
from ..training.progress import Progress
from ..training.protocol import RunConfig
from ..training.strict import ConfigError
from ..training.trainer import Trainer
from .borrow import borrow
from .claims import Claim, Contrast
from .configs import Config, text_hash
from .cost import Clock
from .overrides import overridden, parse
from .part import Part
from .results import Results
from .store import Manifest, Question, Store
from .study import Arm, Study, check_arms, listed, listed_arms

WHOLE = Part()
#: Trains configs into a store's folder; finished runs are not repeated.
Executor = Callable[[Store, Sequence[Config]], None]


def ask(study: Study, size: str, seeds: int | None, overrides: Sequence[str], plugins: Sequence[str] = ()) -> Question:
    """A checked question."""
    own = study.size(size).seeds
    changed = bool(overrides or plugins) or (seeds is not None and seeds != own)
    return Question(study.name, size, own if seeds is None else seeds, tuple(overrides), changed, tuple(plugins))


def plan(study: Study, question: Question) -> Manifest:
    """The runs that can be named before anything has run, with the overrides applied."""
    arms = _laid_over(study, question, listed_arms(study, "runs", study.runs(question.size)))
    # Before hours of training, not after.
    later = _laid_over(study, question, listed_arms(study, "foreseen", study.foreseen(question.size)))
    check_arms(study, (*arms, *later))
    manifest = Manifest(question, tuple(arms))
    _check_names(
        study, listed(study, "claims", study.claims(Results(Store(Path(), study.name), manifest)), Claim), arms
    )
    return manifest


def _laid_over(study: Study, question: Question, arms: Sequence[Arm]) -> list[Arm]:
    """Arms with the question's overrides, settled."""
    if not arms:  # a study that is resumed keeps what it was planned with, also where that would be refused today
        return []
    return study.settled(question.size, overridden(study, question.size, arms, question.overrides))


def _as_planned(manifest: Manifest) -> Question:
    """The question, with its text where it was found at the start: it may be resumed from another folder."""
    corpus = next((arm.config.corpus for arm in manifest.arms if isinstance(arm.config, LanguageConfig)), "")
    asked = manifest.question.overrides
    found = (f"corpus={json.dumps(corpus)}" if parse(text)[0] == ("corpus",) else text for text in asked)
    return replace(manifest.question, overrides=tuple(found))


def _check_names(study: Study, claims: Sequence[Claim], arms: Sequence[Arm]) -> None:
    """A claim about an arm that is not there would be called unfinished for ever. Those of follow-ups may come yet."""
    panels: dict[str, set[str]] = {}
    for arm in arms:
        panels.setdefault(arm.panel, set()).add(arm.label)
    for claim in claims:
        for one in getattr(claim, "contrasts", ()):
            if not isinstance(one, Contrast):
                raise ConfigError(f"claim {claim.id!r} has {one!r:.80}; its contrasts must be Contrast(panel, a, b)")
            if type(study).follow_up is not Study.follow_up:
                continue
            if one.panel not in panels:
                raise ConfigError(f"claim {claim.id!r} names panel {one.panel!r}; {suggestion(one.panel, panels)}")
            for label in (one.a, one.b):
                if label not in panels[one.panel]:
                    nearest = suggestion(label, panels[one.panel])
                    raise ConfigError(f"claim {claim.id!r} names arm {label!r} of panel {one.panel!r}; {nearest}")


def execute(
    study: Study,
    question: Question,
    root: Path,
    train: Executor,
    say: Callable[[str], None],
    resumed: Manifest | None = None,
    planned: Manifest | None = None,
    part: Part = WHOLE,
) -> Results:
    """Trains all runs of a question, its follow-ups included. Running it again goes on where it stopped.

    ``resumed`` is the manifest of an earlier call, whose runs are kept as they were planned then; ``planned`` is what
    ``plan`` gave, for who has called it already. Of a ``part``, the rest of the question stays missing.
    """
    store = Store(root, study.name)
    if resumed:
        manifest = replace(resumed, recorded={})
    else:
        manifest = with_what_was_recorded(store, planned or plan(study, question))
    _refuse_empty(manifest)
    manifest = store.write(manifest)
    now = part.of(manifest)
    weights = type(study).measure is not Study.measure
    _train(store, now, train, say, weights)
    over = _panels_that_are_over(Results(store, manifest), {arm.panel for arm in now.arms})
    follow_ups = study.follow_up(question.size, Results(store, over)) if over.arms else []
    found = listed_arms(study, "follow_up", follow_ups)
    known = {arm.key for arm in manifest.arms}
    # Those that are planned already stay as they are, also where their overrides would be refused today.
    new = [arm for arm in found if arm.key not in known]
    more = _laid_over(study, _as_planned(manifest), new)
    if more:
        say(f"{len(more)} follow-up arms, chosen by what the first ones gave")
        check_arms(study, (*manifest.arms, *more))
        manifest = store.write(manifest, more)
    # What was chosen before, here or by another process, stays chosen, and may have been interrupted.
    arms = {arm.key: arm for arm in manifest.arms}
    chosen = tuple(arms[arm.key] for arm in found)
    rest = replace(part, only=()).of(replace(manifest, arms=chosen))
    if any(run.summary is None for _, run in Results(store, rest).every_run()):
        _train(store, rest, train, say, weights)
    return Results(store, manifest)


def _panels_that_are_over(results: Results, panels: set[str]) -> Manifest:
    """Of these panels. A choice by the outcome of half a grid would be a wrong one, and it is kept for good."""
    over = panels - {arm.panel for arm, run in results.every_run() if run.summary is None}
    return replace(results.manifest, arms=tuple(arm for arm in results.manifest.arms if arm.panel in over))


def _train(store: Store, manifest: Manifest, train: Executor, say: Callable[[str], None], weights: bool) -> None:
    borrow(store, manifest.configs(), say, weights)
    train(store, manifest.configs())


def with_what_was_recorded(store: Store, manifest: Manifest) -> Manifest:
    """A question that was asked before as it is now keeps its dates, and the follow-up arms that were found then.

    Where its text has changed since, it is refused: its runs would all begin anew.
    """
    try:
        old = store.manifest(manifest.question.name)
    except StorageError:  # none yet, or damaged and about to be written anew
        return manifest
    _refuse_another_text(old, manifest)
    if old.arms[: len(manifest.arms)] != manifest.arms:
        return manifest
    return replace(manifest, created=old.created, arms=old.arms, planned=old.planned)


def _refuse_another_text(old: Manifest, new: Manifest) -> None:
    known = {arm.key: text_hash(arm.config) for arm in old.arms}
    for arm in new.arms:
        field = "text.sha256" if isinstance(arm.config, LanguageConfig) else "task.options.sha256"
        refuse_another(field, known.get(arm.key, ""), text_hash(arm.config))


def complete(results: Results) -> None:
    """Marks a question if its runs are all there, and with them follow-ups and measurements."""
    store = results.store

    def over(manifest: Manifest) -> bool:
        return all(run.summary is not None for _, run in Results(store, manifest).every_run())

    store.write(replace(results.manifest, recorded={}), complete=over)


def _refuse_empty(manifest: Manifest) -> None:
    if not manifest.arms:
        raise ConfigError(f"study {manifest.question.study!r} has no runs at size {manifest.question.size!r}")
    for arm in manifest.arms:
        if arm.config.train.epochs < 1:
            raise ConfigError("train.epochs is 0; a study needs at least 1")


def on_this_machine(
    device: str, threads: int | None, progress: Progress, stopping: Callable[[], bool] = lambda: False
) -> Executor:
    """The ordinary executor: one process, one device (language models: as many as ``torchrun`` started)."""

    def train(store: Store, configs: Sequence[Config]) -> None:
        classifiers = [config for config in configs if isinstance(config, RunConfig)]
        language = [config for config in configs if isinstance(config, LanguageConfig)]
        if classifiers:
            Trainer(store.path, device=device, threads=threads, progress=progress, stopping=stopping).run(classifiers)
        if language:
            LanguageTrainer(store.path, device=device, threads=threads, progress=progress, stopping=stopping).run(
                language
            )

    return train


def time_steps(results: Results, device: str, say: Callable[[str], None]) -> None:
    """Measures the step of every pattern alone, where that has not been done. Language models are timed in training."""
    clock = Clock(results.store.path / "clock.json", torch.device(device))
    known = [arm.arm.config for arm in results.arms]
    waiting = [config for config in known if isinstance(config, RunConfig) and clock.get(config) is None]
    if waiting:
        say("timing one step of each pattern alone")
    for config in waiting:
        clock.measure(config)
