"""A diagnosis as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import words
from .rows import Row

if TYPE_CHECKING:
    from .result import Diagnosis

WIDTH = 100
#: Values of k side by side.
ACROSS = 8


def text(found: Diagnosis, heads: bool) -> str:
    """Three blocks: the layers' names, kept mass against k, and the rest at one k."""
    rows = found.rows if heads else found.layers
    blocks = ["\n".join(_name(row) for row in found.layers)]
    for start in range(0, len(found.ks), ACROSS):
        ks = found.ks[start : start + ACROSS]
        columns = ["layer", "head", "keys", "entropy", "of ln n", "delta_s", *(f"k={k}" for k in ks)]
        body = [[*_common(row), *(_share(row[f"kept_mass_{k}"]) for k in ks)] for row in rows]
        blocks.append("Kept mass for each k, in per cent\n" + aligned(columns, body))
    k = words.typical_k(found)
    columns = [
        "layer",
        "head",
        "delta_h",
        "separation",
        "in-degree",
        "beta",
        "xi_s",
        "xi_h",
        "ratio full",
        "ratio top-k",
    ]
    body = [[str(row["layer"]), head(row), *details(row, k)] for row in rows]
    title = f"At k = {k} (vacuous: the bound xi says nothing of half of the queries; ratio: what was measured)\n"
    blocks.append(title + aligned(columns, body))
    return "\n\n".join(blocks)


def _name(row: Row) -> str:
    kind = f" ({row['kind']}{', cross attention' if row['cross'] else ''}, {row['pattern']})"
    line = f"layer {row['layer']}: {row['name']}{kind}"
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def _common(row: Row) -> list[str]:
    return [
        str(row["layer"]),
        head(row),
        keys(row),
        number(row["entropy"]),
        _share(row["entropy_share"]),
        number(row["delta_s"]),
    ]


def keys(row: Row) -> str:
    """Keys that a query sees on average; a head's own mask may leave none."""
    return "-" if row["keys"] is None else f"{row['keys']:.1f}"


def details(row: Row, k: int) -> list[str]:
    """What belongs to one k: scores, in-degree, bounds, and the two measured ratios."""
    names = (f"delta_h_{k}", f"separation_{k}", f"in_degree_{k}", f"beta_{k}")
    bounds = (("xi_s", "vacuous_s"), (f"xi_h_{k}", f"vacuous_{k}"))
    return [
        *(number(row[name]) for name in names),
        *("vacuous" if (row[share] or 0.0) >= 0.5 else number(row[name]) for name, share in bounds),
        *(number(row[name]) for name in ("ratio_s", f"ratio_{k}")),
    ]


def head(row: Row) -> str:
    return "all" if row["head"] is None else str(row["head"])


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def number(value: Any) -> str:
    """
    >>> import math
    >>> number(None), number(3), number(0.12345), number(math.inf), number(123456.0)
    ('-', '3', '0.123', 'inf', '1.23e+05')
    """
    if value is None or isinstance(value, int):
        return "-" if value is None else str(value)
    return f"{value:.3g}"


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    >>> print(aligned(["a", "long"], [["1.25", "2"], ["3", "4"]]))
       a  long
    1.25     2
       3     4
    """
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)
