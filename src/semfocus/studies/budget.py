"""How many keys? Stability wants few, expressivity wants enough."""

from __future__ import annotations

from semfocus.lab.claims import Claim, Contrast, Faster, against
from semfocus.lab.results import Results
from semfocus.lab.study import Arm, Size, Study, arm, label_of, laid_over
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.studies._sizes import SECTIONS

BUDGETS = {"smoke": (1, 3), "quick": (1, 2, 5, 9), "small": (1, 2, 3, 5, 9, 15, 25), "paper": (1, 2, 3, 5, 9, 15, 25)}
#: Tasks whose label one query can read from a few keys, and tasks in which every token counts.
FEW = {
    "paper": ("even_pairs", "missing_duplicate_string", "stack_manipulation"),
    "small": ("even_pairs", "missing_duplicate_string"),
}
MANY = {"paper": ("parity_check", "cycle_navigation"), "small": ()}
MIDDLE = 5


class Budget(Study):
    """How does the number of kept keys trade speed against what can be expressed?

    Top-k with k from 1 to 25, and full attention, on tasks that need few keys (Even Pairs: two) and on tasks in which
    every token counts (Parity). Nothing is padded, so all differ in k alone.

    Expected: a middle k is fastest. Fewer keys lower the dispersion (faster), but with one key a query can only copy,
    and with many keys top-k turns into full attention.

    "The fewer the faster" down to k = 5 is refuted by a task that needs few keys on which k = 5 is certainly slower
    than a larger k or than full attention; "one key is too few" by a task on which k = 5 is certainly slower than k =
    1.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 8 minutes: Even Pairs at a quarter of the paper's size", seeds=7),
        "small": Size("one GPU, about 12 minutes: two tasks at the paper's size", seeds=9),
        "paper": Size("one GPU, about two hours: five tasks", seeds=10),
    }
    varies = ("task.name", "pattern", "data.pad_multiple")

    def runs(self, size: str) -> list[Arm]:
        sections = laid_over(SECTIONS[size], {"data": {"pad_multiple": 1}})
        tasks = (*FEW.get(size, ("even_pairs",)), *MANY.get(size, ()))
        patterns = [Full(), *(TopK(k) for k in BUDGETS[size])]
        return [arm(task, pattern, sections) for task in tasks for pattern in patterns]

    def claims(self, results: Results) -> list[Claim]:
        size = results.question.size
        few = [panel for panel in results.panels if panel in FEW.get(size, ("even_pairs",))]
        larger = [label_of(TopK(k)) for k in BUDGETS[size] if k > MIDDLE] + ["full"]
        middle = label_of(TopK(MIDDLE))
        if MIDDLE not in BUDGETS[size]:
            return [
                Faster(
                    "few", "Top-k is faster than full attention", against(results.panels, "full", [label_of(TopK(3))])
                )
            ]
        return [
            Faster(
                "few",
                f"On tasks that need few keys, {MIDDLE} are faster than more of them",
                tuple(Contrast(panel, label, middle) for panel in few for label in larger),
            ),
            Faster(
                "not one",
                f"One key is too few: {MIDDLE} are faster",
                against(results.panels, label_of(TopK(1)), [middle]),
            ),
        ]
