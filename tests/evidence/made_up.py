"""Runs that nobody trained: curves written by hand, for tests of what is said of them."""

from semfocus.lab.cost import clock_key
from semfocus.lab.store import Manifest, Question, Store
from semfocus.lab.study import arm
from semfocus.studies._sizes import TINY
from semfocus.training.files import append_lines, write_json

#: The epoch at which an arm's first seed gets to the level, and each next seed an epoch later. None: none ever does.
TIMES = {"full": 40, "full x 4": 8, "top-k(5)": 10, "top-k(5) x 4": 12, "banded(5)": None, "block-local(5)": None}


def trained(tmp_path, *patterns, study="controls", size="quick"):
    """Six seeds of Even Pairs for each pattern and scale."""
    made = [arm("even_pairs", pattern, {**TINY, "train": {"epochs": 50}}, scale=scale) for pattern, scale in patterns]
    store, manifest = Store(tmp_path, study), Manifest(Question(study, size, 6), tuple(made))
    store.write(manifest)
    for one in made:
        for seed in range(6):
            directory = store.run(manifest.run_of(one, seed))
            write_json(directory.path / "config.json", one.with_seed(seed).to_dict())
            write_json(directory.path / "environment.json", {"population": 2, "device": "GPU"})
            first = TIMES[one.label]
            right = [float(first is not None and epoch >= first + seed) for epoch in range(51)]
            rows = [
                {"epoch": e, "train_loss": 0.1, "train_accuracy": share, "heldout_loss": 0.1,
                 "heldout_accuracy": 0.5, "seconds": 2.0}
                for e, share in enumerate(right)
            ]  # fmt: skip
            append_lines(directory.path / "metrics.jsonl", rows)
            write_json(directory.path / "summary.json", {"status": "finished", "epochs": 50})
    step = {clock_key(one.config): {"milliseconds": 2.0 if one.config.pattern.name == "top_k" else 1.0} for one in made}
    write_json(store.path / "clock.json", {"GPU": step})
    return store, manifest
