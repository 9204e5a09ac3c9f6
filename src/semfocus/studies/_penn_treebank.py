"""The paper's Penn Treebank runs: its encoder, one target per window, full attention against top-k(5)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from semfocus.lab.claims import Below, Case, Claim
from semfocus.lab.losses import MARGIN, differences, log_ratios
from semfocus.lab.results import Results
from semfocus.lab.study import Arm, arm, laid_over
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.report import curves, losses, record
from semfocus.report.page import Section
from semfocus.report.style import styles_of
from semfocus.text.next_token import FILES, NextToken
from semfocus.training.protocol import TEXT_TASK, RunConfig
from semfocus.training.strict import LARGEST

BUDGET = 5
#: Per kind of pieces: the settings, and the numbers of blocks.
SETTINGS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "unigram": (
        {
            "task": {"options": {"pieces": "unigram", "vocabulary": 4096}},
            "model": {"width": 32, "mlp_width": 128, "heads": 1},
            "train": {"epochs": 50},
        },
        (8, 16, 32, 64),
    ),
    "BPE": (
        {
            "task": {"options": {"pieces": "bpe", "vocabulary": 10_000}},
            "model": {"width": 128, "mlp_width": 512, "heads": 4},
            "train": {"epochs": 120},
        },
        (6, 10, 15),
    ),
}
SHARED = {
    "optimiser": {"learning_rate": 1.0, "decay": 0.99},
    "data": {"train": LARGEST},  # until the files are read: they decide which batch is too large
    "train": {"batch": 128},
    "precision": "tf32",
}
#: What is not for the user to override: what the size varies, and what the files say.
FIXED = {
    **dict.fromkeys(("model.blocks", "task.options.pieces"), "what size 'ptb' varies"),
    "task.name": f"{TEXT_TASK} at size 'ptb'",
    "task.length": "the mean length of a training sentence",
    **{f"data.{split}": f"the number of windows in task.options.{file}" for split, file in FILES.items()},
}
EPOCHS = {"epoch": "epochs"}


def runs() -> list[Arm]:
    return [
        arm(TEXT_TASK, pattern, laid_over(SHARED, sections, {"model": {"blocks": blocks}}), panel=_panel(kind, blocks))
        for kind, (sections, depths) in SETTINGS.items()
        for blocks in depths
        for pattern in (Full(), TopK(BUDGET))
    ]


def _panel(kind: str, blocks: int) -> str:
    return f"{kind}, {blocks} blocks"


def settled(arms: Sequence[Arm]) -> list[Arm]:
    """With what the three files say: the mean length of a sentence, and the number of windows."""
    return [dataclasses.replace(one, config=_with_files(one)) for one in arms]


def _with_files(one: Arm) -> RunConfig:
    config = one.config
    assert isinstance(config, RunConfig)
    task = config.task.make()
    assert isinstance(task, NextToken)
    paths = {name: getattr(task, name) and os.path.realpath(getattr(task, name)) for name in FILES.values()}
    task = dataclasses.replace(task, train=paths["train"], valid=paths["valid"], test=paths["test"])
    text = task.read()
    length = text.mean_length()
    options = dataclasses.asdict(task) | {"sha256": text.sha256}
    counts = {split: len(text.windows(split, length)) for split in FILES}
    return RunConfig.from_dict(
        laid_over(config.to_dict(), {"task": {"length": length, "options": options}, "data": counts})
    )


def claims(results: Results) -> list[Claim]:
    def cases(subject: str, values: Any) -> tuple[Case, ...]:
        return tuple(
            Case(panel, subject, partial(values, panel=panel), "every run diverged") for panel in results.panels
        )

    top = f"top-k({BUDGET})"
    return [
        Below(
            "C1, text",
            f"{top} reaches the training loss that both reach in fewer epochs than full attention, at every depth",
            cases(f"epochs of {top} over those of full", _ratios),
            0.0,
            "ratio",
            paper="its Figures 19 and 20",
        ),
        Below(
            "C2, text",
            f"Its lowest held-out loss is at most {MARGIN:g} nats above full attention's, at every depth",
            cases(f"loss of {top} minus that of full", _differences),
            MARGIN,
            paper="its Figures 19 and 20",
        ),
    ]


def _ratios(results: Results, panel: str) -> dict[int, float]:
    full, top = results.in_panel(panel)
    return log_ratios(full, top, "epoch", "train_loss")


def _differences(results: Results, panel: str) -> dict[int, float]:
    full, top = results.in_panel(panel)
    return differences(full, top)


def sections(results: Results) -> list[Section]:
    figures = [figure for panel in results.panels for figure in losses.curves(results, panel, EPOCHS)]
    tables = [losses.at_the_end(results, panel, EPOCHS) for panel in results.panels]
    text = "Cross-entropy on the held-out file in nats per token; the thick line is the median over seeds."
    return [Section("Held-out loss", text, figures), Section("At the end", losses.END, tables)]


def standard_sections(results: Results) -> list[Section]:
    return [
        curves.section(results, styles_of(results.arms)),
        losses.runs(results),
        record.configuration(results),
        record.environments(results),
        losses.methods(),
    ]
