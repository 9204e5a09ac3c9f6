"""Does it hold for other activations of the MLP?"""

from __future__ import annotations

from semfocus.lab.claims import AsAccurate, Claim, Faster, NoConsistentBenefit, against
from semfocus.lab.results import Results
from semfocus.lab.study import Arm, Size, Study, arm, laid_over
from semfocus.patterns.banded import Banded
from semfocus.patterns.base import Pattern
from semfocus.patterns.block_local import BlockLocal
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.studies._sizes import SECTIONS
from semfocus.studies.convergence import TASKS, variants

ACTIVATIONS = ("relu", "gelu", "mish")


class Activations(Study):
    """Is top-k faster whatever the activation of the MLP: ReLU, GELU or Mish?

    The convergence study again with each activation; panels are task and activation.

    Expected by the paper (C4): the same as with ReLU. Refuted by one task and activation in which top-k is certainly
    slower than full attention, or certainly less accurate on held-out examples.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 12 minutes: Even Pairs at a quarter of the paper's size", seeds=8),
        "small": Size("one GPU, about 15 minutes: two tasks at the paper's size, budget 5", seeds=8),
        "paper": Size("one GPU, many hours: 8 tasks, 15 patterns, 3 activations", seeds=11),
    }
    varies = ("task.name", "pattern", "model.activation", "data.pad_multiple")

    def runs(self, size: str) -> list[Arm]:
        few: list[Pattern] = [Full(), TopK(5)]
        patterns = {"small": variants((5,), (0,)), "paper": variants()}.get(
            size, [*few, Banded(5)] if size == "smoke" else few
        )
        tasks = {"small": ("even_pairs", "missing_duplicate_string"), "paper": TASKS}.get(size, ("even_pairs",))
        return [
            arm(task, pattern, laid_over(SECTIONS[size], {"model": {"activation": name}}), panel=f"{task}, {name}")
            for task in tasks
            for name in ACTIVATIONS
            for pattern in patterns
        ]

    def claims(self, results: Results) -> list[Claim]:
        focused = results.labels_of(TopK)
        fixed = results.labels_of(Banded, BlockLocal)
        found: list[Claim] = [
            Faster(
                "C4, faster",
                "With every activation top-k reaches 95 % of the training examples in fewer epochs than full attention",
                against(results.panels, "full", focused),
                paper="holds for ReLU, GELU and Mish",
            ),
            AsAccurate(
                "C4, as well",
                "With every activation its held-out accuracy is as good",
                against(results.panels, "full", focused),
                paper="holds for ReLU, GELU and Mish",
            ),
        ]
        if fixed:
            found.append(
                NoConsistentBenefit(
                    "C4, fixed",
                    "With every activation fixed patterns show no consistent benefit",
                    against(results.panels, "full", fixed),
                    paper="holds for ReLU, GELU and Mish",
                )
            )
        return found
