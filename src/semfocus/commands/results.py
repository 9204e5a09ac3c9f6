"""``semfocus results add``, ``build``, ``restore`` and ``check``"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ..cli import UserError
from .common import chosen_device, load_plugins, need_lab, one_sentence
from .study import study_named


def add_results(options: argparse.Namespace) -> int:
    """Every question in a lab's folder, or those of one study or size."""
    need_lab()
    from ..evidence.folder import add
    from ..lab.store import stores

    load_plugins(options.plugin)
    with one_sentence():
        found = [
            (store, name)
            for store in stores(options.directory)
            for name in store.names()
            if options.study in (None, store.path.name) and options.size in (None, name)
        ]
        if not found:
            known = ", ".join(f"{s.path.name} {name}" for s in stores(options.directory) for name in s.names())
            raise UserError(f"{options.directory} has no such study and size; it has {known or 'none'}")
        if options.wall is not None and len(found) > 1:
            raise UserError("--wall is the time of one question's runs; name it with --study and --size")
        for store, name in found:
            added = add(store, name, options.into, options.wall)
            if not (added.new or added.better or added.kept):
                print(f"{store.path}, {name}: no run of it has begun; nothing to add")
                continue
            size = sum(path.stat().st_size for path in added.path.rglob("*") if path.is_file())
            print(
                f"{added.path}: {added.new} runs new, {added.better} better than before, {added.kept} as before"
                f"{f', {added.dropped} dropped (their arms were planned anew)' if added.dropped else ''}; "
                f"{added.files} files written, {size / 1e6:.2f} MB"
            )
    print(f"semfocus results build {shlex.quote(str(options.into))} writes pages and tables")
    return 0


def build_results(options: argparse.Namespace) -> int:
    """Pages, figures and tables from the data, then the marked places of README.md and docs/reproduction.md."""
    need_lab()
    from ..evidence.build import build_all

    load_plugins(options.plugin)
    documents = None if options.no_documents else (options.documents or options.folder.resolve().parent)
    with one_sentence():
        build_all(options.folder, study_named, lambda text: print(text, flush=True), documents)
    return 0


def restore_results(options: argparse.Namespace) -> int:
    """A lab's folder again, without weights."""
    need_lab()
    from ..evidence.folder import load

    load_plugins(options.plugin)
    with one_sentence():
        results = load(options.folder).restore(options.directory)
    counts = results.statuses()
    print(
        f"{results.store.path}: {counts.total() - counts['waiting']} of {counts.total()} runs restored, without weights"
    )
    return 0


def check_result(options: argparse.Namespace) -> int:
    """Exit status 1 where the stored curve and the new one disagree."""
    need_lab()
    from rich.console import Console

    from ..evidence.check import COPIES_HEADER, HEADER, check, epochs_compared, find
    from ..evidence.folder import load
    from ..evidence.rounding import COPIES
    from ..lab.configs import config_of
    from ..training.progress import Progress

    load_plugins(options.plugin)
    device = chosen_device(options.device)
    folder: Path = options.folder
    with one_sentence():
        record = find(load(folder), options.run)
        epochs = epochs_compared(config_of(record.config), options.epochs)
        where = record.environment.get("device", "an unknown device")
        print(f"run {record.run}, {record.status}, stored on {where} at commit {record.environment.get('commit')}")
        print(f"training its first {epochs} epochs again on {device}", flush=True)
        with Progress(Console(), until=epochs) as progress:
            found = check(record, options.epochs, device, options.threads, progress)
    print(HEADER)
    for one in found.values:
        print(one.shown())
    allowed = found.tolerance
    print(
        f"tolerance: {allowed.loss:g} of a loss, {allowed.accuracy:g} of an accuracy, and after epoch 0 also "
        f"{allowed.share:g} of the stored curve's range over neighbouring epochs"
    )
    if found.may_be_rounding:
        print(
            f"{found.said()}; {COPIES} copies of the run, their weights moved by up to {found.unit:.0e} of their size, "
            "show what rounding does to it",
            flush=True,
        )
        with one_sentence(), Progress(Console(), until=epochs) as progress:
            found = found.beside_copies(device, options.threads, progress)
        print(COPIES_HEADER)
        for one in found.outside:
            print(one.beside_copies())
    print(found.said())
    return 1 if found.wrong else 0
