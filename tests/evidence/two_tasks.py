"""A tiny study on two tasks, and what tests compare folders by."""

from __future__ import annotations

from pathlib import Path

from semfocus import Full, TopK
from semfocus.evidence.folder import Evidence, load
from semfocus.lab.claims import AsAccurate, Faster, against
from semfocus.lab.store import Store
from semfocus.lab.study import Size, Study, arm
from semfocus.studies._sizes import TINY


class TwoTasks(Study):
    """Is top-k faster on two tasks?

    It cannot be: nothing is learnt in two epochs. Refuted by one task on which it is certainly slower.
    """

    sizes = {"quick": Size("seconds", seeds=2)}  # noqa: RUF012 (a study's sizes are a table)

    def runs(self, size):
        patterns = (Full(), TopK(5))
        arms = [arm(task, pattern, TINY) for task in ("even_pairs", "parity_check") for pattern in patterns]
        return [*arms, arm("even_pairs", Full(), TINY, scale=4.0)]

    def claims(self, results):
        contrasts = against(results.panels, "full", ["top-k(5)"])
        return [
            Faster("C1", "Top-k is faster", contrasts, paper="holds"),
            AsAccurate("C2", "It is as accurate", contrasts, paper="holds"),
        ]


def find(name: str) -> Study:
    assert name == "two_tasks"
    return TwoTasks()


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def folders(store: Store) -> dict[str, Path]:
    return {run.name: run for run in (store.path / "runs").iterdir()}


def unfinished(folder: Path, lines: int = 2) -> None:
    """As if the run were still in training."""
    (folder / "summary.json").unlink()
    kept = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:lines]
    (folder / "metrics.jsonl").write_text("".join(kept))


def evidence(tmp_path: Path) -> Evidence:
    return load(tmp_path / "results" / "two_tasks-quick")
