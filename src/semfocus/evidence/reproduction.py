"""The parts of ``docs/reproduction.md`` that are written from data."""

from __future__ import annotations

from typing import Literal

from ..lab.baselines import chance, shortcut
from .claims import ClaimRow
from .cost import duration
from .markdown import table
from .summary import BY_STUDY, FAILS, MIXED, NOT_RUN, Summary, is_full_size

#: What the paper says of claims that are not its own.
UNASKED = ("not asked", "not asked of decoders")


def documents(summary: Summary) -> dict[str, str]:
    """Bodies by the name of their place."""
    return {
        "status": status(summary),
        "agreement": agreement(summary),
        "speeds": summary.speeds() or NOT_RUN,
        "shortcuts": shortcuts(summary),
        "cost": costs(summary),
    }


def status(summary: Summary) -> str:
    rows = [
        (
            one.study,
            one.results.question.name,
            f"{one.cost.over} of {one.cost.planned}",
            "<br>".join(one.lacks) or "nothing",
            f"[claims](../results/{one.name}/claims.md), [speed](../results/{one.name}/speed.md), "
            f"[runs](../results/{one.name}/runs.csv), page: `results/{one.name}/index.html`",
        )
        for one in summary.built
    ]
    known = {one.study for one in summary.built}
    rows += [(study, "-", NOT_RUN, "-", "-") for study in BY_STUDY if study not in known]
    return table(("study", "size", "runs over", "missing", "where"), rows)


def agreement(summary: Summary) -> str:
    """The paper's claims by what was found, the explanation's first where it fails."""
    asked = [
        (_agreement(row) if is_full_size(one) else "smaller", row)
        for one in summary.built
        for row in one.claims
        if row.paper not in UNASKED
    ]
    if not asked:
        return NOT_RUN
    asked.sort(key=lambda found: FAILS.get((found[1].study, found[1].id)) != found[1].verdict)
    heads = {
        "disagrees": "Does not agree",
        "agrees": "Agrees",
        "mixed": "Differs from task to task in the paper too (its numbers and ours are on the study's page)",
        "open": "Not decided",
        "smaller": "At a smaller size than the paper's",
    }
    parts = []
    for key, title in heads.items():
        lines = [
            f"- {row.id}: {row.statement} (the paper: {row.paper}; here: {row.verdict}; {row.study}, {row.name}). "
            f"{row.judged.sentence}"
            for found, row in asked
            if found == key
        ]
        if lines or key != "smaller":
            parts.append(f"{title}:\n\n" + ("\n".join(lines) or "- nothing"))
    return "\n\n".join(parts)


def shortcuts(summary: Summary) -> str:
    """Held-out accuracy beside what can be had without understanding."""
    rows = []
    for one in summary.built:
        if one.study != "convergence":
            continue
        for panel in one.results.panels:
            config = one.results.in_panel(panel)[0].config
            means = []
            for label in ("full", "top-k(5)"):
                last = one.results.arm(panel, label).last("heldout_accuracy") if one.results.has(panel, label) else {}
                mean = sum(last.values()) / len(last) if last else None
                means.append(NOT_RUN if mean is None else f"{100 * mean:.1f} % ({len(last)} seeds)")
            known = (f"{100 * chance(config):.1f} %", f"{100 * shortcut(config):.1f} %")
            rows.append((panel, one.results.question.name, *known, *means))
    columns = ("task", "size", "majority class", "best known shortcut", "full, last epoch", "top-k(5), last epoch")
    return table(columns, rows) if rows else NOT_RUN


def costs(summary: Summary) -> str:
    rows = [
        (
            one.study,
            one.results.question.name,
            f"{one.cost.over} of {one.cost.planned}",
            duration(one.cost.measured),
            duration(one.cost.extrapolated) + one.cost.reservations,
            one.cost.one_at_a_time,
            ", ".join(one.cost.devices),
        )
        for one in summary.built
    ]
    columns = ("study", "size", "runs over", "measured", "all runs, extrapolated", "one at a time", "device")
    return table(columns, rows) if rows else NOT_RUN


def _agreement(row: ClaimRow) -> Literal["agrees", "disagrees", "mixed", "open"]:
    if (row.study, row.id) in MIXED:
        return "mixed"
    against = FAILS.get((row.study, row.id), "refuted")
    if row.verdict == against:
        return "disagrees"
    if row.verdict == "undecided":
        return "open"
    supports = "refuted" if against == "confirmed" else "confirmed"
    return "agrees" if row.verdict == supports else "disagrees"
