from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from two_tasks import TwoTasks

from semfocus.lab.execute import ask, complete, execute, on_this_machine, time_steps
from semfocus.lab.store import Store
from semfocus.training.progress import Progress


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten runs on two tasks, trained once; tests work on copies."""
    root = tmp_path_factory.mktemp("two-tasks")
    study = TwoTasks()
    train = on_this_machine("cpu", 1, Progress(None))
    results = execute(study, ask(study, "quick", None, []), root, train, lambda text: None)
    time_steps(results, "cpu", lambda text: None)
    complete(results)
    return root


@pytest.fixture
def lab(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(trained, tmp_path / "lab")
    return tmp_path / "lab"


@pytest.fixture
def store(lab: Path) -> Store:
    return Store(lab, "two_tasks")
