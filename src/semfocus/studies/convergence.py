"""Does attention that focuses converge in fewer epochs?"""

from __future__ import annotations

from typing import Any

from semfocus.lab.claims import AsAccurate, Claim, Faster, Learns, NoConsistentBenefit, against
from semfocus.lab.results import Results
from semfocus.lab.study import Arm, Size, Study, arm, joined_patterns, joined_tasks, label_of
from semfocus.patterns.banded import Banded
from semfocus.patterns.base import Pattern
from semfocus.patterns.block_local import BlockLocal
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.studies._sizes import SECTIONS

TASKS = (
    "listops",
    "parity_check",
    "even_pairs",
    "missing_duplicate_string",
    "cycle_navigation",
    "modular_arithmetic_brackets",
    "solve_equation",
    "stack_manipulation",
)
#: Where the paper saw full attention generalise.
GENERALISES = ("listops", "even_pairs", "missing_duplicate_string", "stack_manipulation")
#: Top-k's cheapest rival: full attention with sharper scores.
SHARP = 4.0


def variants(widths: tuple[int, ...] = (5, 9), global_tokens: tuple[int, ...] = (0, 1, 3)) -> list[Pattern]:
    """The paper's patterns: full; banded and block-local with and without global tokens; top-k."""
    local = [kind(w, global_tokens=g) for kind in (Banded, BlockLocal) for w in widths for g in global_tokens]
    return [Full(), *local, *(TopK(k) for k in widths)]


class Convergence(Study):
    """Does attention that focuses converge in fewer epochs than full attention, and generalise as well?

    Every pattern trains on every task from the same initial weights, on the same data in the same order, seed by
    seed. T is the first epoch at which 95 % of the training examples are classified correctly in evaluation mode.

    Expected by the paper: top-k is faster on every task (C1), its held-out accuracy is as good and comes earlier (C2),
    fixed sparse patterns bring no consistent benefit (C3), full attention fits all eight tasks and generalises on four
    (C6). Beside them stands the cheapest rival: full attention with its scores multiplied by four. If that is as fast,
    sharpness may be all there is to focus.

    C1 is refuted by one task on which top-k is certainly slower; C2 by one on which its last held-out accuracy is
    certainly lower, and perhaps by more than 2 points, or its held-out convergence certainly later; C3 by a fixed
    pattern that is certainly faster on every task it can solve; C6 by a task that no seed fits, or on which every seed
    does the opposite of what is said. C2's "earlier" is asked where at least half of full attention's seeds reach the
    level on held-out examples. That focus is more than sharpness is refuted by one task on which top-k is certainly
    slower than the rival.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 5 minutes: Even Pairs at a quarter of the paper's size", seeds=6),
        "small": Size("one GPU, about 10 minutes: two tasks at the paper's size, budget 5", seeds=8),
        "paper": Size("one GPU, hours: 8 tasks, 15 patterns and the rival", seeds=10),
    }
    varies = ("task.name", "pattern", "model.attention_scale", "data.pad_multiple")

    def runs(self, size: str) -> list[Arm]:
        patterns = {
            "smoke": [Full(), Banded(5), TopK(5), BlockLocal(5, global_tokens=1)],
            "quick": [Full(), Banded(5), TopK(5)],
            "small": variants((5,), (0, 1)),
            "paper": variants(),
        }[size] + joined_patterns()
        tasks = {"small": ("even_pairs", "missing_duplicate_string"), "paper": TASKS}.get(size, ("even_pairs",))
        return [arm for task in (*tasks, *joined_tasks()) for arm in _arms(task, patterns, SECTIONS[size])]

    def claims(self, results: Results) -> list[Claim]:
        panels = results.panels
        labels = list(dict.fromkeys(arm.label for arm in results.arms))
        focused = results.labels_of(TopK)
        fixed = results.labels_of(Banded, BlockLocal)
        yours = [label for label in labels if label in {label_of(pattern) for pattern in joined_patterns()}]
        general = [panel for panel in panels if panel in GENERALISES and _gets_there(results, panel)]
        rival = label_of(Full(), SHARP)
        found: list[Claim] = [
            Faster(
                "C1",
                "Top-k attention reaches 95 % of the training examples in fewer epochs than full attention",
                against(panels, "full", focused),
                paper="holds on all eight tasks",
            ),
            Faster(
                "C1, rival",
                f"Top-k attention is also faster than full attention with its scores multiplied by {SHARP:g}",
                against(panels, rival, focused),
                paper="not asked",
            ),
            Faster(
                "C2, earlier",
                "Top-k attention reaches 95 % of the held-out examples in fewer epochs, where full attention does",
                against(general, "full", focused, "heldout"),
                paper="holds where full attention generalises",
            ),
            AsAccurate(
                "C2, as well",
                "Its held-out accuracy at the last epoch is as good as full attention's, or better",
                against(panels, "full", focused),
                paper="holds on all eight tasks",
            ),
            NoConsistentBenefit(
                "C3",
                "Fixed sparse patterns show no consistent benefit over full attention",
                against(panels, "full", fixed),
                paper="holds, with and without global tokens",
            ),
        ]
        if yours:
            statement = f"{', '.join(yours)}: 95 % of the training examples in fewer epochs than full attention"
            found.append(Faster("yours", statement, against(panels, "full", yours), paper="not asked"))
        if results.question.size == "paper":
            found.append(
                Learns(
                    "C6",
                    "Full attention fits all eight tasks and generalises on four of them",
                    "full",
                    TASKS,  # not a user's own tasks
                    GENERALISES,
                    paper="100 % of the training examples everywhere; near chance on four tasks",
                )
            )
        return found


def _gets_there(results: Results, panel: str) -> bool:
    """Whether full attention reaches the level on held-out examples, in half of its seeds that are over or more."""
    times = results.arm(panel, "full").times("heldout") if results.has(panel, "full") else None
    return times is None or times.censored_share <= 0.5


def _arms(task: str, patterns: list[Pattern], sections: dict[str, Any]) -> list[Arm]:
    """Every pattern on one task, and after full attention its sharper self."""
    arms = [arm(task, pattern, sections) for pattern in patterns]
    return [arms[0], arm(task, Full(), sections, scale=SHARP), *arms[1:]]
