"""Is it focus? The controls that tell focus from sharpness, from sparsity, from padding and from memorising."""

from __future__ import annotations

import dataclasses
from typing import Any

from semfocus.lab.claims import Claim, Contrast, Faster, against
from semfocus.lab.results import Results
from semfocus.lab.study import Arm, Size, Study, arm, label_of, laid_over
from semfocus.patterns.base import Pattern
from semfocus.patterns.bottom_k import BottomK
from semfocus.patterns.fixed_random import FixedRandom
from semfocus.patterns.full import Full
from semfocus.patterns.positional_top_k import PositionalTopK
from semfocus.patterns.random_k import RandomK
from semfocus.patterns.strided import Strided
from semfocus.patterns.swapped_top_k import SwappedTopK
from semfocus.patterns.top_k import TopK
from semfocus.studies._sizes import SECTIONS

SCALES = {
    "smoke": (1.0, 4.0),
    "quick": (1.0, 4.0),
    "small": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
    "paper": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
}
TASKS = {
    "small": ("even_pairs", "missing_duplicate_string"),
    "paper": ("even_pairs", "missing_duplicate_string", "parity_check", "stack_manipulation"),
}
#: As many keys as top-k keeps, chosen without looking at the query's own scores, or for the wrong reason.
OTHERS: tuple[Pattern, ...] = (
    BottomK(5),
    RandomK(5),
    FixedRandom(5),
    Strided(5),
    SwappedTopK(5),
    PositionalTopK(5),
)
#: A run on ListOps costs as much as fifty others: the scale alone is tried there, with fewer seeds.
DEAR_TASK, DEAR_SCALES, FEWER_SEEDS = "listops", (1.0, 4.0), (0, 1, 2)
SHUFFLED = "random labels"
PADDED = "padding"


class Controls(Study):
    """Is it focus, or only sharpness, sparsity, padding or memorising?

    Top-k differs from full attention in several ways at once. Each control changes one of them: the scores' scale (a
    sharper softmax without any selection), which five keys are kept (the worst, random ones, fixed ones, evenly
    spaced ones, those of another example, those of the batch's mean scores), the padding that top-k needs, and the
    labels (shuffled: all that is left is to memorise). On ListOps, at the paper's size, the scale alone, with 3 seeds.

    Expected if focus is the reason: top-k is faster than full attention at every scale, and faster than every other
    choice of five keys. Expected if sharpness is the reason (plateaus come from near-uniform attention): a larger
    scale makes full attention as fast as top-k.

    Each claim is refuted by one contrast in which the second of the two is certainly slower.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 25 minutes: Even Pairs at a quarter of the paper's size", seeds=8),
        "small": Size("one GPU, about 20 minutes: two tasks at the paper's size", seeds=10),
        "paper": Size("one GPU, about two hours: four tasks, and the scale on ListOps", seeds=10),
    }
    varies = ("task.name", "pattern", "model.attention_scale", "model.mask_padding", "model.pool_padding", "data")

    def runs(self, size: str) -> list[Arm]:
        arms = [a for task in TASKS.get(size, ("even_pairs",)) for a in _arms(task, size)]
        return arms + (_dear_arms(SECTIONS[size]) if size == "paper" else [])

    def claims(self, results: Results) -> list[Claim]:
        size = results.question.size
        tasks = [panel for panel in results.panels if "," not in panel and panel != DEAR_TASK]
        top_k = label_of(TopK(5))
        same_scale = [
            Contrast(task, label_of(Full(), scale), label_of(TopK(5), scale))
            for task in tasks
            for scale in SCALES[size]
        ]
        sharper = [label_of(Full(), scale) for scale in SCALES[size] if scale > 1]
        choices = tuple(Contrast(task, label_of(other), top_k) for task in tasks for other in OTHERS)
        shuffled = [panel for panel in results.panels if panel.endswith(SHUFFLED)]
        padded = [panel for panel in results.panels if panel.endswith(PADDED)]
        # A claim of its own: three seeds can confirm nothing, and must not cost the others their correction.
        dear = [Contrast(DEAR_TASK, label_of(Full(), s), label_of(TopK(5), s)) for s in DEAR_SCALES]
        found: list[Claim] = [
            Faster("scale", "Top-k is faster than full attention at every scale of the scores", tuple(same_scale)),
            Faster("sharpness", "A sharper softmax makes full attention faster", against(tasks, "full", sharper)),
            Faster("choice", "Keeping the best keys is faster than keeping as many others", choices),
            Faster(
                "memorising",
                "Top-k memorises random labels faster than full attention",
                against(shuffled, "full", [top_k]),
            ),
            Faster(
                "padding",
                "Top-k is faster than full attention on sequences padded alike",
                tuple(
                    Contrast(panel, f"full{end}", f"{label_of(TopK(9))}{end}")
                    for panel in padded
                    for end in ("", ", masked")
                ),
            ),
        ]
        if DEAR_TASK in results.panels:
            statement = "On ListOps, top-k is faster than full attention at either scale (3 seeds: numbers, no verdict)"
            found.append(Faster("scale, ListOps", statement, tuple(dear)))
        return found


def _arms(task: str, size: str) -> list[Arm]:
    sections = SECTIONS[size]
    # One padded length for all, so that they differ in one thing at a time.
    unpadded = laid_over(sections, {"data": {"pad_multiple": 5}})
    arms = [arm(task, pattern, unpadded, scale=s) for pattern in (Full(), TopK(5)) for s in SCALES[size]]
    arms += [arm(task, other, unpadded) for other in OTHERS]
    shuffled = laid_over(unpadded, {"data": {"random_labels": True}})
    arms += [arm(task, pattern, shuffled, panel=f"{task}, {SHUFFLED}") for pattern in (Full(), TopK(5))]
    return arms + _padded(task, sections)


def _dear_arms(sections: dict[str, Any]) -> list[Arm]:
    # Its 600 tokens need no padding, so these are runs of ``convergence`` too, and trained once.
    arms = [arm(DEAR_TASK, pattern, sections, scale=s) for pattern in (Full(), TopK(5)) for s in DEAR_SCALES]
    return [dataclasses.replace(one, seeds=FEWER_SEEDS) for one in arms]


def _padded(task: str, sections: dict[str, Any]) -> list[Arm]:
    """Both padded to a multiple of nine, with the padding visible and pooled as in the paper, and with it masked."""
    arms = []
    for masked in (False, True):
        model = {"mask_padding": masked, "pool_padding": not masked}
        padded = laid_over(sections, {"data": {"pad_multiple": 9}, "model": model})
        for pattern in (Full(), TopK(9)):
            label = label_of(pattern) + (", masked" if masked else "")
            arms.append(arm(task, pattern, padded, panel=f"{task}, {PADDED}", label=label))
    return arms
