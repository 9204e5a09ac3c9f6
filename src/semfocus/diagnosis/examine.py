"""``diagnose``: what attention does in somebody's model, layer by layer and head by head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..diagnostics.base import real_queries
from ..patterns.base import whole_number
from ..reference import Problem
from .candidates import candidates
from .evidence import Evidence
from .measure import LayerValues, measure
from .result import Diagnosis
from .rows import Row, merged, rows_of
from .watch import Call, watching

SUPPORTED = (
    "torch.nn.MultiheadAttention anywhere in a model, Hugging Face models that use AttentionInterface, "
    "semfocus.Transformer, and code that calls semfocus.attention"
)


def diagnose(
    model: nn.Module,
    inputs: Tensor | tuple[Any, ...] | Mapping[str, Any],
    *,
    ks: Iterable[int] = (4, 8, 16, 32, 64),
    member: int = 0,
    evidence: Evidence | None = None,
) -> Diagnosis:
    """Runs the model once and measures its attention, per layer and head: what would top-k keep, for which k?

    The model runs in evaluation mode, without gradients, with the attention patterns it has, and is afterwards exactly
    what it was, after an error too. Scores are computed again a few queries at a time, so memory is O(chunk x keys).
    Only visible keys count, and only queries that are not padding. Where queries come from another sequence than the
    keys (cross attention), padding is known from the self attention before it.

    Args:
        model: torch.nn.MultiheadAttention anywhere in it (so nn.TransformerEncoder too), a Hugging Face model that
            ``semfocus.nn.focus`` knows, a ``semfocus.Transformer``, or code of your own that calls
            ``semfocus.attention``.
        inputs: a tensor for ``model(inputs)``, a tuple for ``model(*inputs)``, or a mapping for ``model(**inputs)``:
            representative data, with its masks, on the model's device.
        ks: how many keys top-k might keep.
        member: of a population (``semfocus.Transformer``), the one to look at.
        evidence: scores of predictors of learning speed; the package's own by default.

    Returns:
        A ``Diagnosis``: ``print`` it for a description in words; ``table()``, ``rows``, ``to_csv``, ``to_html``.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=8, batch_first=True)
        >>> found = diagnose(nn.TransformerEncoder(layer, 2), torch.randn(3, 20, 8), ks=(4, 8))
        >>> [(row["layer"], row["head"]) for row in found.rows]
        [(0, None), (0, 0), (0, 1), (1, None), (1, 0), (1, 1)]
    """
    model = _checked(model)
    budgets = _budgets(ks)
    arguments, named = _arguments(inputs)
    seen = _Seen(budgets)
    with watching(model, seen, member) as watch:
        try:
            model(*arguments, **named)
        except Exception as error:
            error.add_note(f"raised while diagnose called {_call(model, arguments, named)}")
            raise
    if not seen.rows:
        if seen.notes:
            raise ValueError(f"there is nothing to diagnose in {type(model).__name__}: {' '.join(seen.notes)}")
        left_out = f" ({', '.join(watch.left_out)} cannot be watched)" if watch.left_out else ""
        raise ValueError(
            f"{type(model).__name__} has no attention that diagnose can see{left_out}; it sees {SUPPORTED}"
        )
    most = max(layer.most_keys for layer in seen.layers)
    rows, left = merged(seen.rows, budgets, most)
    return Diagnosis(
        model=type(model).__name__,
        rows=rows,
        ks=left,
        notes=(*_notes(budgets, most, watch.left_out, set(watch.found) - seen.names), *seen.notes),
        candidates=candidates(seen.layers, [k for k in budgets if k <= most]),
        evidence=Evidence.read() if evidence is None else evidence,
    )


class _Seen:
    """Measures every attention call as it is made, and keeps the numbers alone."""

    def __init__(self, ks: tuple[int, ...]) -> None:
        self.ks = ks
        self.rows: list[Row] = []
        self.layers: list[LayerValues] = []
        self.names: set[str] = set()
        self.notes: list[str] = []
        self.padding: dict[tuple[int, ...], Tensor | None] = {}  # of self attention, by the shape before the width

    def __call__(self, call: Call) -> None:
        problem = call.problem
        self.names.add(call.name)
        if 0 in problem.q.shape or 0 in problem.k.shape:
            self.notes.append(f"{call.name} was called without queries or keys and is left out.")
            return
        if not all(bool(x.isfinite().all()) for x in (problem.q, problem.k, problem.v)):
            self.notes.append(f"{call.name} has queries, keys or values that are not finite and is left out.")
            return
        if _largest_score(problem) > torch.finfo(torch.float32).max:
            self.notes.append(f"{call.name} has queries and keys whose scores may not be finite and is left out.")
            return
        shape = (*problem.q.shape[:-3], problem.q.shape[-2])
        if call.own:
            self.padding[shape] = real_queries(problem)
        found = measure(problem, self.ks, self.padding.get(shape))
        if not found.most_keys:
            self.notes.append(f"{call.name} has no query that sees a key and is left out.")
            return
        shared = {
            "layer": len(self.layers),
            "name": call.name,
            "kind": call.kind,
            "pattern": problem.pattern.label,
            "cross": not call.own,
        }
        self.rows += rows_of(shared, found, self.ks)
        self.layers.append(replace(found, values={}))


def _checked(model: nn.Module) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    model = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("model is a ScriptModule, whose attention cannot be seen; give the module it was made from")
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError("model has lazy parameters, which its first call would make; call it once before diagnose")
    return model


def _budgets(ks: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(ks, Iterable):
        raise ValueError(f"ks is {ks!r}; it must be a list of numbers of keys such as (4, 8, 16)")
    found = sorted({whole_number("ks", k, 1) for k in ks})
    if not found:
        raise ValueError("ks is empty; give at least one number of keys such as (4, 8, 16)")
    return tuple(found)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple):
        return inputs, {}
    if isinstance(inputs, Mapping):
        if inputs.get("past_key_values") is not None:
            raise ValueError(
                "inputs holds past_key_values, a cache that the call would change; give the whole sequence instead"
            )
        return (), dict(inputs)
    raise ValueError(
        f"inputs is a {type(inputs).__name__}; it must be a tensor, a tuple of positional arguments, or a mapping of "
        "keyword arguments"
    )


def _call(model: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    given = [_shown(value) for value in arguments] + [f"{name}={_shown(value)}" for name, value in named.items()]
    return f"{type(model).__name__}({', '.join(given)})"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def _notes(ks: tuple[int, ...], most: int, left_out: list[str], silent: set[str]) -> list[str]:
    notes = []
    if larger := [str(k) for k in ks if k > most]:
        verb = "is" if len(larger) == 1 else "are"
        notes.append(f"k = {', '.join(larger)} {verb} clipped to {most}: no query sees more keys.")
    if left_out:
        notes.append(f"Left out, since they change nn.MultiheadAttention in their own way: {', '.join(left_out)}.")
    if silent:
        notes.append(f"Not called with these inputs: {', '.join(sorted(silent))}.")
    return notes


def _largest_score(problem: Problem) -> float:
    """At most d max|q| max|k| |scale|."""
    scale = torch.as_tensor(problem.scale).abs().max()
    largest = [float(x.abs().max()) for x in (problem.q, problem.k, scale)]
    return problem.q.shape[-1] * largest[0] * largest[1] * largest[2]
