"""semfocus: attention that focuses.

>>> import torch, semfocus
>>> q, k, v = torch.randn(3, 2, 4, 16, 8)  # batch 2, 4 heads, 16 tokens, width 8
>>> semfocus.attention(q, k, v, semfocus.TopK(5)).shape
torch.Size([2, 4, 16, 8])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Imported when first used (PEP 562), so that `import semfocus` and the command line's help do not wait for torch.
_LAZY = {
    "attention": "functional",
    "explain": "functional",
    "diagnose": "diagnosis",
    "Pattern": "patterns",
    "register": "plugins",
    "load_run": "training.load",
    "Full": "patterns.full",
    "Banded": "patterns.banded",
    "BlockLocal": "patterns.block_local",
    "TopK": "patterns.top_k",
    "BottomK": "patterns.bottom_k",
    "RandomK": "patterns.random_k",
    "FixedRandom": "patterns.fixed_random",
    "Strided": "patterns.strided",
    "SwappedTopK": "patterns.swapped_top_k",
    "PositionalTopK": "patterns.positional_top_k",
    "Transformer": "model",
    "ModelConfig": "model",
}
_ROOMS = (
    "diagnosis",
    "diagnostics",
    "functional",
    "hf",
    "lab",
    "model",
    "nn",
    "patterns",
    "studies",
    "tasks",
    "theory",
    "training",
)

__all__ = [
    "Banded",
    "BlockLocal",
    "BottomK",
    "FixedRandom",
    "Full",
    "ModelConfig",
    "Pattern",
    "PositionalTopK",
    "RandomK",
    "Strided",
    "SwappedTopK",
    "TopK",
    "Transformer",
    "attention",
    "diagnose",
    "explain",
    "load_run",
    "register",
]

if TYPE_CHECKING:
    from .diagnosis import diagnose
    from .functional import attention, explain
    from .model import ModelConfig, Transformer
    from .patterns import Pattern
    from .patterns.banded import Banded
    from .patterns.block_local import BlockLocal
    from .patterns.bottom_k import BottomK
    from .patterns.fixed_random import FixedRandom
    from .patterns.full import Full
    from .patterns.positional_top_k import PositionalTopK
    from .patterns.random_k import RandomK
    from .patterns.strided import Strided
    from .patterns.swapped_top_k import SwappedTopK
    from .patterns.top_k import TopK
    from .plugins import register
    from .training.load import load_run


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    elif name in _ROOMS:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_ROOMS})
