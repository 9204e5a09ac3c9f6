"""What is known about predicting learning speed: candidates, each with its score on tasks that were left out.

A candidate predicts the log speed-up of top-k by a line through the other tasks' points. Its score is

    skill = 1 - (squared error on the tasks left out) / (squared error of the best constant there)

with an interval by resampling tasks, widened for the number of candidates (Bonferroni). Above 0 it beats the constant.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..lab.predict import Cell

VERSION = 1
PACKAGED = Path(__file__).with_name("evidence.json")
#: The size whose scores count. Smaller ones are there to try things out.
COUNTS = "paper"
RESAMPLES = 10_000


@dataclass(frozen=True)
class Candidate:
    """A number that may predict how much faster top-k learns, and how well it did on tasks that were left out."""

    name: str
    cases: int  # pairs of a task and a k
    tasks: int
    skill: float
    interval: tuple[float, float]
    typical_error: float  # root mean square on the tasks left out, of the natural logarithm of the speed-up
    intercept: float  # of the line through all cases
    slope: float
    low: float  # the smallest and the largest value among the cases
    high: float

    @property
    def beats_a_constant(self) -> bool:
        return self.interval[0] > 0

    def predicts(self, value: float) -> float | None:
        """The natural logarithm of the speed-up; None outside the values it was scored on."""
        return self.intercept + self.slope * value if self.low <= value <= self.high else None


@dataclass(frozen=True)
class Evidence:
    """The scores of one study. ``size`` None: no study has been evaluated."""

    study: str
    size: str | None
    seeds: int | None
    commits: tuple[str, ...]
    candidates: tuple[Candidate, ...]

    @property
    def counts(self) -> bool:
        return self.size == COUNTS

    @property
    def origin(self) -> str:
        """
        >>> Evidence("mechanism", "paper", 10, ("1f2e3d",), ()).origin
        'study mechanism, size paper, 10 seeds, commit 1f2e3d'
        """
        return (
            f"study {self.study}, size {self.size}, {self.seeds} seeds, commit {', '.join(self.commits) or 'unknown'}"
        )

    @staticmethod
    def read(path: Path = PACKAGED) -> Evidence:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("version") != VERSION:
            raise ValueError(f"{path} has version {data.get('version')!r}; this semfocus reads version {VERSION}")
        candidates = (Candidate(**{**one, "interval": tuple(one["interval"])}) for one in data["candidates"])
        return Evidence(data["study"], data["size"], data["seeds"], tuple(data["commits"]), tuple(candidates))

    def write(self, path: Path) -> None:
        """In the form that ``read`` reads."""
        from ..training.files import write_json

        write_json(path, {"version": VERSION, **asdict(self)})


def evidence_from(folder: str | Path, name: str = COUNTS) -> Evidence:
    """The evidence of a finished study ``mechanism``: its folder (``lab/mechanism``, or ``lab``) and the page's name.

    Reads what the study wrote: the manifest, the commits of its runs, and the points of every candidate beside the
    page. Needs ``semfocus[lab]``.
    """
    from ..lab.store import stores

    store = next((store for store in stores(Path(folder)) if store.path.name == "mechanism"), None)
    if store is None:
        raise ValueError(f"{folder} holds no study 'mechanism'; `semfocus run mechanism --size paper` makes one")
    manifest = _json(store.manifest_path(name))
    if not manifest.get("complete"):
        raise ValueError(f"{store.manifest_path(name)} is not complete; run `semfocus resume {folder}` first")
    if manifest["changed"]:
        raise ValueError(f"{name} was run with settings that are not the study's own; only its own count as evidence")
    runs = {run for arm in manifest["arms"] for run in arm["runs"].values()}
    commits = {str(_json(store.run(run).path / "environment.json").get("commit") or "unknown") for run in runs}
    points = dict(map(_points, sorted(store.page_path(name).with_suffix("").glob("candidate-*.csv"))))
    if not points:
        raise ValueError(f"{store.page_path(name)} has no candidates beside it; `semfocus report {folder}` writes them")
    scored = [_scored(candidate, cells, len(points)) for candidate, cells in points.items()]
    found = tuple(candidate for candidate in scored if candidate is not None)
    return Evidence("mechanism", manifest["size"], manifest["seeds"], tuple(sorted(commits)), found)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged; run the study again")
    return found


def _points(path: Path) -> tuple[str, list[Cell]]:
    """A candidate's name and its points, from the numbers of its figure."""
    from ..lab.predict import Cell

    with open(path, newline="", encoding="utf-8") as file:
        (_, _, candidate, _), *rows = csv.reader(file)
    return candidate, [Cell(task, label, float(x), float(y)) for task, label, x, y in rows]


def _scored(name: str, cells: Sequence[Cell], candidates: int) -> Candidate | None:
    """None where there are too few tasks or points, or all are equal."""
    from ..lab.predict import FEWEST_POINTS, FEWEST_TASKS, held_out_errors
    from ..lab.stats import ALPHA

    x, y = np.array([cell.x for cell in cells]), np.array([cell.y for cell in cells])
    if (
        len(cells) < FEWEST_POINTS
        or len({cell.task for cell in cells}) < FEWEST_TASKS
        or not np.ptp(x)
        or not np.ptp(y)
    ):
        return None
    errors = np.array(list(held_out_errors(cells).values()))  # (tasks, 2): of the candidate, of the constant
    line, mean = errors.sum(0)
    drawn = np.random.default_rng(0).integers(0, len(errors), (RESAMPLES, len(errors)))
    ours, constant = np.moveaxis(errors[drawn].sum(1), -1, 0)
    skills = 1 - ours[constant > 0] / constant[constant > 0]
    tail = ALPHA / candidates / 2
    low, high = (float(end) for end in np.quantile(skills, [tail, 1 - tail]))
    slope, intercept = (float(number) for number in np.polyfit(x, y, 1))
    return Candidate(
        name=name,
        cases=len(cells),
        tasks=len(errors),
        skill=float(1 - line / mean),
        interval=(low, high),
        typical_error=float(np.sqrt(line / len(cells))),
        intercept=intercept,
        slope=slope,
        low=float(x.min()),
        high=float(x.max()),
    )
