"""What several commands need."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from ..cli import UserError

#: Seconds within which two signals to stop are one wish.
ONE_WISH = 0.5


def load_plugins(paths: list[Path]) -> None:
    """Runs the files of ``--plugin``."""
    from .. import plugins

    try:
        plugins.load_all(paths)
    except plugins.PluginError as error:
        raise UserError(str(error)) from None


def need(extra: str, *packages: str) -> None:
    """Refuses a command whose packages are not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UserError(f"this command needs {', '.join(missing)}; install with: pip install 'semfocus[{extra}]'")


def need_lab() -> None:
    need("lab", "rich", "safetensors", "scipy", "matplotlib", "jinja2")


def chosen_device(name: str) -> str:
    """``auto`` is a GPU if there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device is cuda; this machine has no CUDA device that torch can use (try cpu)")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def printable(text: str) -> bool:
    """Can the terminal show it?"""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def users_code() -> Iterator[None]:
    """Turns what goes wrong in a plugin into a ``UserError``; what goes wrong in our own code keeps its traceback."""
    from .. import plugins
    from ..patterns.base import PatternError
    from ..tasks.base import TaskError

    try:
        yield
    except Exception as error:
        sentence = plugins.blamed(error) or plugins.blamed(error.__cause__)
        if sentence is None and not isinstance(error, PatternError | TaskError):
            raise
        raise UserError(sentence or str(error)) from None


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turns the errors that are a user's to mend into a ``UserError``."""
    from ..training.files import StorageError
    from ..training.strict import ConfigError
    from ..training.trainer import TrainingError

    try:
        with users_code():
            yield
    except (ConfigError, StorageError, TrainingError) as error:
        raise UserError(str(error)) from None
    except PermissionError as error:  # here too, so that other studies of a folder do not wait
        raise UserError(f"{error.filename}: {error.strerror or error}") from None


class Stopping:
    """Whether to stop. Ctrl-C asks for it, and is answered after the epoch, with a checkpoint; a second one, at once.

    Programs that stop others, such as ``timeout``, send the signal twice in a moment: that is one wish.
    """

    def __init__(self) -> None:
        self.asked: float | None = None
        self.at_once = False  # set where no epoch is under way: the first Ctrl-C then stops at once

    def __call__(self) -> bool:
        return self.asked is not None

    def ask(self, number: int, frame: FrameType | None) -> None:
        """A handler of signals."""
        before, now = self.asked, time.monotonic()
        if before is not None and now - before <= ONE_WISH:
            return
        self.asked = now
        if before is not None or self.at_once:
            raise KeyboardInterrupt
        print("\nsemfocus: stopping after this epoch (Ctrl-C again: at once)", file=sys.stderr)


@contextmanager
def stopping_after_the_epoch() -> Iterator[Stopping]:
    """While it lasts, Ctrl-C asks instead of interrupting."""
    stopping = Stopping()
    try:
        before = signal.signal(signal.SIGINT, stopping.ask)
    except ValueError:  # not the main thread: whoever runs us decides
        yield stopping
        return
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)
