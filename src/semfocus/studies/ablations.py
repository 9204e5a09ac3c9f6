"""Does it hold for other depths, heads, learning rates, decays and optimisers?"""

from __future__ import annotations

from typing import Any

from semfocus.lab.claims import Claim, Faster, against
from semfocus.lab.results import Results
from semfocus.lab.study import Arm, Size, Study, arm, laid_over
from semfocus.patterns.full import Full
from semfocus.patterns.top_k import TopK
from semfocus.studies._sizes import SECTIONS

Settings = dict[str, dict[str, Any]]


def _settings(name: str, section: str, values: tuple[float, ...], **fixed: Any) -> Settings:
    field = name.replace(" ", "_")
    return {f"{name} {value:g}": {section: {**fixed, field: value}} for value in values}


#: The paper's, on ListOps.
PAPER: Settings = {
    **_settings("blocks", "model", (6, 10, 15, 22)),
    **_settings("heads", "model", (1, 2, 4, 8)),
    **_settings("learning rate", "optimiser", (0.66, 1.0, 1.5, 2.25)),
    **_settings("decay", "optimiser", (0.9, 0.99, 0.999, 0.9999)),
    **{
        f"Adam, learning rate {rate:g}": {"optimiser": {"name": "adam", "learning_rate": rate, "decay": 0.99999}}
        for rate in (1e-5, 1e-4, 1e-3, 1e-2)
    },
}
#: The same questions around Even Pairs' own recipe.
SMALL: Settings = {
    **_settings("blocks", "model", (3, 5, 8)),
    **_settings("heads", "model", (2, 4)),
    **_settings("learning rate", "optimiser", (0.05, 0.2, 0.4)),
    **_settings("decay", "optimiser", (0.98, 0.999)),
    **{
        f"Adam, learning rate {rate:g}": {"optimiser": {"name": "adam", "learning_rate": rate}} for rate in (1e-4, 1e-3)
    },
}
QUICK: Settings = {
    **_settings("blocks", "model", (1, 3)),
    **_settings("heads", "model", (2,)),
    **_settings("learning rate", "optimiser", (0.05, 0.3)),
    **{"Adam, learning rate 0.001": {"optimiser": {"name": "adam", "learning_rate": 0.001}}},
}
SMOKE: Settings = {**_settings("blocks", "model", (1, 2)), **_settings("heads", "model", (2,))}
SETTINGS = {"smoke": SMOKE, "quick": QUICK, "small": SMALL, "paper": PAPER}
#: ListOps takes some 130 epochs, and looking at all examples costs a third of an epoch of training.
LOOK = {"paper": {"train": {"eval_every": 4}}}


class Ablations(Study):
    """Is top-k faster whatever the depth, heads, learning rate, decay and optimiser?

    Full attention against top-k(5), one setting changed at a time; every setting is a panel. At the paper's size on
    ListOps, evaluated after every fourth epoch, at smaller sizes on Even Pairs.

    Expected by the paper (C4): top-k is faster in every setting in which full attention learns at all. Refuted by one
    setting in which top-k is certainly slower.
    """

    sizes = {
        "smoke": Size("seconds; shows that everything runs", seeds=2),
        "quick": Size("2 CPU cores, about 20 minutes: Even Pairs at a quarter of the paper's size", seeds=9),
        "small": Size("one GPU, about 15 minutes: Even Pairs at the paper's size", seeds=9),
        "paper": Size("one GPU, a day or more: ListOps", seeds=10),
    }
    varies = ("task.name", "pattern", "model.blocks", "model.heads", "optimiser", "data.pad_multiple")

    def runs(self, size: str) -> list[Arm]:
        task = "listops" if size == "paper" else "even_pairs"
        common = laid_over(SECTIONS[size], LOOK.get(size, {}))
        return [
            arm(task, pattern, laid_over(common, sections), panel=f"{task}, {setting}")
            for setting, sections in SETTINGS[size].items()
            for pattern in (Full(), TopK(5))
        ]

    def claims(self, results: Results) -> list[Claim]:
        kinds = {
            "blocks": "depth",
            "heads": "number of heads",
            "learning rate": "learning rate",
            "decay": "decay",
            "Adam": "Adam",
        }
        found: list[Claim] = []
        for start, kind in kinds.items():
            panels = [panel for panel in results.panels if panel.partition(", ")[2].startswith(start)]
            if panels:
                statement = (
                    f"Top-k is faster than full attention whatever the {kind}"
                    if start != "Adam"
                    else "Top-k is faster than full attention under Adam too"
                )
                found.append(
                    Faster(f"C4, {kind}", statement, against(panels, "full", ["top-k(5)"]), paper="holds on ListOps")
                )
        return found
