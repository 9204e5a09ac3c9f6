"""``semfocus run --dry-run``: what a command would train. Nothing is trained, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..lab.borrow import lendable
from ..lab.execute import with_what_was_recorded
from ..lab.part import Part
from ..lab.store import Manifest, Store
from ..lab.study import Study

COUNTS = ("arms", "seeds", "epochs", "runs", "over")


def preview(study: Study, manifest: Manifest, root: Path, part: Part, say: Callable[[str], None]) -> None:
    """Panel by panel: how many runs of how many epochs, and how many of them are over."""
    store = Store(root, study.name)
    planned = with_what_was_recorded(store, manifest)
    now = part.of(planned)
    lent = {run.run for run in lendable(store, now.configs(), type(study).measure is not Study.measure)}

    table = Table(title=f"{study.name}, {manifest.question.size}", title_justify="left")
    table.add_column("panel")
    for name in COUNTS:
        table.add_column(name, justify="right")
    runs: set[str] = set()  # panels may share some
    over: set[str] = set()
    for panel in dict.fromkeys(arm.panel for arm in now.arms):
        arms = [arm for arm in now.arms if arm.panel == panel]
        names = [now.run_of(arm, seed) for arm in arms for seed in now.seeds_of(arm)]
        done = [name for name in names if name in lent or store.run(name).is_finished()]
        seeds = {len(now.seeds_of(arm)) for arm in arms}
        counts = (len(arms), _span(seeds), arms[0].config.train.epochs, len(names), len(done))
        table.add_row(Text(panel), *map(str, counts))
        runs.update(names)
        over.update(done)
    Console().print(table)
    later = " and what these choose" if type(study).follow_up is not Study.follow_up else ""
    say(f"{len(runs - over)} of {len(runs)} runs to train{later}; nothing was trained or written")


def _span(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
