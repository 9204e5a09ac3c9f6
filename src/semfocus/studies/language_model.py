"""Does focus help a language model?"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from semfocus.lab.claims import Below, Case, Claim, Judged
from semfocus.lab.losses import MARGIN, differences, log_ratios, lowest
from semfocus.lab.results import ArmResult, Results
from semfocus.lab.study import Arm, Size, Study, joined_patterns, label_of, laid_over
from semfocus.language.config import LanguageConfig
from semfocus.language.data import corpus_of, refuse_to_plan, text_of
from semfocus.patterns.banded import Banded
from semfocus.patterns.base import Pattern
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.report import losses, record
from semfocus.report.page import Section, Table
from semfocus.studies import _penn_treebank
from semfocus.studies._language_sizes import BUDGETS, ENOUGH_TOKENS, RATES, SCALES, SIZES, WIDTHS
from semfocus.training.strict import ConfigError

PANEL, TUNING = "text", "text, tuning"
SHARPER = "full, larger scale"
#: Far from the seeds on which the result is reported.
TUNING_SEEDS = (1000,)
#: Below so many characters a text is tokenised before anything is planned, so that mistakes show at once.
SHORT = 5_000_000


class LanguageModel(Study):
    """Does attention that focuses learn language from fewer tokens, or in less time?

    Decoders are trained from scratch on text, in one pass: full attention, a fixed window and top-k with several k.
    All have the same parameters and see the same tokens in the same order, seed by seed. Every pattern tries the same
    learning rates on a tuning seed, full attention and the top-k of the claims with several scales of the scores; the
    settings with the lowest validation loss are then trained with fresh seeds. "Scale tuned" arms took the best scale
    too, "larger scale" the best above 1, the others the best learning rate at scale 1. Tuning runs are as long as the
    reported ones: what is best after half of the tokens need not be best at the end.

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
        "quick": Size("2 CPU cores, about 4 minutes: a tiny model of bytes", seeds=6),
        "small": Size("one GPU, about 12 minutes: 11 million parameters, 12 million tokens a run", seeds=6),
        "ptb": Size("one GPU, days: the paper's Penn Treebank runs, given its three text files", seeds=10),
    }
    paper_sizes = ("ptb",)
    varies = ("pattern", "model.attention_scale", "optimiser.learning_rate")

    def runs(self, size: str) -> list[Arm]:
        if size == "ptb":
            return _penn_treebank.runs()
        sections = laid_over(SIZES[size], {"train": {"epochs": 2, "keep_weights": False, "diagnose": 0}})
        return [
            _setting(pattern, sections, rate, scale)
            for pattern in _patterns(size)
            for rate in RATES[size]
            for scale in (SCALES[size] if label_of(pattern) in _rivals(size) else (1.0,))
        ]

    def settled(self, size: str, arms: Sequence[Arm]) -> list[Arm]:
        if size == "ptb":
            return _penn_treebank.settled(arms)
        return [dataclasses.replace(arm, config=_with_text(arm, size)) for arm in arms]

    def fixed(self, size: str) -> Mapping[str, str]:
        return _penn_treebank.FIXED if size == "ptb" else {}

    def foreseen(self, size: str) -> list[Arm]:
        return [] if size == "ptb" else [_reported(self.runs(size)[0], "full", size)]

    def follow_up(self, size: str, results: Results) -> list[Arm]:
        arms: list[Arm] = []
        if size == "ptb":
            return arms
        for pattern in _patterns(size):
            tried = [a for a in results.in_panel(TUNING) if a.arm.config.pattern == pattern]
            plain = [a for a in tried if a.arm.config.model.attention_scale == 1.0]
            arms.append(_reported(min(plain, key=_loss).arm, label_of(pattern), size))
            if label_of(pattern) in _rivals(size):
                arms.append(_reported(min(tried, key=_loss).arm, _tuned(label_of(pattern)), size))
            if pattern == Full():
                sharper = min((a for a in tried if a not in plain), key=_loss)
                arms.append(_reported(sharper.arm, SHARPER, size))
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
                f"{top} needs fewer tokens than full attention where both have their best scale",
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
        figures = [*losses.curves(results, PANEL, losses.AXES), *losses.gaps(results, PANEL)]
        table = losses.at_the_end(results, PANEL, losses.AXES)
        return [
            Section("Validation loss", losses.CURVES, figures),
            Section("At the end", losses.END, [table] if results.in_panel(PANEL) else []),
            _tuning(results),
            losses.attention(results, PANEL),
            losses.text(results),
        ]

    def standard_sections(self, results: Results, judged: Sequence[Judged]) -> list[Section]:
        if results.question.size == "ptb":
            return _penn_treebank.standard_sections(results)
        return [losses.runs(results), record.configuration(results), record.environments(results), losses.methods()]


def _patterns(size: str) -> list[Pattern]:
    return [Full(), Banded(WIDTHS[size]), *(TopK(k) for k in sorted(BUDGETS[size])), *joined_patterns(BUDGETS[size][0])]


def _focused(size: str) -> str:
    return label_of(TopK(BUDGETS[size][0]))


def _rivals(size: str) -> tuple[str, str]:
    return label_of(Full()), _focused(size)


def _tuned(label: str) -> str:
    return f"{label}, scale tuned"


def _setting(pattern: Pattern, sections: dict[str, Any], rate: float, scale: float) -> Arm:
    own = {"model": {"attention_scale": scale}, "optimiser": {"learning_rate": rate}, "pattern": pattern}
    config = LanguageConfig.from_dict(laid_over(sections, own))
    return Arm(TUNING, f"{label_of(pattern)}, rate {rate:g}, x {scale:g}", config, TUNING_SEEDS)


def _reported(best: Arm, label: str, size: str) -> Arm:
    """The chosen setting with its text, watched more closely. The rest is the size's own: overrides come after it."""
    chosen = best.config
    assert isinstance(chosen, LanguageConfig)
    text = {"corpus": chosen.corpus, "text": {"sha256": chosen.text.sha256}}
    sections = laid_over({"train": {"diagnose": 4, "keep_weights": True}}, SIZES[size])
    made = _setting(
        chosen.pattern, laid_over(sections, text), chosen.optimiser.learning_rate, chosen.model.attention_scale
    )
    return Arm(PANEL, label, made.config)


def _loss(candidate: ArmResult) -> float:
    """A setting in which every seed diverged comes last."""
    known = lowest(candidate).values()
    return sum(known) / len(known) if known else float("inf")


def _with_text(arm: Arm, size: str) -> LanguageConfig:
    """The arm's config with its text's hash; refused where the text or the number of tokens will not do."""
    config = arm.config
    assert isinstance(config, LanguageConfig)
    if size in ENOUGH_TOKENS and config.train.tokens < config.parameters:
        raise ConfigError(
            f"train.tokens is {config.train.tokens}; at size {size} a run sees at least as many tokens as the model "
            f"has parameters, {config.parameters}"
        )
    path = os.path.realpath(config.corpus) if config.corpus else ""  # Path.resolve fails in a loop of links
    found = corpus_of(dataclasses.replace(config, corpus=path))
    text = dataclasses.replace(config.text, sha256=found.sha256)
    settled = dataclasses.replace(config, corpus=path, text=text)
    cheap = config.text.tokenizer == "bytes" or len(found.train) < SHORT
    refuse_to_plan(settled, text_of(settled) if cheap else None)
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
    subject = f"{losses.AXES[x]} of {b} over those of {a}"
    case = Case(PANEL, subject, partial(_ratios, a=a, b=b, x=x), "every run diverged")
    return Below(name, statement, (case,), 0.0, "ratio", paper="not asked of decoders")


def _tuning(results: Results) -> Section:
    rows = []
    for arm in results.in_panel(TUNING):
        config, known = arm.arm.config, lowest(arm)
        loss = f"{_loss(arm):.4f}" if known else "-"
        rows.append([label_of(config.pattern), config.optimiser.learning_rate, config.model.attention_scale, loss])
    text = """The lowest validation loss of each setting on the tuning seed, in runs as long as the reported ones. Every
    pattern tried the same learning rates. A best setting at the edge of the grid may not be the best there is."""
    columns = ("pattern", "learning rate", "scale", "lowest loss")
    return Section("How the settings were chosen", text, [Table("tuning", "All settings", columns, rows, folded=True)])
