"""Does the trainer behave as the paper's protocol does? Convergence epochs of a few patterns, several seeds.

    python benchmarks/protocol_check.py even_pairs --seeds 10 --out check.json

Prints, per pattern and seed, the first epoch at which the given share of training examples is classified correctly
(evaluation mode, whole training set). It is a check of the trainer, not a study: no test, no verdict.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console

from semfocus import Banded, BlockLocal, Full, Pattern, TopK
from semfocus.training import paper
from semfocus.training.convergence import first_crossing
from semfocus.training.environment import describe
from semfocus.training.progress import Progress
from semfocus.training.trainer import Trainer

VARIANTS: dict[str, tuple[Pattern, float]] = {
    "full": (Full(), 1.0),
    "full, scores x 4": (Full(), 4.0),
    "top_k(5)": (TopK(5), 1.0),
    "banded(5)": (Banded(5), 1.0),
    "block_local(5)": (BlockLocal(5), 1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--level", type=float, default=0.95)
    parser.add_argument("--precision", choices=("ieee", "tf32"), default="tf32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=Path, help="keep the run directories here")
    parser.add_argument("--out", type=Path, help="write the convergence epochs as JSON")
    options = parser.parse_args()
    train = {"epochs": options.epochs} if options.epochs else {}
    plan = {
        name: [
            paper(
                options.task,
                VARIANTS[name][0],
                seed,
                precision=options.precision,
                train=train,
                model={"attention_scale": VARIANTS[name][1]},
            )
            for seed in range(options.seeds)
        ]
        for name in options.variants
    }
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary, Progress(Console(width=160)) as progress:
        trainer = Trainer(options.runs or temporary, device=options.device, progress=progress)
        directories = {d.run: d for d in trainer.run([run for runs in plan.values() for run in runs])}
        seconds = time.perf_counter() - start
        rows = {name: [_row(directories[run.hash], options.level) for run in runs] for name, runs in plan.items()}
    epochs = next(iter(plan.values()))[0].train.epochs
    print(
        f"\n{options.task}, paper's protocol, {epochs} epochs: first epoch with {options.level:.0%} of the training set"
    )
    for name, results in rows.items():
        times = ", ".join("-" if r["epoch"] is None else str(r["epoch"]) for r in results)
        accuracy = ", ".join(f"{r['last_heldout_accuracy']:.0%}" for r in results)
        print(f"{name:18} {times:40} last held-out {accuracy}")
    facts = describe(torch.device(options.device)) | {"precision": options.precision, "seconds": round(seconds, 1)}
    print(
        f"{seconds:.0f} s; "
        + ", ".join(str(facts[name]) for name in ("device", "torch", "precision", "date", "commit"))
    )
    if options.out:
        result = {
            "task": options.task,
            "level": options.level,
            "epochs": epochs,
            "environment": facts,
            "variants": rows,
        }
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _row(directory, level: float) -> dict:  # type: ignore[no-untyped-def, type-arg]
    summary, rows = directory.summary(), directory.metrics()
    return {
        "run": directory.run,
        "status": summary["status"],
        "epoch": first_crossing([(row["epoch"], row["train_accuracy"]) for row in rows], level),
        "running_epoch": first_crossing([(row["epoch"], row.get("running_accuracy")) for row in rows], level),
        "last_train_accuracy": summary["last_train_accuracy"],
        "last_heldout_accuracy": summary["last_heldout_accuracy"],
        "best_heldout_accuracy": summary["best_heldout_accuracy"],
    }


if __name__ == "__main__":
    main()
