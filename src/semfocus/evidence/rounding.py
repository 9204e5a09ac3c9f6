"""How far rounding alone moves a run: trained beside it, copies whose initial weights differ in their last place.

Within a few epochs training can make another curve of a last bit, where top-k chooses between equal keys for instance:
then two honest trainings on two kinds of processor part, and neither is wrong. Copies show it, for this run and at this
epoch. Where they stay together, the stored curve must too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..training.population import Population
from ..training.progress import Progress
from ..training.protocol import RunConfig
from ..training.threads import choose_threads
from ..training.trainer import TrainingError, out_of_memory

COPIES = 3
#: The unit in the last place of what matrix products round their factors to, relative to a number.
UNITS = {"tf32": 2.0**-10, "ieee": 2.0**-23}

Rows = list[dict[str, Any]]


def unit(stored: Mapping[str, Any], again: Mapping[str, Any], alike: bool) -> float:
    """By the environments of both trainings. Where they are alike only the order of additions differs, in float32.

    >>> gpu, cpu = {"cuda": "13.0", "precision": "tf32"}, {"cuda": None, "precision": "tf32"}  # a CPU has no TF32
    >>> unit(gpu, cpu, alike=False), unit(cpu, cpu, alike=True)
    (0.0009765625, 1.1920928955078125e-07)
    """
    rough = any(one.get("cuda") and one.get("precision") == "tf32" for one in (stored, again))
    return UNITS["tf32" if rough and not alike else "ieee"]


def train_copies(
    config: RunConfig, epochs: int, moved: float, device: str, threads: int | None, progress: Progress
) -> list[Rows]:
    """Curves of ``COPIES`` trainings whose weights began up to ``moved`` times their size away from the run's."""
    before = torch.get_num_threads()
    try:
        population = Population([config] * COPIES, device)
        if population.device.type == "cpu":
            population.watch = progress.within
            choose_threads(population, threads)
        move(population, moved)
        progress.plan(COPIES, COPIES * config.train.epochs)
        return _curves(population, epochs, progress)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise TrainingError(f"out of memory with {COPIES} copies of the run at once") from None
    finally:
        torch.set_num_threads(before)


def move(population: Population, by: float) -> None:
    """Multiplies every weight by 1 + by * u, with u drawn evenly from -1 to 1, for each member other ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in population.weights.parameters:
            noise = torch.rand(weight.shape, generator=generator, dtype=torch.float64) * 2 - 1
            weight.copy_(weight.double() * (1 + by * noise.to(weight.device)))


def _curves(population: Population, epochs: int, progress: Progress) -> list[Rows]:
    """As a run's curve, without what no check compares; a copy that broke has no rows from there on."""
    config = population.configs[0].train
    curves: list[Rows] = [[] for _ in population.configs]
    for done in range(epochs + 1):
        if done:
            population.train_epoch(done - 1)
        if done % config.eval_every and done != config.epochs:
            continue
        columns: dict[str, list[float]] = {}
        for split in ("train", "heldout"):
            found = population.evaluate(split).columns(split)
            columns |= {name: column.tolist() for name, column in found.items()}
        alive = [i for i, lives in enumerate(population.alive.tolist()) if lives]
        for i in alive:
            curves[i].append({"epoch": done, **{name: values[i] for name, values in columns.items()}})
        if done:
            progress.epoch(done, config.epochs, [curves[i][-1] for i in alive], COPIES)
    return curves


def spread(curves: Sequence[Rows], again: Sequence[Mapping[str, Any]], epoch: int, column: str) -> float:
    """How far the copies are from the run trained again: at most, over the epoch and its two neighbours.

    >>> run = [{"epoch": e, "train_loss": loss} for e, loss in enumerate([0.75, 0.5, 0.25])]
    >>> copy = [{"epoch": e, "train_loss": loss} for e, loss in enumerate([0.75, 0.75, 0.25])]
    >>> [spread([copy], run, epoch, "train_loss") for epoch in (1, 2)]
    [0.25, 0.25]
    """
    own = {row["epoch"]: row.get(column) for row in again}
    here = sorted(own).index(epoch)
    near = [known for known in sorted(own)[max(here - 1, 0) : here + 2] if own[known] is not None]
    apart = (abs(row[column] - own[row["epoch"]]) for curve in curves for row in curve if row["epoch"] in near)
    return max((one for one in apart if math.isfinite(one)), default=0.0)
