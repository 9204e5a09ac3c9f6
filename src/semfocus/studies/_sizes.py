"""Settings that several studies share: a task small enough for a test, and one small enough for a CPU."""

from __future__ import annotations

from typing import Any

#: Seconds for a whole study. Nothing is learnt.
TINY: dict[str, Any] = {
    "task": {"length": 8},
    "model": {"width": 8, "mlp_width": 8, "blocks": 1},
    "data": {"train": 50, "heldout": 25},
    "train": {"epochs": 2},
}
#: Even Pairs at a quarter of the paper's size, on which full attention takes some 20 to 50 epochs.
QUICK: dict[str, Any] = {
    "task": {"length": 20},
    "model": {"width": 32, "mlp_width": 32, "blocks": 2},
    "data": {"train": 2000, "heldout": 500},
    "train": {"epochs": 40},
}
#: The paper's size, with matrix products in TF32 on a GPU.
PAPER: dict[str, Any] = {"precision": "tf32"}

SECTIONS = {"smoke": TINY, "quick": QUICK, "small": PAPER, "paper": PAPER}
#: Looks between the evaluations, where convergence may come before the first: part of ``train``.
PAPER_PROBES = {"probe_every": 20, "probe_epochs": 20, "probe_examples": 1000}
