"""A small, honest comparison that runs on a CPU in minutes: who reaches 95 % of the training examples, and when?

Even Pairs (is the first token equal to the last?) at a quarter of the paper's size. Beside full, banded and top-k
attention it trains top-k's cheapest rival: full attention with its scores multiplied by four.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .patterns.banded import Banded
from .patterns.base import Pattern
from .patterns.full import Full
from .patterns.top_k import TopK
from .training import RunConfig
from .training.files import write_json
from .training.progress import Progress
from .training.run_directory import RunDirectory
from .training.trainer import Trainer

VARIANTS: dict[str, tuple[Pattern, float]] = {
    "full": (Full(), 1.0),
    "full, scores x 4": (Full(), 4.0),
    "banded(5)": (Banded(5), 1.0),
    "top-k(5)": (TopK(5), 1.0),
}
SIZE: dict[str, Any] = {
    "task": {"name": "even_pairs", "length": 20},
    "model": {"width": 32, "mlp_width": 32, "blocks": 2},
    "data": {"train": 2000, "heldout": 500},
}


def configs(seeds: int, epochs: int) -> dict[str, list[RunConfig]]:
    """The runs of each variant, one per seed. All variants of one seed see the same data and start from one point."""
    plan = {}
    for name, (pattern, scale) in VARIANTS.items():
        base = RunConfig.from_dict({**SIZE, "pattern": pattern, "train": {"epochs": epochs}})
        base = dataclasses.replace(base, model=dataclasses.replace(base.model, attention_scale=scale))
        plan[name] = [dataclasses.replace(base, seed=seed) for seed in range(seeds)]
    return plan


def run(out: Path, device: str, seeds: int, epochs: int, console: Console) -> None:
    """Trains (or goes on training) all variants, prints the table and writes ``results.json``."""
    plan = configs(seeds, epochs)
    console.print(
        f"Even Pairs, length 20, 2 blocks of width 32, 2,000 examples, {epochs} epochs: "
        f"{len(plan)} variants x {seeds} seeds. Not the paper's size.",
        highlight=False,
    )
    with Progress(console) as progress:
        Trainer(out, device=device, progress=progress).run([c for runs in plan.values() for c in runs])
    results = {name: [RunDirectory(out, c.hash).summary() for c in runs] for name, runs in plan.items()}
    write_json(out / "results.json", {"epochs": epochs, "seeds": seeds, "variants": results})
    console.print(table(results, epochs))
    console.print(
        "Epoch at which 95 % of the training examples are first classified correctly; one number per seed. "
        "Banded(5) with 2 blocks carries a token only a few positions, so first and last never meet: impossible, "
        f"not slow. {seeds} seeds show an effect; they do not measure it.",
        highlight=False,
    )
    console.print(f"wrote {out / 'results.json'} and {out / 'runs'}/", highlight=False, soft_wrap=True)


def table(results: dict[str, list[dict[str, Any]]], epochs: int) -> Table:
    """One row per variant."""
    shown = Table(title="Convergence on Even Pairs")
    for column in ("attention", "epochs to 95 %, per seed", "median", "held-out accuracy, per seed"):
        shown.add_column(column, justify="left" if column == "attention" else "right")
    for name, summaries in results.items():
        times = [s["train_convergence"]["0.95"] for s in summaries]
        # Censored at the last epoch: a run that never got there counts as later than all that did.
        ordered = sorted(epochs + 1 if t is None else t for t in times)
        middle = ordered[len(ordered) // 2]  # of an even number the later one: it is an epoch, never between two
        accuracies = ", ".join("-" if (a := s["last_heldout_accuracy"]) is None else f"{a:.0%}" for s in summaries)
        shown.add_row(name, ", ".join(_shown(t, epochs) for t in times), _shown(middle, epochs), accuracies)
    return shown


def _shown(epoch: int | None, epochs: int) -> str:
    return f"> {epochs}" if epoch is None or epoch > epochs else str(epoch)
