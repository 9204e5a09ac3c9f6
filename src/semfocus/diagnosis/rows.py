"""From the values of every query to one row per head, and one per layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .measure import LayerValues, Values

Row = dict[str, Any]


def rows_of(layer: Row, found: LayerValues, ks: Sequence[int]) -> list[Row]:
    """The layer's row (``head`` None), then one per head. ``layer`` holds what they share."""
    heads = len(found.values["keys"])
    every: list[int | None] = [None, *range(heads)]
    return [layer | {"head": head} | _numbers(found, ks, head) for head in every]


def _numbers(found: LayerValues, ks: Sequence[int], head: int | None) -> Row:
    chosen = slice(None) if head is None else head

    def take(name: str, statistic: Callable[[Values], float]) -> float | None:
        return _over(found.values[name][chosen], statistic)

    def moved(suffix: str) -> float | None:
        return _over(found.sampled[f"ratio{suffix}"][chosen], _median)

    keys = found.values["keys"][chosen]
    row: Row = {
        "queries": int((~np.isnan(keys)).sum()),
        "keys": take("keys", _mean),
        "entropy": take("entropy", _mean),
        "entropy_share": take("entropy_share", _mean),
        "delta_s": take("delta_s", _median),
        "xi_s": take("xi_s", _median),
        "vacuous_s": take("vacuous_s", _mean),
        "ratio_s": moved(""),
    }
    for k in ks:
        largest = float(found.largest[k][chosen].max())
        row |= {
            f"kept_mass_{k}": take(f"kept_mass_{k}", _mean),
            f"if_uniform_{k}": take(f"if_uniform_{k}", _mean),
            f"drops_{k}": take(f"drops_{k}", _mean),
            f"delta_h_{k}": take(f"delta_h_{k}", _median),
            f"separation_{k}": take(f"separation_{k}", _median_of_finite),
            f"in_degree_{k}": int(largest),
            f"beta_{k}": largest / max(1, min(k, found.most_keys)),
            f"xi_h_{k}": take(f"xi_h_{k}", _median),
            f"vacuous_{k}": take(f"vacuous_{k}", _mean),
            f"ratio_{k}": moved(f"_{k}"),
        }
    return row


def _over(values: Values, statistic: Callable[[Values], float]) -> float | None:
    """Of what is known; None where nothing is."""
    known = values[~np.isnan(values)]
    found = statistic(known) if known.size else np.nan
    return None if np.isnan(found) else float(found)


def _mean(values: Values) -> float:
    return float(values.mean())


def _median(values: Values) -> float:
    return float(np.quantile(values, 0.5, method="nearest"))  # one of the values, so infinities do no harm


def _median_of_finite(values: Values) -> float:
    finite = values[np.isfinite(values)]
    return _median(finite) if finite.size else np.nan


def merged(rows: Sequence[Row], ks: Sequence[int], most: int) -> tuple[list[Row], tuple[int, ...]]:
    """Every k above the largest number of keys keeps all of them: one k is left of those, named by that number."""
    larger = [k for k in ks if k > most]
    if not larger:
        return list(rows), tuple(ks)
    left = tuple(k for k in ks if k <= most)
    if most in left:
        renamed: dict[int, int] = {}
    else:
        renamed, left = {larger[0]: most}, (*left, most)
    dropped = set(larger) - renamed.keys()

    def name(column: str) -> str | None:
        stem, _, k = column.rpartition("_")
        if not k.isdigit():
            return column
        return None if int(k) in dropped else f"{stem}_{renamed.get(int(k), int(k))}"

    kept = [{new: value for old, value in row.items() if (new := name(old)) is not None} for row in rows]
    return kept, left
