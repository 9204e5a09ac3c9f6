"""The command line. Imports what a command needs when it runs, so that ``--help`` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__


class UserError(Exception):
    """A mistake of the user's: printed as one sentence, exit status 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        return status
    except UserError as error:
        print(f"semfocus: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nsemfocus: stopped; run the same command again to go on", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = argparse.ArgumentParser(prog="semfocus", description="Attention that focuses.")
    top.add_argument("--version", action="version", version=f"semfocus {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="compare full, banded and top-k attention on a small task")
    demo.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="where to write (default: demo)")
    demo.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu")
    demo.add_argument("--seeds", type=positive, default=3, metavar="N", help="seeds per pattern (default: 3)")
    demo.add_argument("--epochs", type=positive, default=45, metavar="N", help="epochs (default: 45)")
    demo.set_defaults(run=run_demo)

    train = commands.add_parser("train", help="train runs described in TOML or JSON files")
    train.add_argument("configs", nargs="+", type=Path, metavar="CONFIG", help="a .toml or .json file per run")
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the run directories go")
    train.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    train.add_argument("--seeds", type=positive, default=1, metavar="N", help="train each run with N seeds, counted up")
    train.add_argument("--threads", type=positive, metavar="N", help="CPU threads (default: measured)")
    train.add_argument("--checkpoint-every", type=positive, metavar="N", help="checkpoint every N epochs too")
    train.add_argument("--plugin", type=Path, action="append", default=[], metavar="FILE", help="registers patterns")
    train.set_defaults(run=run_train)

    check = commands.add_parser("check", help="run the contract tests on a pattern of your own")
    check.add_argument("file", type=Path, help="a Python file with a class under @semfocus.register")
    check.set_defaults(run=run_check)
    return top


def positive(text: str) -> int:
    """An argparse type."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def run_demo(options: argparse.Namespace) -> int:
    """``semfocus demo``"""
    lab_installed()
    from rich.console import Console

    from . import demo
    from .training.files import StorageError

    try:
        demo.run(options.out, chosen_device(options.device), options.seeds, options.epochs, Console())
    except StorageError as error:
        raise UserError(str(error)) from None
    return 0


def run_train(options: argparse.Namespace) -> int:
    """``semfocus train``"""
    lab_installed()
    import dataclasses

    from rich.console import Console

    from .training import ConfigError, RunConfig
    from .training.files import StorageError
    from .training.progress import Progress
    from .training.trainer import Trainer, TrainingError

    for plugin in options.plugin:
        load_plugin(plugin)
    device = chosen_device(options.device)
    console = Console()
    try:
        given = [RunConfig.load(path) for path in options.configs]
        try:
            configs = [dataclasses.replace(c, seed=c.seed + i) for c in given for i in range(options.seeds)]
        except ValueError as error:
            raise UserError(str(error)) from None
        with Progress(console) as progress:
            trainer = Trainer(
                options.out,
                device=device,
                threads=options.threads,
                checkpoint_epochs=options.checkpoint_every,
                progress=progress,
            )
            directories = trainer.run(configs)
    except (ConfigError, StorageError, TrainingError) as error:
        raise UserError(str(error)) from None
    for directory in directories:
        summary = directory.summary()
        epoch = summary["train_convergence"]["0.95"]
        reached = "not reached" if epoch is None else f"epoch {epoch}"
        accuracy = summary["last_heldout_accuracy"]
        shown = "-" if accuracy is None else f"{accuracy:.1%}"
        console.print(
            f"{directory.path}  {summary['status']}  95 % of training examples: {reached}  held-out {shown}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    return 0


def run_check(options: argparse.Namespace) -> int:
    """``semfocus check``"""
    from . import contract, patterns

    before = set(patterns.names())
    load_plugin(options.file)
    new = [name for name in patterns.names() if name not in before]
    if not new:
        raise UserError(f"{options.file} registers no pattern; decorate its class with @semfocus.register")
    broken = 0
    for name in new:
        try:
            examples = patterns.find(name).examples()
        except Exception as error:
            raise UserError(
                f"{name}: no instance to test ({error}); give the knobs defaults or define examples()"
            ) from None
        for pattern in examples:
            failed = contract.failures(pattern)
            broken += len(failed)
            print(f"{pattern.label}: {len(contract.CHECKS) - len(failed)} of {len(contract.CHECKS)} checks passed")
            for check, reason in failed.items():
                print(f"  FAILED {check}: {reason}")
    return 1 if broken else 0


def load_plugin(path: Path) -> None:
    """Runs a user's file, so that what it registers is known."""
    import importlib.util

    if not path.is_file():
        raise UserError(f"{path}: no such file")
    name = f"semfocus_plugin_{path.stem}"  # never the name of a module that exists
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path}: {type(error).__name__}: {error}") from None


def chosen_device(name: str) -> str:
    """``auto`` is a GPU if there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device is cuda; this machine has no CUDA device that torch can use (try cpu)")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def lab_installed() -> None:
    """Training needs the extra packages of ``semfocus[lab]``."""
    from importlib.util import find_spec

    missing = [name for name in ("rich", "safetensors") if find_spec(name) is None]
    if missing:
        raise UserError(f"this command needs {', '.join(missing)}; install with: pip install 'semfocus[lab]'")


if __name__ == "__main__":
    sys.exit(main())
