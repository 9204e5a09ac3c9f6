"""A diagnosis in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .prediction import prediction
from .rows import Row

if TYPE_CHECKING:
    from .result import Diagnosis

#: How much of full attention's weight the kept keys are to hold.
ENOUGH, NEARLY_ALL = 0.95, 0.99
#: From this share of ln n on, attention is called nearly uniform.
NEARLY_UNIFORM = 0.9
#: More layers than this are not named one by one.
NAMED = 4


def paragraphs(found: Diagnosis) -> list[str]:
    said = [_what(found), _kept_mass(found), _sharpness(found), _stability(found), prediction(found)]
    return [*said, " ".join(found.notes)] if found.notes else said


def pooled(found: Diagnosis, column: str) -> float:
    """Mean over the layers, each with the weight of its queries."""
    known = [(row[column], row["queries"]) for row in found.layers if row[column] is not None]
    return float(np.average([v for v, _ in known], weights=[n for _, n in known])) if known else float("nan")


def smallest_k(row: Row, ks: Sequence[int], share: float = ENOUGH) -> int | None:
    """The smallest k whose keys hold that share of the weight, on average."""
    return next((k for k in ks if (row[f"kept_mass_{k}"] or 0.0) >= share), None)


def choices(found: Diagnosis) -> tuple[int, ...]:
    """The ks with which some query would drop a key; all of them if none does."""
    return tuple(k for k in found.ks if any(row[f"drops_{k}"] for row in found.layers)) or found.ks


def typical_k(found: Diagnosis) -> int:
    """The k that is described in detail: the smallest that keeps enough, or else the largest that drops something."""
    return smallest_k(_overall(found), choices(found)) or choices(found)[-1]


def _overall(found: Diagnosis) -> Row:
    return {f"kept_mass_{k}": pooled(found, f"kept_mass_{k}") for k in found.ks}


def percent(share: float | None) -> str:
    """
    >>> percent(0.9512), percent(0.99996), percent(None)
    ('95.1 %', 'over 99.9 %', '-')
    """
    if share is None or np.isnan(share):
        return "-"
    return "over 99.9 %" if 0.9995 <= share < 1 - 1e-6 else f"{100 * share:.1f} %"


def _what(found: Diagnosis) -> str:
    layers = found.layers
    heads = sorted({sum(row["layer"] == layer["layer"] for row in found.rows) - 1 for layer in layers})
    shape = f"{heads[0]} heads each" if len(heads) == 1 else f"{heads[0]} to {heads[-1]} heads"
    said = (
        f"{found.model}: {len(layers)} attention {'layer' if len(layers) == 1 else 'layers'}, {shape}. "
        f"A query sees {pooled(found, 'keys'):.1f} keys on average; {layers[0]['queries']:,} queries were counted in "
        "the first layer, all heads together."
    )
    patterns = sorted({row["pattern"] for row in layers} - {"full()"})
    if patterns:
        said += f" The model ran with its own patterns ({', '.join(patterns)}); the numbers are of full attention and "
        said += "of top-k on the scores it then has."
    return said


def _kept_mass(found: Diagnosis) -> str:
    k, overall = typical_k(found), _overall(found)
    said = (
        f"Kept mass (measured). The {k} best keys of a query hold {percent(overall[f'kept_mass_{k}'])} of full "
        f"attention's weight on average; with equal weights they would hold "
        f"{percent(pooled(found, f'if_uniform_{k}'))}. "
        f"{percent(pooled(found, f'drops_{k}'))} of the queries see more than {k} keys at all. "
        f"{_reached(overall, choices(found))}"
    )
    return f"{said} {_ranking(found)}" if len(found.layers) > 1 else said


def _reached(row: Row, ks: Sequence[int]) -> str:
    first, nearly = (smallest_k(row, ks, share) for share in (ENOUGH, NEARLY_ALL))
    if first is None:
        return f"{100 * ENOUGH:.0f} % is not reached by any k up to {ks[-1]}."
    rest = f"{100 * NEARLY_ALL:.0f} % " + (f"from k = {nearly} on" if nearly else f"by no k up to {ks[-1]}")
    return f"{100 * ENOUGH:.0f} % is reached from k = {first} on, {rest}."


def _ranking(found: Diagnosis) -> str:
    """Which layers would lose least."""
    ks, groups = choices(found), dict[int | None, list[Row]]()
    for row in found.layers:
        groups.setdefault(smallest_k(row, ks), []).append(row)
    order = sorted(groups, key=lambda k: (k is None, k or 0))
    if len(order) == 1:
        k = order[0]
        least = max(found.layers, key=lambda row: row[f"kept_mass_{k or ks[-1]}"] or 0.0)
        where = f"reach {100 * ENOUGH:.0f} % at the same k" if k else f"stay below {100 * ENOUGH:.0f} %"
        return f"All layers {where}; {_named([least])} would lose least."
    said = [f"{_named(groups[order[0]])} would lose least ({_from(order[0], ks)})"]
    said += [f"{_named(groups[k])} more ({_from(k, ks)})" for k in order[1:-1]]
    said.append(f"{_named(groups[order[-1]])} most ({_from(order[-1], ks)})")
    return f"{_capital(', '.join(said))}."


def _capital(text: str) -> str:
    """``capitalize`` would write the names of modules small."""
    return text[0].upper() + text[1:]


def _from(k: int | None, ks: Sequence[int]) -> str:
    return f"{100 * ENOUGH:.0f} % from k = {k} on" if k else f"below {100 * ENOUGH:.0f} % up to k = {ks[-1]}"


def _named(rows: Sequence[Row]) -> str:
    numbers = [str(row["layer"]) for row in rows]
    if len(rows) == 1:
        return f"layer {numbers[0]} ({rows[0]['name']})"
    shown = numbers if len(numbers) <= NAMED else [*numbers[: NAMED - 1], f"{len(numbers) - NAMED + 1} others"]
    return f"layers {', '.join(shown[:-1])} and {shown[-1]}"


def _sharpness(found: Diagnosis) -> str:
    k = typical_k(found)
    said = (
        f"Sharpness (measured). The entropy of the weights is {percent(pooled(found, 'entropy_share'))} of that of "
        f"equal weights; the dispersion of a query's scores is {pooled(found, 'delta_s'):.2g} (median, mean over "
        f"layers), that of its {k} best {pooled(found, f'delta_h_{k}'):.2g}."
    )
    flat = [row for row in found.layers if (row["entropy_share"] or 0.0) >= NEARLY_UNIFORM]
    if not flat:
        return (
            f"{said} No layer is nearly uniform ({100 * NEARLY_UNIFORM:.0f} % or more), so there is no sign that a "
            "larger softmax scale should be tried first. This is a rule of thumb, not a scored prediction."
        )
    which = "All layers are" if len(flat) == len(found.layers) else f"{_capital(_named(flat))} {_is(flat)}"
    return (
        f"{said} {which} nearly uniform ({100 * NEARLY_UNIFORM:.0f} % or more): the scores hardly tell keys apart, and "
        "top-k would drop keys that now carry weight. Try a larger softmax scale first (twice, four times): it is the "
        "simpler rival, which sharpens the weights too and drops no key. This is a rule of thumb, not a scored "
        "prediction."
    )


def _is(rows: Sequence[Row]) -> str:
    return "is" if len(rows) == 1 else "are"


def _stability(found: Diagnosis) -> str:
    k = typical_k(found)
    full, top = pooled(found, "vacuous_s"), pooled(found, f"vacuous_{k}")
    bounds = (
        f"Stability. The bound on how far weights move per movement of the scores is vacuous (1/2 or more, and where "
        f"kept keys may change also 1/separation or more, which holds for any softmax) for {percent(full)} of the "
        f"queries under full attention and {percent(top)} under top-{k}"
    )
    says = "; there it says nothing." if full or top else "."
    return (
        f"{bounds}{says} Measured under small noise, the weights of the median query move by "
        f"{pooled(found, 'ratio_s'):.2g} of the scores' movement under full attention and by "
        f"{pooled(found, f'ratio_{k}'):.2g} under top-{k}."
    )
