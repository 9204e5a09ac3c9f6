"""Losses of language models: against tokens and against time, at the end, and what attention did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..lab.losses import differences, log_ratios, lowest
from ..lab.results import ArmResult, Results, Run
from ..lab.stats import ALPHA, EXACT_SEEDS, FEWEST_SEEDS, shown_mean
from ..language.attention_probe import MASS, WOULD_KEEP
from ..language.config import LanguageConfig
from .lines import line_figure
from .parts import NOTHING, Cell, Figure, Section, Table, slug
from .record import TONES, status

CURVES = """Cross-entropy on the validation text in nats per token, after each stretch of the one pass over the training
text. The thick line is the median over seeds, faint lines are the seeds. The last figure shows the same losses minus
that of full attention, seed by seed: below 0 an arm is ahead. Time is that of the training steps alone, as
this pattern is implemented here: compiling and evaluating are left out."""
END = f"""The lowest validation loss of each seed: mean over seeds, in brackets the smallest and largest. The other
columns are paired by seed, with the interval that the sign-flip test does not reject at {100 * ALPHA:.0f} % (for
description: not corrected for the number of arms). Tokens and time are those until the loss that both arms reach, over
those of the first arm: below 1 the arm is ahead."""
ATTENTION = """On validation text, the median over queries, then over seeds; "before" is at initialisation, "after" at
the end. Dispersion is the range of the kept scores, entropy (in nats) and effective support say over how many keys the
weight is spread, kept mass is the share of full attention's weight that the kept keys hold."""
METHODS = """Every run passes once over part of the training text, so no token is seen twice; all runs of one seed begin
with the same weights and see the same sequences in the same order. Two arms are compared seed by seed at the loss that
both reach, the larger of their two lowest validation losses: T is the number of tokens (or seconds of training) until
then, by a line between evaluations. The test is the sign-flip (paired permutation) test on log T, exact up to {exact}
seeds; the interval holds all ratios that it does not reject at {alpha:.0f} %. With n seeds the smallest p is 2 / 2^n,
so fewer than {fewest} seeds decide nothing.

A claim is confirmed or refuted if the interval lies on one side of its limit and the p-value (after Holm, where a claim
has several comparisons) is at most {alpha:.0f} %; all else is "undecided". A seed whose run diverged enters no
comparison and is listed below. The rules were fixed in code before the runs."""
#: What language models are compared on: columns of their curves, and what the x axes are called.
AXES = {"tokens": "tokens", "train_seconds": "seconds of training"}
UNITS = ((1e9, "billion "), (1e6, "million "), (1e3, "thousand "))
#: Diagnostics that the page shows, and what they are called there.
QUANTITIES = {
    "dispersion": "dispersion",
    "entropy": "entropy",
    "effective_support": "effective support",
    "kept_mass": "kept mass",
    MASS: f"mass of its top {WOULD_KEEP}",
}


def curves(results: Results, panel: str, x: Mapping[str, str]) -> list[Figure]:
    """One figure for each quantity on the x axis: column -> what the axis is called."""
    arms = results.in_panel(panel)
    figures = []
    for column, title in x.items():
        unit, word = _unit(arms, column)
        lines = {}
        for arm in arms:
            begun = [run.rows[1:] for run in arm.runs if len(run.rows) > 1]
            length = max(map(len, begun), default=0)
            at = [[rows[i][column] / unit for rows in begun if i < len(rows)] for i in range(length)]
            values = [[rows[i]["heldout_loss"] if i < len(rows) else None for i in range(length)] for rows in begun]
            lines[arm.label] = ([float(np.median(here)) for here in at], values)
        figure = line_figure(slug("loss", column, panel), f"validation loss against {title}", word + title, arms, lines)
        figures += [figure] if figure else []
    return figures


def gaps(results: Results, panel: str) -> list[Figure]:
    """Each arm's loss minus that of the first, seed by seed, against tokens."""
    arms = results.in_panel(panel)
    if not arms:
        return []
    unit, word = _unit(arms, "tokens")
    first = {run.seed: {row["tokens"]: row["heldout_loss"] for row in run.rows[1:]} for run in arms[0].runs}
    lines = {}
    for arm in arms[1:]:
        pairs = [(run.rows[1:], first[run.seed]) for run in arm.runs if run.seed in first]
        places = sorted({row["tokens"] for rows, _ in pairs for row in rows})
        values = [[_minus(rows, other, place) for place in places] for rows, other in pairs]
        lines[arm.label] = ([place / unit for place in places], values)
    title = f"validation loss minus that of {arms[0].label}"
    figure = line_figure(slug("gap", panel), title, f"{word}tokens", arms, lines)
    return [figure] if figure else []


def _minus(rows: Sequence[Mapping[str, Any]], other: Mapping[int, float | None], place: int) -> float | None:
    ours = next((row["heldout_loss"] for row in rows if row["tokens"] == place), None)
    theirs = other.get(place)
    return None if ours is None or theirs is None else float(ours) - theirs


def _unit(arms: Sequence[ArmResult], column: str) -> tuple[float, str]:
    """What numbers on an axis are divided by, and how that is said."""
    largest = max((run.rows[-1].get(column, 0) for arm in arms for run in arm.runs if run.rows), default=0)
    return next(((unit, word) for unit, word in UNITS if largest >= 10 * unit), (1.0, ""))


def at_the_end(results: Results, panel: str, x: Mapping[str, str]) -> Table:
    """Each arm against the first of its panel."""
    arms = results.in_panel(panel)
    columns = (
        "arm",
        "seeds",
        "lowest loss",
        "minus the first arm's",
        *(f"{title}, over the first arm's" for title in x.values()),
        "tokens per second",
    )
    return Table(slug("end", panel), panel, columns, [_row(arm, arms[0], list(x)) for arm in arms])


def _row(arm: ArmResult, first: ArmResult, x: Sequence[str]) -> list[object]:
    known = list(lowest(arm).values())
    seeds = f"{len(known)} of {len(arm.runs)}"
    if not known:
        return [arm.label, seeds, *[NOTHING] * (3 + len(x))]
    loss = f"{np.mean(known):.4f} ({min(known):.4f} to {max(known):.4f})"
    if arm is first:
        others: list[object] = [Cell("compared with", "muted"), *[NOTHING] * len(x)]
    else:
        apart, ratios = differences(first, arm), [log_ratios(first, arm, column) for column in x]
        others = [shown_mean(apart.values(), "{:+.4f}") if apart else NOTHING]
        others += [shown_mean(logs.values(), "{:.3f}", ratio=True) if logs else NOTHING for logs in ratios]
    return [arm.label, seeds, loss, *others, _speed(arm)]


def _speed(arm: ArmResult) -> object:
    rows = [run.rows[-1] for run in arm.over if run.rows and run.rows[-1].get("train_seconds")]
    return f"{np.median([row['tokens'] / row['train_seconds'] for row in rows]):,.0f}" if rows else NOTHING


def attention(results: Results, panel: str) -> Section:
    """Diagnostics before and after training, per arm and layer."""
    arms = [arm for arm in results.in_panel(panel) if any(_layers(run, 0, "dispersion") for run in arm.runs)]
    names = [n for n in QUANTITIES if any(_layers(run, 0, n) for arm in arms for run in arm.runs)]
    columns = ("arm", "layer", *(f"{QUANTITIES[n]}, {when}" for n in names for when in ("before", "after")))
    rows = []
    for arm in arms:
        layers = max(len(_layers(run, 0, "dispersion")) for run in arm.runs)
        for layer in range(layers):
            cells = [_median(arm, epoch, name, layer) for name in names for epoch in (0, -1)]
            rows.append([arm.label, layer + 1, *cells])
    return Section("What attention does", ATTENTION, [Table("attention", "", columns, rows)] if rows else [])


def _layers(run: Run, epoch: int, name: str) -> list[float | None]:
    rows = [row for row in run.rows if "diagnostics" in row and (epoch == -1) == (row["epoch"] > 0)]
    found: list[float | None] = rows[-1]["diagnostics"].get(name, {}).get("layers", []) if rows else []
    return found


def _median(arm: ArmResult, epoch: int, name: str, layer: int) -> object:
    found = [layers[layer] for run in arm.runs if layer < len(layers := _layers(run, epoch, name))]
    known = [value for value in found if value is not None]
    return f"{np.median(known):.3g}" if known else NOTHING


def runs(results: Results) -> Section:
    """What became of each run."""
    columns = ("panel", "arm", "seed", "status", "lowest loss", "last loss", "training seconds", "run")
    rows = [_run(arm, run) for arm, run in results.every_run()]
    table = Table("runs", f"All {len(rows)} runs", columns, rows, folded=True)
    return Section("Every run", "What became of each; those that diverged or are not over are listed too.", [table])


def _run(arm: ArmResult, run: Run) -> list[object]:
    known = [row["heldout_loss"] for row in run.rows if row.get("heldout_loss") is not None]
    numbers: list[object] = [NOTHING] * 3
    if known:
        numbers = [f"{min(known):.4f}", f"{known[-1]:.4f}", f"{run.rows[-1].get('train_seconds', 0.0):.1f}"]
    name = Cell(run.directory.run, "code")
    return [arm.panel, arm.label, run.seed, Cell(status(run), TONES.get(run.status, "")), *numbers, name]


def text(results: Results) -> Section:
    """What was read, and how large the models were."""
    configs = [arm.arm.config for arm in results.arms if isinstance(arm.arm.config, LanguageConfig)]
    found = next((run.environment for _, run in results.every_run() if run.environment.get("text")), {})
    if not configs or not found:
        return Section("The text", "No run has begun.")
    c, per_token = configs[-1], found.get("characters_per_token", 1.0)
    sentences = f"""{found["text"]}. Read as {"bytes" if c.text.tokenizer == "bytes" else "byte pairs"}, vocabulary
    {c.text.vocabulary}; {per_token:.2f} characters of the validation text per token. SHA-256 of the text:
    {c.text.sha256 or "not recorded"}. The models have {c.parameters:,} parameters each, and a run at full length sees
    {c.steps * c.step_tokens:,} tokens, none twice."""
    return Section("The text", sentences)


def methods() -> Section:
    said = METHODS.format(exact=EXACT_SEEDS, alpha=100 * ALPHA, fewest=FEWEST_SEEDS)
    return Section("How the numbers are judged", said)
