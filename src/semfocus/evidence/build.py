"""Everything under ``results/`` that is not data, from the data: pages, figures, tables, and the marked documents."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..lab.study import Study
from ..report.page import Answer, answer, judged_claims, write_figure
from ..training.files import StorageError, explained
from . import claims, speed
from .compact import write_text
from .cost import cost_of
from .folder import MANIFEST, Evidence, clock_of, load
from .markdown import fill_file
from .overview import NAME as OVERVIEW
from .overview import overview
from .reproduction import documents
from .runs import runs_csv
from .summary import Built, Summary

FIGURES = "figures"
#: Figures that are in the page alone: they show in another way what others show, and every byte is kept twice.
IN_THE_PAGE = re.compile(r"survival-.*|curves-\d+-train_accuracy-.*")
#: Documents with marked places, seen from the folder above the results.
README, REPRODUCTION = Path("README.md"), Path("docs/reproduction.md")
#: Of all folders, in the folder above them.
INDEX = "README.md"
#: All that is under ``results/`` together stays below this many bytes.
MOST = 30_000_000


def folders(root: Path) -> list[Path]:
    """The folders of results, in the order of their names."""
    with explained(root, "read"):
        if not root.is_dir():
            raise StorageError(f"{root}: no such folder")
        return sorted(path.parent for path in root.glob(f"*/{MANIFEST}"))


def evidence_of_all(root: Path) -> Iterator[Evidence]:
    """Every folder's evidence, with the times of steps that any of them measured on the devices it ran on.

    A step takes what its shape and device make it take, whichever study asks.
    """
    found = folders(root)
    tables = [clock_of(path) for path in found]
    for path in found:
        evidence = load(path)
        for device in {str(record.environment.get("device")) for record in evidence.records.values()}:
            times = {key: entry for table in tables for key, entry in table.get(device, {}).items()}
            if times:
                evidence.clock[device] = times | evidence.clock.get(device, {})
        yield evidence


def build_all(root: Path, find: Callable[[str], Study], say: Callable[[str], None], above: Path | None = None) -> None:
    """Builds every folder, then fills the documents under ``above``. Building twice changes no byte."""
    found = folders(root)
    if not found:
        say(f"{root} holds no results; nothing was written (`semfocus results add LAB --into {root}` adds some)")
        return
    with tempfile.TemporaryDirectory() as temporary:
        built = []
        for number, evidence in enumerate(evidence_of_all(root), 1):
            say(f"{number} of {len(found)}: {evidence.path}")
            built.append(build(evidence, Path(temporary) / str(number), find, say))
        summary = Summary(built)
        write_text(root / INDEX, summary.index())
        if (picture := overview(summary)) is not None:
            write_text(root / OVERVIEW, picture)
        if above is not None:
            fill(summary, above, say)
    size = sum(path.stat().st_size for folder in found for path in folder.rglob("*") if path.is_file())
    say(f"{len(found)} folders, {size / 1e6:.1f} MB of at most {MOST / 1e6:.0f}")
    if size > MOST:
        raise StorageError(f"{root} holds {size / 1e6:.1f} MB; at most {MOST / 1e6:.0f} are to be kept there")


def fill(summary: Summary, above: Path, say: Callable[[str], None]) -> None:
    """The marked places of the documents that there are."""
    for name, bodies in ((README, {"": summary.readme()}), (REPRODUCTION, documents(summary))):
        path = above / name
        if path.is_file():
            say(f"{path}: {'filled' if fill_file(path, bodies) else 'unchanged'}")


def judge(evidence: Evidence, lab: Path, find: Callable[[str], Study]) -> Built:
    """What one folder's tables say, by way of a lab's folder that must stay as long as what is returned."""
    results = evidence.restore(lab)
    records = list(evidence.records.values())
    study = find(results.question.study)
    return Built(
        name=evidence.name,
        results=results,
        claims=claims.claim_rows(results, judged_claims(study, results)),
        races=speed.races(results),
        cost=cost_of(results, records),
        place=claims.Place.of(records),
        lacks=claims.lacking(results, records),
        paper_sizes=study.paper_sizes,
    )


def build(evidence: Evidence, lab: Path, find: Callable[[str], Study], say: Callable[[str], None]) -> Built:
    """Writes one folder's page, figures and tables."""
    where = f"{evidence.path.resolve().parent.name}/{evidence.name}"
    built = judge(evidence, lab, find)
    found = answer(find(built.results.question.study), built.results, [row.judged for row in built.claims])
    for name, text in tables(built, evidence, where).items():
        write_text(evidence.path / name, text)
    write_text(evidence.path / "index.html", found.page(_beside(where, built.results.question.plugins)))
    figures = _write_figures(found, evidence.path / FIGURES)
    say(f"  {built.cost.over} of {built.cost.planned} runs over, {len(built.claims)} claims, {figures} figures")
    for sentence in built.lacks:
        say(f"  missing: {sentence}")
    return built


def tables(built: Built, evidence: Evidence, where: str) -> dict[str, str]:
    """The texts of a folder's tables by their names."""
    facts = (built.results, built.claims, built.place, built.lacks)
    return {
        "claims.md": claims.as_markdown(*facts),
        "claims.json": json.dumps(claims.as_json(*facts), indent=1, ensure_ascii=False) + "\n",
        "speed.md": speed.markdown(built.results, list(built.races), where),
        "runs.csv": runs_csv(built.results, evidence.records, where),
    }


def _beside(where: str, plugins: Sequence[str]) -> str:
    return (
        f"Most figures lie beside this page as SVG in the folder {FIGURES}; the numbers are in claims.json, "
        "speed.md, runs.csv and, epoch by epoch, in curves.csv.gz. To check a run, train its first epochs again: "
        f"{speed.check_command(where, 'RUN', plugins)}, with RUN from the last column of “Every run”."
    )


def _write_figures(found: Answer, folder: Path) -> int:
    """Figures as files; those of an earlier build that are no more are removed."""
    filed = [figure for figure in found.figures if not IN_THE_PAGE.fullmatch(figure.name)]
    written: set[Path] = {write_figure(figure, folder) for figure in filed}
    with explained(folder, "write"):
        for stale in set(folder.glob("*.svg")) - written:
            stale.unlink()
    return len(written)
