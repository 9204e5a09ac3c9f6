"""Does focus help a language model?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from semfocus.lab.claims import Below, Case, Claim, Judged
from semfocus.lab.losses import MARGIN, differences, log_ratios, lowest
from semfocus.lab.results import ArmResult, Results
from semfocus.lab.study import Arm, Size, Study, joined_patterns, label_of, laid_over
from semfocus.language.config import LanguageConfig
from semfocus.language.data import text_of
from semfocus.patterns.banded import Banded
from semfocus.patterns.base import Pattern
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.report import losses, record
from semfocus.report.page import Section, Table
from semfocus.studies import _penn_treebank
from semfocus.text import corpus
from semfocus.training.strict import ConfigError

PANEL, TUNING = "text", "text, tuning"
#: Far from the seeds on which the result is reported.
TUNING_SEEDS = (1000,)
#: A tuning run is so many times shorter than a reported one, with a schedule of its own.
SHORTER = 4
RATES = {"smoke": (3e-3, 6e-3), "quick": (3e-3, 1e-2), "small": (1e-3, 3e-3)}
SCALES = {"smoke": (1.0, 2.0), "quick": (1.0, 2.0, 4.0), "small": (1.0, 2.0, 4.0)}
#: The first k is the one the claims are about.
BUDGETS = {"smoke": (5,), "quick": (16, 5), "small": (16, 5, 64, 256)}
WIDTHS = {"smoke": 5, "quick": 16, "small": 64}
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {
        "text": {"megabytes": 0.2},
        "model": {"width": 8, "blocks": 1, "heads": 1, "context": 16},
        "train": {"tokens": 1024, "batch": 4, "epochs": 2, "heldout": 128, "diagnose": 2},
    },
    "quick": {
        "text": {"megabytes": 2.0},
        "model": {"width": 48, "blocks": 2, "heads": 2, "context": 64},
        "train": {"tokens": 163_840, "batch": 16, "epochs": 10, "heldout": 16_384, "diagnose": 8},
    },
    # 11.1 million parameters (8 x 12 x 320^2, 4,096 x 320) and 12.1 million tokens: 8e14 operations a run, and about as
    # much time again in memory traffic. At 1.5 to 2 million tokens a second a run takes 6 to 8 s on an H200, a tuning
    # run a quarter of that; 8 arms x 6 seeds + 36 / 4 make 57 runs' worth: 6 to 8 minutes, and one more for the text.
    "small": {
        "text": {"megabytes": 64.0, "tokenizer": "bpe", "vocabulary": 4096},
        "model": {"width": 320, "blocks": 8, "heads": 5, "context": 512},
        "train": {"tokens": 12_058_624, "batch": 32, "epochs": 16, "heldout": 262_144, "keep_weights": False},
        "precision": "bfloat16",
    },
}
#: Sizes whose runs must see at least as many tokens as they have parameters.
ENOUGH_TOKENS = ("small",)
#: What is on the x axes: columns of a run's metrics.
AXES = {"tokens": "tokens", "train_seconds": "seconds of training"}
#: Below so many characters a text is tokenised before anything is planned, so that mistakes show at once.
SHORT = 5_000_000


class LanguageModel(Study):
    """Does attention that focuses learn language from fewer tokens, or in less time?

    Decoders are trained from scratch on text, in one pass: full attention, a fixed window and top-k with several k.
    All have the same parameters and see the same tokens in the same order, seed by seed. Every pattern gets the same
    grid of learning rate x scale of the scores on a tuning seed, in runs a quarter as long; the settings with the
    lowest validation loss are then trained at full length with fresh seeds. "Scale tuned" arms took the best scale too,
    the others the best learning rate at scale 1.

    Expected if focus helps as it does on small tasks: top-k(16) reaches a given validation loss with fewer tokens than
    full attention, also when both have their best scale, and is as good at the end. Expected if sharpness is all: no
    difference between the two with their best scales. A fixed window of as many keys should not help.

    "Fewer tokens" is refuted by a certainly larger number of tokens, "less time" by a certainly longer time, "as good"
    by a lowest validation loss that is certainly more than 0.01 nats above full attention's, and "a window does not
    help" by one that certainly needs fewer tokens than full attention.

    Size ptb asks the paper's own question of the Penn Treebank, which the user must have: its encoder, at several
    depths, with full attention and top-k(5). "Faster" is refuted by a depth at which top-k certainly needs more epochs
    until the training loss that both reach.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 5 minutes: a tiny model of bytes", seeds=6),
        "small": Size("one GPU, about 10 minutes: 11 million parameters, 12 million tokens a run", seeds=6),
        "ptb": Size("one GPU, days: the paper's Penn Treebank runs, given its three text files", seeds=10),
    }
    varies = ("pattern", "model.attention_scale", "optimiser.learning_rate")

    def runs(self, size: str) -> list[Arm]:
        if size == "ptb":
            return _penn_treebank.runs()
        shorter = {
            "tokens": SIZES[size]["train"]["tokens"] // SHORTER,
            "epochs": 2,
            "keep_weights": False,
            "diagnose": 0,
        }
        sections = laid_over(SIZES[size], {"train": shorter})
        return [
            _setting(pattern, sections, rate, scale)
            for pattern in _patterns(size)
            for rate in RATES[size]
            for scale in SCALES[size]
        ]

    def settled(self, size: str, arms: Sequence[Arm]) -> list[Arm]:
        if size == "ptb":
            return _penn_treebank.settled(arms)
        return [dataclasses.replace(arm, config=_with_text(arm, size)) for arm in arms]

    def follow_up(self, size: str, results: Results) -> list[Arm]:
        arms: list[Arm] = []
        if size == "ptb":
            return arms
        for pattern in _patterns(size):
            tried = [a for a in results.in_panel(TUNING) if a.arm.config.pattern == pattern]
            plain = [a for a in tried if a.arm.config.model.attention_scale == 1.0]
            arms.append(_reported(min(plain, key=_loss), label_of(pattern), size))
            if label_of(pattern) in ("full", _focused(size)):
                arms.append(_reported(min(tried, key=_loss), _tuned(label_of(pattern)), size))
        return arms

    def claims(self, results: Results) -> list[Claim]:
        size = results.question.size
        if size == "ptb":
            return _penn_treebank.claims(results)
        top, window = _focused(size), label_of(Banded(WIDTHS[size]))
        return [
            _ahead("fewer tokens", f"{top} needs fewer tokens than full attention", "full", top),
            _ahead(
                "best against best",
                "The same where both have their best scale: tokens until the loss both reach",
                _tuned("full"),
                _tuned(top),
            ),
            _ahead("less time", f"{top} needs less training time than full attention", "full", top, "train_seconds"),
            Below(
                "as good",
                f"{top}'s lowest validation loss is at most {MARGIN:g} nats above full attention's",
                (Case(PANEL, f"loss of {top} minus that of full", partial(_differences, a="full", b=top)),),
                MARGIN,
                paper="not asked of decoders",
            ),
            Below(
                "a window does not help",
                f"{window} needs more tokens than full attention (shown: full's tokens over its own)",
                (Case(PANEL, f"tokens of full over those of {window}", partial(_ratios, a=window, b="full")),),
                0.0,
                "ratio",
                paper="not asked of decoders",
            ),
        ]

    def sections(self, results: Results) -> list[Section]:
        if results.question.size == "ptb":
            return _penn_treebank.sections(results)
        figures = losses.curves(results, PANEL, AXES)
        table = losses.at_the_end(results, PANEL, AXES)
        return [
            Section("Validation loss", losses.CURVES, figures),
            Section("At the end", losses.END.format(alpha=5), [table] if results.in_panel(PANEL) else []),
            _tuning(results),
            losses.attention(results, PANEL),
            losses.text(results),
        ]

    def standard_sections(self, results: Results, judged: Sequence[Judged]) -> list[Section]:
        if results.question.size == "ptb":
            return _penn_treebank.standard_sections(results, judged)
        return [losses.runs(results), record.configuration(results), record.environments(results), losses.methods()]


def _patterns(size: str) -> list[Pattern]:
    return [Full(), Banded(WIDTHS[size]), *(TopK(k) for k in sorted(BUDGETS[size])), *joined_patterns(BUDGETS[size][0])]


def _focused(size: str) -> str:
    return label_of(TopK(BUDGETS[size][0]))


def _tuned(label: str) -> str:
    return f"{label}, scale tuned"


def _setting(pattern: Pattern, sections: dict[str, Any], rate: float, scale: float) -> Arm:
    own = {"model": {"attention_scale": scale}, "optimiser": {"learning_rate": rate}, "pattern": pattern}
    config = LanguageConfig.from_dict(laid_over(sections, own))
    return Arm(TUNING, f"{label_of(pattern)}, rate {rate:g}, x {scale:g}", config, TUNING_SEEDS)


def _reported(best: ArmResult, label: str, size: str) -> Arm:
    """The chosen setting at full length."""
    data = laid_over(
        best.arm.config.to_dict(), {"train": {"diagnose": 4, "keep_weights": True, **SIZES[size]["train"]}}
    )
    return Arm(PANEL, label, LanguageConfig.from_dict(data))


def _loss(candidate: ArmResult) -> float:
    """A setting in which every seed diverged comes last."""
    known = lowest(candidate).values()
    return sum(known) / len(known) if known else float("inf")


def _with_text(arm: Arm, size: str) -> LanguageConfig:
    """The arm's config with its text's hash; refused where the text or the number of tokens will not do."""
    config = arm.config
    assert isinstance(config, LanguageConfig)
    if size in ENOUGH_TOKENS and arm.panel == PANEL and config.train.tokens < config.parameters:
        raise ConfigError(
            f"train.tokens is {config.train.tokens}; at size {size} a run sees at least as many tokens as the model "
            f"has parameters, {config.parameters}"
        )
    path = str(Path(config.corpus).resolve()) if config.corpus else ""
    found = corpus.load(path, config.text.megabytes)
    text = dataclasses.replace(config.text, sha256=found.sha256)
    settled = dataclasses.replace(config, corpus=path, text=text)
    if config.text.tokenizer == "bytes" or len(found.train) < SHORT:
        text_of(settled)
    return settled


def _ratios(results: Results, a: str, b: str, x: str = "tokens") -> dict[int, float]:
    if not (results.has(PANEL, a) and results.has(PANEL, b)):
        return {}
    return log_ratios(results.arm(PANEL, a), results.arm(PANEL, b), x)


def _differences(results: Results, a: str, b: str) -> dict[int, float]:
    if not (results.has(PANEL, a) and results.has(PANEL, b)):
        return {}
    return differences(results.arm(PANEL, a), results.arm(PANEL, b))


def _ahead(name: str, statement: str, a: str, b: str, x: str = "tokens") -> Claim:
    case = Case(PANEL, f"{AXES[x]} of {b} over those of {a}", partial(_ratios, a=a, b=b, x=x), "every run diverged")
    return Below(name, statement, (case,), 0.0, "ratio", paper="not asked of decoders")


def _tuning(results: Results) -> Section:
    rows = []
    for arm in results.in_panel(TUNING):
        config, known = arm.arm.config, lowest(arm)
        loss = f"{_loss(arm):.4f}" if known else "-"
        rows.append([label_of(config.pattern), config.optimiser.learning_rate, config.model.attention_scale, loss])
    text = f"""The lowest validation loss of each setting on the tuning seed, in runs 1/{SHORTER} as long. Every pattern
    was given the same grid. A best setting at the edge of the grid may not be the best there is."""
    columns = ("pattern", "learning rate", "scale", "lowest loss")
    return Section("How the settings were chosen", text, [Table("tuning", "All settings", columns, rows, folded=True)])
