"""What a study still lacks, in words: pages and tables say it before they say anything else."""

from __future__ import annotations

from collections.abc import Iterable

from .results import ArmResult, Results

#: More arms than this are counted, not named.
NAMED = 6


def missing(results: Results) -> list[str]:
    """A sentence for the panels that lack the same runs, one for all of which nothing has begun.

    Nothing where every run is over.
    """
    alike: dict[str, list[str]] = {}  # what is lacking: panels
    untouched: dict[str, int] = {}  # panel: its runs
    for panel in results.panels:
        arms = results.in_panel(panel)
        planned = sum(len(arm.runs) for arm in arms)
        if all(len(arm.over) == len(arm.runs) for arm in arms):
            continue
        if any(run.status != "waiting" for arm in arms for run in arm.runs):
            alike.setdefault(_lacking(arms, planned), []).append(panel)
        else:
            untouched[panel] = planned
    sentences = [f"{named(panels)}: {'in each ' if len(panels) > 1 else ''}{what}" for what, panels in alike.items()]
    if len(untouched) == 1:
        sentences += [f"{panel}: none of its {planned} runs is over" for panel, planned in untouched.items()]
    elif untouched:
        sentences.append(f"none of the {sum(untouched.values())} runs is over of {named(untouched)}")
    return sentences


def changed(results: Results) -> list[str]:
    """A sentence for each arm whose runs were trained with other code of its user's than there is now."""
    labels = dict.fromkeys(arm.label for arm in results.arms if arm.changed)
    return [
        f"{label}: its pattern or task has changed since these runs were trained; what depends on its code is left out"
        for label in labels
    ]


def named(panels: Iterable[str]) -> str:
    """Panels of one task together.

    >>> named(["listops, heads 2", "listops, heads 4", "parity_check", "even_pairs, gelu"])
    'listops (heads 2; heads 4); parity_check; even_pairs, gelu'
    """
    tasks: dict[str, list[str]] = {}
    for panel in panels:
        tasks.setdefault(panel.partition(", ")[0], []).append(panel)
    parts = []
    for task, own in tasks.items():
        details = "; ".join(panel.partition(", ")[2] or "as it is" for panel in own)
        parts.append(own[0] if len(own) == 1 else f"{task} ({details})")
    return "; ".join(parts)


def _lacking(arms: list[ArmResult], planned: int) -> str:
    over = sum(len(arm.over) for arm in arms)
    if not over:
        begun = sum(run.status == "begun" for arm in arms for run in arm.runs)
        return f"none of {planned} runs is over, {begun} have begun"
    partly: dict[str, list[str]] = {}  # seeds: arms that have so many
    for arm in arms:
        if 0 < len(arm.over) < len(arm.runs):
            partly.setdefault(f"{len(arm.over)} of {len(arm.runs)} seeds", []).append(arm.label)
    absent = [arm.label for arm in arms if not arm.over]
    parts = [f"{_arms(labels)} {'has' if len(labels) == 1 else 'have'} {seeds}" for seeds, labels in partly.items()]
    parts += [f"no run is over of {_arms(absent)}"] if absent else []
    return f"{over} of {planned} runs are over; {'; '.join(parts)}"


def _arms(labels: list[str]) -> str:
    return ", ".join(labels) if len(labels) <= NAMED else f"{len(labels)} arms"
