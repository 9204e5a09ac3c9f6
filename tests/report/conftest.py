from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from semfocus import studies
from semfocus.lab import execute
from semfocus.lab.results import Results
from semfocus.lab.store import Store
from semfocus.training.progress import Progress


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest study there is, run once; tests work on copies."""
    root = tmp_path_factory.mktemp("trained")
    study = studies.get("convergence")
    with Progress(Console(quiet=True)) as progress:
        train = execute.on_this_machine("cpu", 1, progress)
        results = execute.execute(study, execute.ask(study, "smoke", None, []), root, train, lambda text: None)
        execute.time_steps(results, "cpu", lambda text: None)
    return root


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Results:
    """A copy that a test may damage."""
    shutil.copytree(trained, tmp_path / "lab")
    store = Store(tmp_path / "lab", "convergence")
    return Results(store, store.manifest("smoke"))
