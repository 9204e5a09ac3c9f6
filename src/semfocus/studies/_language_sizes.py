"""How large the language models of each size are, and what is tried."""

from __future__ import annotations

from typing import Any

#: Tried by every pattern.
RATES = {"smoke": (3e-3, 6e-3), "quick": (5e-3, 1e-2, 2e-2), "small": (1e-3, 2e-3, 4e-3, 8e-3)}
#: Tried with each of them by full attention and the top-k the claims are about.
SCALES = {"smoke": (1.0, 2.0), "quick": (1.0, 2.0, 4.0), "small": (1.0, 2.0, 4.0)}
#: The first k is the one the claims are about.
BUDGETS = {"smoke": (5,), "quick": (16, 5), "small": (16, 5, 64, 256)}
WIDTHS = {"smoke": 5, "quick": 16, "small": 64}
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {
        "text": {"megabytes": 0.2},
        "model": {"width": 8, "blocks": 1, "heads": 1, "context": 16},
        "train": {"tokens": 1024, "batch": 4, "epochs": 2, "heldout": 128, "diagnose": 2},
    },
    "quick": {
        "text": {"megabytes": 2.0},
        "model": {"width": 48, "blocks": 2, "heads": 2, "context": 64},
        "train": {"tokens": 163_840, "batch": 16, "epochs": 10, "heldout": 8_192, "diagnose": 8},
    },
    # On an H200 a run takes 5 to 7 s of training, half of it memory traffic, and 1.5 s of evaluation and diagnostics;
    # tuning and reported runs together 10 to 13 minutes, and one more to cut the text into tokens.
    "small": {
        "text": {"megabytes": 64.0, "tokenizer": "bpe", "vocabulary": 4096},
        "model": {"width": 320, "blocks": 8, "heads": 5, "context": 512},
        "train": {"tokens": 12_058_624, "batch": 32, "epochs": 16, "heldout": 262_144, "keep_weights": False},
        "precision": "bfloat16",
    },
}
#: Sizes whose runs must see at least as many tokens as they have parameters.
ENOUGH_TOKENS = ("small",)
