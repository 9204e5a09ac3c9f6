"""What a study still lacks, in words: pages and tables say it before they say anything else."""

from __future__ import annotations

from .results import ArmResult, Results

#: More arms than this are counted, not named.
NAMED = 6


def missing(results: Results) -> list[str]:
    """A sentence for each panel that has runs which are not over; nothing where every run is."""
    sentences = []
    for panel in results.panels:
        arms = results.in_panel(panel)
        planned, over = sum(len(arm.runs) for arm in arms), sum(len(arm.over) for arm in arms)
        if over == planned:
            continue
        if over == 0:
            begun = sum(run.status == "running" for arm in arms for run in arm.runs)
            sentences.append(f"{panel}: none of its {planned} runs is over" + (f", {begun} have begun" * bool(begun)))
            continue
        partly = [f"{arm.label} has {len(arm.over)} of {len(arm.runs)} seeds" for arm in arms if _partly(arm)]
        absent = [arm.label for arm in arms if not arm.over]
        parts = partly if len(partly) <= NAMED else [f"{len(partly)} arms lack some seeds"]
        if absent:
            parts.append(f"no run is over of {', '.join(absent) if len(absent) <= NAMED else f'{len(absent)} arms'}")
        sentences.append(f"{panel}: {over} of {planned} runs are over; {'; '.join(parts)}")
    return sentences


def _partly(arm: ArmResult) -> bool:
    return 0 < len(arm.over) < len(arm.runs)
