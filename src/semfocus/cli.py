"""The command line. Imports what a command needs when it runs, so that ``--help`` answers at once."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import __version__

EPILOG = """\
examples:
  semfocus list                                        everything there is, one line each
  semfocus run convergence --size quick                does focus converge faster? 2 CPU cores, minutes
  semfocus run convergence --size small --device cuda  the same at the paper's size on two tasks
  semfocus run all --size paper --device cuda          the whole paper, and what it lacks: many hours
  semfocus show "banded(5, global_tokens=1)"           who attends to whom
"""


class UserError(Exception):
    """A mistake of the user's: printed as one sentence, exit status 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    options = parse(arguments)
    module, function = options.command
    try:
        command = getattr(importlib.import_module(f"semfocus.commands.{module}"), function)
        status: int = command(options)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"semfocus: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "semfocus":
            raise
        print(f"semfocus: this needs {error.name}: pip install 'semfocus[lab]'", file=sys.stderr)
        return 2
    except PermissionError as error:
        print(f"semfocus: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain at its end
        return 1
    except KeyboardInterrupt:
        print(
            f"\nsemfocus: stopped; {getattr(options, 'again', 'run the same command again to go on')}", file=sys.stderr
        )
        return 130


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Arguments, checked. Overrides may stand anywhere: argparse gathers them before the first option only."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    if rest and hasattr(options, "overrides") and not any(word.startswith("-") for word in rest):
        options.overrides = [*options.overrides, *rest]
    elif rest:
        unknown = [word for word in rest if word.startswith("-") or not hasattr(options, "overrides")]
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(
        prog="semfocus",
        description="Attention that focuses: a laboratory for top-k attention.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"semfocus {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _look(commands)
    _study(commands)
    _travel(commands)
    _results(commands)
    _train(commands)
    return top


Commands = argparse._SubParsersAction  # argparse has no public name for it


def _look(commands: Commands[argparse.ArgumentParser]) -> None:
    listed = commands.add_parser("list", help="patterns, tasks, studies and diagnostics, one line each")
    listed.add_argument("noun", nargs="?", choices=("patterns", "tasks", "studies", "diagnostics"))
    _plugin(listed)
    listed.set_defaults(command=("look", "show_list"))

    show = commands.add_parser("show", help="draw who attends to whom")
    show.add_argument("pattern", metavar="PATTERN", help='such as top_k(5) or "banded(5, global_tokens=1)"')
    show.add_argument("--length", type=at_most(500), default=24, metavar="N", help="tokens, up to 500 (default: 24)")
    show.add_argument("--causal", action="store_true", help="no query sees later keys")
    show.add_argument("--seed", type=at_most(2**62), default=0, metavar="N", help="of the random scores (default: 0)")
    _plugin(show)
    show.set_defaults(command=("look", "show_pattern"))

    check = commands.add_parser("check", help="run the contract tests on a pattern of your own")
    check.add_argument("file", type=Path, help="a Python file with a class under @semfocus.register")
    check.set_defaults(command=("look", "check_pattern"))


def _study(commands: Commands[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="run a study, or all, and write its page",
        description="Runs a study, or all of them, or goes on; writes a page for each, and an index of the folder.",
    )
    run.add_argument("study", metavar="STUDY", help="one of `semfocus list studies`, or all: one after another")
    run.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="lay over every run's config: model.width=32")
    run.add_argument(
        "--size", default="quick", metavar="SIZE", help="smoke, quick (default), small or paper (language_model: ptb)"
    )
    run.add_argument("--seeds", type=positive, metavar="N", help="seeds per arm (default: the size's own)")
    run.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PANEL[:ARM]",
        help="train only this part now, the rest later: even_pairs, 'listops:top-k(5)'; may be given again",
    )
    run.add_argument("--first-seeds", type=positive, metavar="N", help="train only the first N seeds now")
    run.add_argument("--dry-run", action="store_true", help="say what would be trained, and stop")
    run.add_argument("--out", type=Path, default=Path("lab"), metavar="DIR", help="where to write (default: lab)")
    run.add_argument("--no-clock", action="store_true", help="do not time one step of each pattern at the end")
    _where(run)
    run.set_defaults(command=("study", "run_study"))

    resume = commands.add_parser("resume", help="go on with every unfinished study in a folder")
    resume.add_argument("directory", type=Path, metavar="DIR")
    resume.add_argument("--no-clock", action="store_true", help=argparse.SUPPRESS)
    _where(resume)
    resume.set_defaults(command=("study", "resume_studies"))

    for name, text in (("status", "how far the studies in a folder are"), ("report", "write their pages again")):
        command = commands.add_parser(name, help=text)
        command.add_argument("directory", type=Path, metavar="DIR")
        _plugin(command)
        command.set_defaults(command=("study", f"show_{name}"))

    live = commands.add_parser("live", help="mirror a running study into TensorBoard")
    live.add_argument("directory", type=Path, metavar="DIR")
    live.add_argument("--once", action="store_true", help="mirror what is there and stop")
    live.set_defaults(command=("study", "follow_live"))


def _travel(commands: Commands[argparse.ArgumentParser]) -> None:
    pack = commands.add_parser("pack", help="a folder's finished runs as zip files of at most 15 MB")
    pack.add_argument("directory", type=Path, metavar="DIR")
    pack.add_argument("file", type=Path, metavar="FILE", help="x.zip; more parts are x.part2.zip and so on")
    pack.add_argument("--new", action="store_true", help="only what no earlier pack wrote")
    pack.add_argument("--without-weights", action="store_true", help="curves and summaries only")
    pack.set_defaults(command=("travel", "pack_store"))

    unpack = commands.add_parser("unpack", help="add such files to a folder")
    unpack.add_argument("file", type=Path, metavar="FILE")
    unpack.add_argument("directory", type=Path, metavar="DIR")
    unpack.set_defaults(command=("travel", "unpack_store"))


def _results(commands: Commands[argparse.ArgumentParser]) -> None:
    results = commands.add_parser("results", help="keep a lab's results as small files, and build everything from them")
    verbs = results.add_subparsers(required=True, metavar="VERB")

    add = verbs.add_parser("add", help="add a lab's runs, finished or not, to results/<study>-<size>")
    add.add_argument("directory", type=Path, metavar="LAB")
    add.add_argument("--study", metavar="STUDY", help="only this study (default: all)")
    add.add_argument("--size", metavar="SIZE", help="only this size, as `semfocus status` names it (default: all)")
    add.add_argument("--into", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    add.add_argument(
        "--wall",
        type=seconds,
        metavar="SECONDS",
        help="how long the new runs took in all, where several processes shared a device",
    )
    add.set_defaults(command=("results", "add_results"))

    build = verbs.add_parser("build", help="write pages, figures and tables, and fill README.md")
    build.add_argument("folder", nargs="?", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    build.add_argument("--documents", type=Path, metavar="DIR", help="where README.md lies (default: above DIR)")
    build.add_argument("--no-documents", action="store_true", help="fill no document")
    build.set_defaults(command=("results", "build_results"))

    restore = verbs.add_parser("restore", help="a lab's folder from stored results, without weights")
    restore.add_argument("folder", type=Path, metavar="RESULTS", help="results/<study>-<size>")
    restore.add_argument("directory", type=Path, metavar="LAB")
    restore.set_defaults(command=("results", "restore_results"))

    check = verbs.add_parser(
        "check",
        help="train a run's first epochs again and compare them",
        description="Trains a run's first epochs again and compares them with its stored curve. Where they disagree, "
        "three copies of the run show how far rounding alone moves it. Status 1: they disagree by more than that.",
    )
    check.add_argument("folder", type=Path, metavar="RESULTS", help="results/<study>-<size>")
    check.add_argument("run", metavar="RUN", help="its name, as in runs.csv")
    check.add_argument("--epochs", type=positive, default=5, metavar="N", help="default: 5")
    _machine(check)
    check.set_defaults(command=("results", "check_result"))
    for verb in (add, build, restore, check):
        _plugin(verb)


def _train(commands: Commands[argparse.ArgumentParser]) -> None:
    train = commands.add_parser("train", help="train runs described in TOML or JSON files")
    train.add_argument("configs", nargs="+", type=Path, metavar="CONFIG", help="a .toml or .json file per run")
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the run directories go")
    train.add_argument("--seeds", type=positive, default=1, metavar="N", help="train each run with N seeds, counted up")
    _machine(train)
    train.add_argument("--checkpoint-every", type=positive, metavar="N", help="checkpoint every N epochs too")
    _plugin(train)
    train.set_defaults(command=("train", "train_runs"))


def _machine(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU if any")
    command.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: measured)")


def _where(command: argparse.ArgumentParser) -> None:
    _machine(command)
    command.add_argument(
        "--on", default="local", metavar="WHERE", help="local (default), ray, or ray://HOST:PORT: many machines"
    )
    _plugin(command)


def _plugin(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plugin", type=Path, action="append", default=[], metavar="FILE", help="a file with patterns, tasks, studies"
    )


def at_most(limit: int) -> Callable[[str], int]:
    """An argparse type: a whole number from 0 to ``limit``."""

    def number(text: str) -> int:
        if not text.isdecimal() or not int(text) <= limit:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {limit}")
        return int(text)

    return number


def positive(text: str) -> int:
    """An argparse type."""
    number = int(text) if text.isdecimal() and len(text) < 10 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 999999999")
    return number


def seconds(text: str) -> float:
    """An argparse type."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


if __name__ == "__main__":
    from semfocus.cli import main as run  # this file again, under the name whose UserError the commands raise

    sys.exit(run())
