"""Measurements on trained models: done once per run, kept beside its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ..diagnostics import Probe
from ..model import Transformer
from ..training.data import make_split
from ..training.files import finite, write_json
from ..training.load import load_run
from ..training.locks import locked
from .results import MEASURED, Run

#: Seconds between lines about progress.
LINE_EVERY = 10.0


def measure_runs(
    runs: Iterable[Run],
    name: str,
    function: Callable[[Run], dict[str, Any]],
    say: Callable[[str], None],
    *,
    trained: bool = True,
) -> None:
    """Applies a function to every finished run that lacks its result, and writes the result under ``name``.

    Runs without weights (restored, or packed without them) are passed over: one of them must not stop the others.
    ``trained``: False where the function looks at no weights.
    """
    waiting = [run for run in runs if run.status == "finished" and name not in run.measured]
    bare = [run for run in waiting if trained and not run.directory.has_weights()]
    if bare:
        say(f"{name}: {len(bare)} of {len(waiting)} models came without weights; to measure them, train them again")
        waiting = [run for run in waiting if run not in bare]
    said = time.monotonic()
    if waiting:
        say(f"measuring {name} on {len(waiting)} trained models")
    for number, run in enumerate(waiting, 1):
        _keep(run, name, finite(function(run)))
        if time.monotonic() - said >= LINE_EVERY:
            said = time.monotonic()
            say(f"measured {number} of {len(waiting)}")


def _keep(run: Run, name: str, found: Any) -> None:
    """Beside what others have measured, or brought by ``unpack``, since this run was read."""
    with locked(run.directory.path.parents[1]):
        now = replace(run).measured  # of a new reader, who has not looked yet
        run.measured.update({**now, name: found})
        write_json(run.directory.path / MEASURED, run.measured)


def probe_of(run: Run, examples: int, device: str = "cpu", *, untrained: bool = False) -> Probe:
    """A probe of a run's model on its own first training examples, with their targets.

    ``untrained``: as it was at initialisation, which its config and seed determine.
    """
    config = run.directory.config()
    if untrained:
        model = Transformer(config.model_config(), config.pattern, config.seed, device=device)
    else:
        model = load_run(run.directory.path, device)
    tokens, targets = (part[:examples].long().to(device) for part in make_split(config, "train")[:2])
    return Probe.of_model(model, tokens, targets=targets)  # (b, t), (b, outputs)
