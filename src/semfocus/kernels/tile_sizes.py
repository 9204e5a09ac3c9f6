"""Which tiles the kernels for short rows take, and how each is scheduled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .integers import BITS, THREE_PROGRAMS, padded

#: Up to this many kept keys the scores of a row need not stay on chip.
FEW = 64
#: And how many of a slot's scores must: the chance that one of 32 slots holds more of the k best is about 1e-5, and
#: that one of 64 does at most 0.5 %: then a pass is repeated, for a whole tile.
LEVELS = {64: (0, 1, 2, 2, 2, 2, 2), 32: (0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6)}


@dataclass(frozen=True)
class Tile:
    """The shape of a kernel's tiles and how it is scheduled."""

    m: int
    n: int
    warps: int
    stages: int
    registers: int | None = None  # of a thread, at most

    def schedule(self) -> dict[str, int]:
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"BLOCK_M": self.m, "BLOCK_N": self.n, "num_warps": self.warps, "num_stages": self.stages, **limit}


#: Up to this many keys the kernel that holds a row's scores in registers can do with so few.
FEW_REGISTERS_UP_TO = 512
#: What was fastest on an H200, with tensor cores; full attention's forward pass was timed with halves alone.
TILES = {
    "full_forward": Tile(128, 64, 8, 3, 128),
    "top_few_forward": Tile(64, 64, 4, 3, THREE_PROGRAMS),
    "top_k_forward": Tile(16, 128, 4, 1),
    "backward_queries": Tile(64, 32, 4, 3),
    "backward_keys": Tile(32, 64, 4, 3, THREE_PROGRAMS),
}
#: The same for float32 products in full precision, which tensor cores do not have.
EXACT_TILES = {
    "full_forward": Tile(32, 32, 4, 1),
    "top_few_forward": Tile(32, 32, 4, 1),
    "top_k_forward": Tile(16, 64, 4, 1),
    "backward_queries": Tile(32, 32, 4, 1),
    "backward_keys": Tile(32, 32, 4, 1),
}

#: The tiles of the kernels that gather: no more queries than the least number of rows that is stored (``tiles.ROWS``).
FEW_QUERIES_TILE: dict[str, Any] = {"BLOCK_M": 64, "num_warps": 4, "num_stages": 1, "maxnreg": THREE_PROGRAMS}
FEW_KEYS_TILE: dict[str, Any] = {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3}


def tile(kernel: str, queries: int, keys: int, width: int, exact: bool) -> Tile:
    """The kernel's tile, cut to the size of the problem. Wide heads need all registers."""
    chosen = (EXACT_TILES if exact else TILES)[kernel]
    narrowest = BITS if kernel.startswith("top") else 16
    registers = chosen.registers
    if kernel == "top_k_forward" and keys <= FEW_REGISTERS_UP_TO and not exact:
        registers = THREE_PROGRAMS
    rows = min(chosen.m, padded(queries, 16))
    return Tile(
        rows,
        min(chosen.n, padded(keys, narrowest)),
        chosen.warps if rows == chosen.m else min(4, chosen.warps),
        chosen.stages,
        registers if width <= 64 else None,
    )


def top_few_tile(queries: int, keys: int, width: int, exact: bool, budget: int, dropout: bool) -> tuple[Tile, int]:
    """The tile of ``top_few_forward``, each column of which is a slot, and how many of a slot's scores it remembers.

    Wide tiles do with fewer, but beside dropout there are not enough registers for them.
    """
    shape = tile("top_few_forward", queries, keys, width, exact)
    if dropout or budget >= len(LEVELS[64]):
        shape = replace(shape, n=BITS)
    return shape, remembered(budget, shape.n)


def few_tiles(width: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tiles and schedules of ``few_queries`` and ``few_keys``. Wide heads need all registers."""
    if width <= 64:
        return FEW_QUERIES_TILE, FEW_KEYS_TILE
    return {**FEW_QUERIES_TILE, "num_warps": 8, "maxnreg": None}, {**FEW_KEYS_TILE, "BLOCK_N": 64}


def remembered(budget: int, slots: int) -> int:
    """How many of a slot's scores are remembered. For larger budgets a few of the best may be overlooked in a row.

    >>> remembered(5, 64), [remembered(k, 32) for k in (5, 16, 17, 32, 64)]
    (2, [4, 6, 3, 4, 6])
    """
    return LEVELS[slots][budget] if budget < len(LEVELS[slots]) else 2 + budget // 16
