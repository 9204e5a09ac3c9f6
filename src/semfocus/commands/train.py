"""``semfocus train``"""

from __future__ import annotations

import argparse
import dataclasses

from ..cli import UserError
from .common import chosen_device, load_plugins, need_lab, one_sentence, stopping_after_the_epoch


def train_runs(options: argparse.Namespace) -> int:
    """Trains runs described in files, and prints a line for each."""
    need_lab()
    from rich.console import Console

    from ..training import RunConfig
    from ..training.progress import Progress
    from ..training.trainer import Trainer

    load_plugins(options.plugin)
    device = chosen_device(options.device)
    console = Console()
    with one_sentence():
        given = [RunConfig.load(path) for path in options.configs]
        try:
            configs = [dataclasses.replace(c, seed=c.seed + i) for c in given for i in range(options.seeds)]
        except ValueError as error:
            raise UserError(str(error)) from None
        with stopping_after_the_epoch() as stopping, Progress(console) as progress:
            trainer = Trainer(
                options.out,
                device=device,
                threads=options.threads,
                checkpoint_epochs=options.checkpoint_every,
                progress=progress,
                stopping=stopping,
            )
            directories = trainer.run(configs)
        summaries = [directory.summary() for directory in directories]
    for directory, summary in zip(directories, summaries, strict=True):
        epoch = summary["train_convergence"]["0.95"]
        reached = "not reached" if epoch is None else f"epoch {epoch}"
        accuracy = summary["last_heldout_accuracy"]
        shown = "-" if accuracy is None else f"{accuracy:.1%}"
        console.print(
            f"{directory.path}  {summary['status']}  95 % of training examples: {reached}  held-out {shown}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    return 0
