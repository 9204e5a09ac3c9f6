"""``semfocus run``, ``resume``, ``status``, ``report`` and ``live``"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..cli import UserError
from ..registry import suggestion
from .common import chosen_device, load_plugins, need, need_lab, one_sentence, stopping_after_the_epoch, users_code

if TYPE_CHECKING:
    from rich.console import Console

    from ..lab.execute import Executor
    from ..lab.part import Part
    from ..lab.results import Results
    from ..lab.store import Manifest, Store
    from ..lab.study import Study
    from ..training.progress import Progress


T = TypeVar("T")
#: In the place of a study's name: every study.
ALL = "all"
STATUSES = ("finished", "diverged", "running", "stopped", "waiting")


def run_study(options: argparse.Namespace) -> int:
    """Plans, trains, times, judges, and writes the page: of one study, or one after another of all that have the size.

    All are planned before the first is trained, so that what one of them refuses is said at once.
    """
    need_lab()
    load_plugins(options.plugin)
    if _followed(options):
        return 0
    from ..lab.part import Part

    part = Part(tuple(options.only), options.first_seeds)
    with one_sentence():
        planned = [_planned(name, options, part) for name in _chosen(options)]

    def run(one: tuple[Study, Manifest]) -> None:
        if options.dry_run:
            from .preview import preview

            return preview(*one, options.out, part, print)
        options.again = _again(options.out / one[0].name, options.plugin)
        _one(*one, options.out, options, part)

    status = _each(planned, run, go_on=len(planned) > 1 and _alone())
    _dismiss(options)
    return status


def _chosen(options: argparse.Namespace) -> list[str]:
    """The names of the studies to run."""
    if options.study != ALL:
        return [options.study]
    from .. import studies

    if options.only:
        raise UserError("--only names panels of one study; leave it out, or name the study")
    names = studies.names()
    having = [name for name in names if options.size in getattr(studies.get(name), "sizes", ())]
    if not having:
        sizes = {size for name in names for size in getattr(studies.get(name), "sizes", ())}
        raise UserError(f"size is {options.size!r}; {suggestion(options.size, sizes)}")
    rest = [name for name in names if name not in having]
    without = f"; without {', '.join(rest)}, which have no size {options.size}" if rest else ""
    count = "1 study" if len(having) == 1 else f"{len(having)} studies"
    print(f"{count}: {', '.join(having)}{without}\n", flush=True)
    return having


def _planned(name: str, options: argparse.Namespace, part: Part) -> tuple[Study, Manifest]:
    from .. import studies
    from ..lab.execute import ask, plan, with_what_was_recorded
    from ..lab.store import Store

    try:
        with users_code():
            study = studies.get(name)
            question = ask(study, options.size, options.seeds, options.overrides, [str(p) for p in options.plugin])
            manifest = plan(study, question)
            part.check(with_what_was_recorded(Store(options.out, study.name), manifest))
    except ValueError as error:  # an unknown study, size or field
        raise UserError(f"{name}: {error}" if options.study == ALL else str(error)) from None
    return study, manifest


def resume_studies(options: argparse.Namespace) -> int:
    """Goes on with what a folder's manifests name."""
    need_lab()
    load_plugins(options.plugin)
    if _followed(options):
        return 0
    from ..lab.execute import WHOLE
    from ..lab.results import Results

    options.again = _again(options.directory, options.plugin)
    worked = False

    def resume(asked: tuple[Store, str]) -> None:
        nonlocal worked
        store, name = asked
        manifest = store.manifest(name)
        unfinished = any(run.summary is None for _, run in Results(store, manifest).every_run())
        if unfinished or not manifest.complete:
            _one(study_named(manifest.question.study), manifest, store.path.parent, options, WHOLE, resumed=True)
            worked = True

    status = _each(_questions(options.directory), resume, go_on=_alone())
    _dismiss(options)
    if not worked and not status:
        print(f"nothing to resume: every study in {options.directory} is finished")
    return status


def _questions(directory: Path) -> list[tuple[Store, str]]:
    """Every question of a folder: the store it was asked in, and its name."""
    from ..lab.store import stores

    with one_sentence():
        return [(store, name) for store in stores(directory) for name in store.names()]


def _each(things: Sequence[T], treat: Callable[[T], None], go_on: bool = True) -> int:
    """Treats one after another. One that cannot be does not keep the others waiting: it is said, and 2.

    Unless they shall not ``go_on``: then it ends the command.
    """
    status = 0
    for thing in things:
        try:
            with one_sentence():
                treat(thing)
        except UserError as error:
            if not go_on:
                raise
            print(f"semfocus: {error}", file=sys.stderr)
            status = 2
    return status


def _one(
    study: Study, manifest: Manifest, root: Path, options: argparse.Namespace, part: Part, resumed: bool = False
) -> None:
    """Trains, measures and judges a part of what a manifest plans, and writes the page."""
    import torch
    from rich.console import Console

    from ..lab.execute import complete, execute, time_steps
    from ..lab.missing import missing
    from ..lab.results import Results
    from ..report.page import build
    from ..training.progress import Progress

    device = chosen_device(options.device)
    console = Console()

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    question = manifest.question
    size = study.size(question.size)
    say(f"{study.name}: {study.summary}")
    now, all_runs = part.of(manifest), len(manifest.configs())
    runs = f"{all_runs} runs" if now == manifest else f"{len(now.configs())} of its {all_runs} runs now"
    say(f"size {question.size} ({size.summary}): {len(now.arms)} arms, {runs}, on {device}")
    with stopping_after_the_epoch() as stopping, Progress(console) as progress:
        train = _executor(options, device, progress, stopping)
        results = execute(study, question, root, train, say, manifest if resumed else None, manifest, part)
        if stopping():
            raise KeyboardInterrupt
        stopping.at_once = True  # what is measured is kept model by model
        if device == "cpu":  # small models: a second thread costs more than it brings, unless asked for
            torch.set_num_threads(options.threads or 1)
        study.measure(results, device, say)  # of earlier parts too, if that was interrupted
        if not options.no_clock:
            time_steps(Results(results.store, part.of(results.manifest)), device, say)
    page = build(study, results)
    complete(results)
    _verdicts(study, results, console)
    for sentence in missing(results):
        say(f"missing: {sentence}")
    say(f"the page: {page}")
    if index := _indexed(root):
        say(f"all pages: {index}")


def _indexed(root: Path) -> Path | None:
    """Writes the index above all pages. Where that cannot be, it is said: no reason for a study to fail."""
    from ..report import index
    from ..training.files import StorageError

    try:
        return index.build(root)
    except StorageError as error:
        print(f"semfocus: no index of all pages: {error}", file=sys.stderr)
        return None


def _followed(options: argparse.Namespace) -> bool:
    """Under ``torchrun`` the first process runs the laboratory; the others help it train language models, and end."""
    from ..language.distributed import Place

    if Place.here().first:
        return False
    from ..language.trainer import follow

    with one_sentence():
        follow(chosen_device(options.device))
    return True


def _alone() -> bool:
    """Else other processes may be in the middle of a run that failed here, and never hear of the next."""
    from ..language.distributed import Place

    return Place.here().alone


def _dismiss(options: argparse.Namespace) -> None:
    from ..language.distributed import dismiss

    if not _alone():
        dismiss(chosen_device(options.device))


def _executor(options: argparse.Namespace, device: str, progress: Progress, stopping: Callable[[], bool]) -> Executor:
    if options.on == "local":
        from ..lab.execute import on_this_machine

        return on_this_machine(device, options.threads, progress, stopping)
    if options.on == "ray" or options.on.startswith("ray://"):
        need("ray", "ray")
        from ..lab.cluster import on_ray

        address = options.on if options.on.startswith("ray://") else None
        return on_ray(address, options.device, options.threads, progress, stopping, options.plugin)
    raise UserError(f"--on is {options.on!r}; choose local, ray or ray://HOST:PORT")


def _verdicts(study: Study, results: Results, console: Console) -> None:
    """What the page says first, in the terminal too."""
    from rich.table import Table
    from rich.text import Text

    from ..lab.claims import in_short
    from ..report.page import judged_claims

    table = Table(title=f"{study.name}, {results.question.size}", title_justify="left")
    for column in ("claim", "statement", "verdict", "evidence"):
        table.add_column(column)
    colours = {"confirmed": "green", "refuted": "red", "no difference": "cyan", "undecided": "yellow"}
    for judged in judged_claims(study, results):
        claim = judged.claim
        short = in_short(judged) if results.question.size != "smoke" else []
        evidence = "\n".join(f"{piece.word} {piece.text}".lstrip() for piece in short) or judged.sentence
        table.add_row(
            Text(claim.id), Text(claim.statement), Text(judged.verdict, colours[judged.verdict]), Text(evidence)
        )
    console.print(table)
    if results.question.size not in study.paper_sizes:
        console.print("This is not the paper's size.", highlight=False)


def _again(directory: Path, plugins: list[Path]) -> str:
    words = ["semfocus", "resume", str(directory)]
    for path in plugins:
        words += ["--plugin", str(path)]
    return f"the same command goes on; {shlex.join(words)} goes on with the whole study"


def show_status(options: argparse.Namespace) -> int:
    """Two lines per question: how far it is, and how it was asked."""
    need_lab()
    from ..lab.results import Results, Run
    from ..training.locks import in_training

    load_plugins(options.plugin)

    def show(asked: tuple[Store, str]) -> None:
        store, name = asked
        results = Results(store, store.manifest(name))
        training = in_training(store.path)

        def now(run: Run) -> str:
            if run.summary is None and run.directory.run in training:
                return "running"
            return "stopped" if run.status == "begun" else run.status

        counts = Counter({run.directory.run: now(run) for _, run in results.every_run()}.values())
        parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
        print(f"{store.path.name}, {name}: {counts.total()} runs, {', '.join(parts)}")
        print(f"  {results.question.command} --out {shlex.quote(str(store.path.parent))}")

    return _each(_questions(options.directory), show)


def show_report(options: argparse.Namespace) -> int:
    """Every page again, from the folder alone."""
    need_lab()
    from ..lab.results import Results
    from ..report.page import build

    load_plugins(options.plugin)

    def show(asked: tuple[Store, str]) -> None:
        store, name = asked
        results = Results(store, store.manifest(name))
        print(build(study_named(results.question.study), results))

    questions = _questions(options.directory)
    status = _each(questions, show)
    for root in dict.fromkeys(store.path.parent for store, _ in questions):
        _indexed(root)
    return status


def study_named(name: str) -> Study:
    from .. import studies

    try:
        return studies.get(name)
    except ValueError as error:
        raise UserError(f"{error}; was it run with a --plugin?") from None


def follow_live(options: argparse.Namespace) -> int:
    """Into TensorBoard."""
    need_lab()
    need("live", "tensorboard")
    from ..lab.live import follow

    options.again = "what was mirrored stays"
    with one_sentence():
        follow(options.directory, once=options.once)
    return 0
