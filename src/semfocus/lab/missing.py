"""What a study still lacks, in words: pages and tables say it before they say anything else."""

from __future__ import annotations

from .results import ArmResult, Results

#: More arms than this are counted, not named.
NAMED = 6


def missing(results: Results) -> list[str]:
    """A sentence for each panel that has runs which are not over, one for all of which nothing has begun.

    Nothing where every run is over.
    """
    sentences = []
    untouched: dict[str, int] = {}  # panel: its runs
    for panel in results.panels:
        arms = results.in_panel(panel)
        planned, over = sum(len(arm.runs) for arm in arms), sum(len(arm.over) for arm in arms)
        if over == planned:
            continue
        if over == 0:
            begun = sum(run.status == "begun" for arm in arms for run in arm.runs)
            if begun:
                sentences.append(f"{panel}: none of its {planned} runs is over, {begun} have begun")
            else:
                untouched[panel] = planned
            continue
        partly = [f"{arm.label} has {len(arm.over)} of {len(arm.runs)} seeds" for arm in arms if _partly(arm)]
        absent = [arm.label for arm in arms if not arm.over]
        parts = partly if len(partly) <= NAMED else [f"{len(partly)} arms lack some seeds"]
        if absent:
            parts.append(f"no run is over of {', '.join(absent) if len(absent) <= NAMED else f'{len(absent)} arms'}")
        sentences.append(f"{panel}: {over} of {planned} runs are over; {'; '.join(parts)}")
    if len(untouched) == 1:
        sentences += [f"{panel}: none of its {planned} runs is over" for panel, planned in untouched.items()]
    elif untouched:
        sentences.append(f"none of the {sum(untouched.values())} runs is over of {'; '.join(untouched)}")
    return sentences


def _partly(arm: ArmResult) -> bool:
    return 0 < len(arm.over) < len(arm.runs)
