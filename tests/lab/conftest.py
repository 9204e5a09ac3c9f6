import itertools
import json

import pytest

from semfocus import Full, TopK
from semfocus.lab.store import Manifest, Question, Store
from semfocus.lab.study import arm
from semfocus.studies._sizes import TINY
from semfocus.training.files import append_lines, write_json


@pytest.fixture
def made_up(tmp_path):
    """A store with curves that were made up: ``times`` maps (panel, label) to an epoch (or None) per seed."""

    folders = (tmp_path / f"made-up-{number}" for number in itertools.count())

    def make(times, *, size="quick", epochs=100, seeds=None, diverged=(), missing=(), heldout=None):
        arms = {
            "full": (Full(), 1.0),
            "full x 4": (Full(), 4.0),
            "top-k(5)": (TopK(5), 1.0),
            "top-k(9)": (TopK(9), 1.0),
        }
        panels = list(dict.fromkeys(panel for panel, _ in times))
        sections = {**TINY, "train": {"epochs": epochs}}

        def laid(panel):  # every panel has runs of its own
            return {**sections, "task": {"length": 8 + panels.index(panel)}}

        made = [
            arm("even_pairs", arms[label][0], laid(panel), scale=arms[label][1], panel=panel, label=label)
            for panel, label in times
        ]
        count = seeds or max(len(values) for values in times.values())
        manifest = Manifest(Question("convergence", size, count), tuple(made), "2026-01-01T00:00:00+00:00")
        store = Store(next(folders), "convergence")
        store.write(manifest)
        for a in made:
            for seed, time in enumerate(times[a.panel, a.label]):
                config = a.with_seed(seed)
                if (a.label, seed) in missing:
                    continue
                directory = store.run(config.hash)
                write_json(directory.path / "config.json", config.to_dict())
                last = 0.97 if heldout is None else heldout[a.label][seed]
                rows = [
                    {
                        "epoch": epoch,
                        "train_loss": 0.1,
                        "train_accuracy": 0.96 if time is not None and epoch >= time else 0.5,
                        "heldout_loss": 0.1,
                        "heldout_accuracy": last if time is not None and epoch >= time else 0.5,
                    }
                    for epoch in range(epochs + 1)
                ]
                broken = (a.label, seed) in diverged
                append_lines(directory.path / "metrics.jsonl", rows[: epochs // 2] if broken else rows)
                (directory.path / "summary.json").write_text(
                    json.dumps({"status": "diverged" if broken else "finished"})
                )
        return store, manifest

    return make


@pytest.fixture
def store(made_up):
    times = {("even_pairs", "full"): [40, 50, 60], ("even_pairs", "top-k(5)"): [10, 12, 11]}
    return made_up(times, missing={("full", 2)})
