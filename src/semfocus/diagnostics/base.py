"""The contract of a diagnostic, and the probe it looks through.

A probe holds one attention problem per layer, recomputed by the reference a few query rows at a time: it works whatever
kernel the model itself uses, and no (t, s) matrix is ever kept.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .._checks import check_options
from ..chunked import rows_per_chunk
from ..functional import problem_of
from ..patterns.base import Pattern
from ..patterns.full import Full
from ..reference import Problem, kept_keys, masked_softmax, raw_scores, repeat_heads
from ..registry import snake_case

if TYPE_CHECKING:
    from ..model import Transformer

#: Of the pooled values, per layer, and per head. The paper's table has 75, 90, 95 and 100 % (separation: the mirror
#: image).
QUANTILES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
Measurement = dict[str, Any]
#: Elements of a mask that are looked at together.
SEEN_AT_ONCE = 2**24


class Rows:
    """Some queries of one layer against all keys: c queries, s keys, and (..., h) before them."""

    def __init__(self, problem: Problem, real: Tensor | None = None) -> None:
        """``real``, broadcastable to (..., h, c): queries that are not padding; None: all."""
        p = problem
        self.pattern, self.real = p.pattern, real
        q, k = p.q.to(p.dtype), repeat_heads(p)[0].to(p.dtype)
        self.scores = raw_scores(p, q, k)  # (..., h, c, s)
        self.visible = p.visible().expand(self.scores.shape)
        self.kept = kept_keys(p, q, k, self.scores).expand(self.scores.shape)

    @cached_property
    def counted(self) -> Tensor:
        """(..., h, c): does the query see any key at all, and is no padding?"""
        sees = self.visible.any(-1)
        return sees if self.real is None else sees & self.real

    @cached_property
    def weights(self) -> Tensor:
        """What attention gives each key."""
        return masked_softmax(self.scores, self.kept)

    @cached_property
    def full_weights(self) -> Tensor:
        """What full attention would give each key, with the same scores."""
        return masked_softmax(self.scores, self.visible)


@dataclass(frozen=True)
class Probe:
    """Attention problems, one per layer; with a model behind them also what made them."""

    problems: tuple[Problem, ...]
    model: Transformer | None = None
    member: int = 0
    tokens: Tensor | None = None  # (b, t)
    targets: Tensor | None = None  # (b, outputs)

    @staticmethod
    def of(
        query: Tensor,
        key: Tensor,
        pattern: Pattern | None = None,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        query_offset: int = 0,
    ) -> Probe:
        """A probe of queries (..., h, t, d) and keys (..., h or fewer, s, d) of anybody's module.

        The arguments mean what they mean to ``semfocus.attention``, and are checked alike.
        """
        pattern = Full() if pattern is None else pattern
        check_options(pattern, 0.0, scale, None, "auto")
        problem = problem_of(
            query, key, key, pattern, attn_mask, 0.0, is_causal, scale, True, query_offset, None, draws=False
        )
        return Probe((replace(problem, q=query.detach(), k=key.detach(), v=key.detach()),))

    @staticmethod
    def of_model(
        model: Transformer,
        tokens: Tensor,
        *,
        member: int = 0,
        targets: Tensor | None = None,
        noise: float = 0.0,
        seed: int = 0,
    ) -> Probe:
        """A probe of every layer of one member of a population, in evaluation mode, on tokens (b, t).

        ``targets`` (b, outputs) are needed by diagnostics of the loss. ``noise``: Gaussian, added to the embedded
        tokens, as a multiple of their root mean square.
        """
        from ._recording import of_member, recorded

        layers = recorded(model, tokens, noise, seed)
        return Probe(tuple(of_member(layer, member) for layer in layers), model, member, tokens, targets)

    @staticmethod
    def of_population(model: Transformer, tokens: Tensor) -> list[Probe]:
        """A probe of each member, by one forward pass; tokens (m, b, t)."""
        from ._recording import of_member, recorded

        layers = recorded(model, tokens)
        return [
            Probe(tuple(of_member(layer, member) for layer in layers), model, member, tokens[member])
            for member in range(len(model.patterns))
        ]

    def with_pattern(self, pattern: Pattern) -> Probe:
        """The same scores, chosen from by another pattern: what would top-k keep of a full model's keys?"""
        return replace(self, problems=tuple(replace(problem, pattern=pattern) for problem in self.problems))

    def noisy(self, noise: float, seed: int) -> Probe:
        """The same model on the same tokens, their embeddings disturbed: ``noise`` times their root mean square."""
        assert self.model is not None, "only a probe of a model knows its tokens"
        assert self.tokens is not None
        other = Probe.of_model(self.model, self.tokens, member=self.member, noise=noise, seed=seed)
        return other.with_pattern(self.problems[0].pattern)

    def rows(self, layer: int) -> Iterator[Rows]:
        """A layer's queries, a few at a time."""
        problem = self.problems[layer]
        chunk, queries, real = rows_per_chunk(problem), problem.q.shape[-2], real_queries(problem)
        for start in range(0, queries, chunk):
            stop = min(start + chunk, queries)
            with torch.no_grad():  # not around the yield: a generator left half-way would leave gradients off
                rows = Rows(problem.rows(start, stop), None if real is None else real[..., start:stop])
            yield rows

    @property
    def layers(self) -> range:
        return range(len(self.problems))


@torch.no_grad()
def real_queries(problem: Problem) -> Tensor | None:
    """bool, broadcastable to (..., h, t): queries that are not padding; None if all are real, or nothing tells.

    In one sequence the query at a position is padding if no query sees the key at that position.
    """
    queries, keys, first = problem.q.shape[-2], problem.k.shape[-2], problem.query_offset
    if problem.mask is None or not 0 <= first <= keys - queries:
        return None
    seen: Tensor | None = None
    chunk = max(1, SEEN_AT_ONCE // max(problem.mask.shape[:-2].numel() * keys, 1))
    for start in range(0, queries, chunk):
        part = problem.rows(start, min(start + chunk, queries)).visible().any(-2)
        seen = part if seen is None else seen | part
    return None if seen is None else seen[..., first : first + queries]


class Diagnostic(ABC):
    """Something to measure. The docstring states its formula; options are the fields of a frozen dataclass."""

    #: What it needs beside scores: "model" for weights or for running the model again.
    needs: ClassVar[frozenset[str]] = frozenset()

    @property
    def name(self) -> str:
        return snake_case(type(self).__name__)

    @property
    def summary(self) -> str:
        return (inspect.getdoc(type(self)) or "").partition("\n")[0]

    def measure(self, probe: Probe) -> Measurement:
        """Plain data: ``pooled``, ``layers`` (a list) and ``heads`` (a list of lists), each a summary of its values."""
        if "model" in self.needs and probe.model is None:
            raise ValueError(f"{self.name} needs a model; a probe of queries and keys alone has none (Probe.of_model)")
        return self._measure(probe)

    @abstractmethod
    def _measure(self, probe: Probe) -> Measurement: ...


class PerQuery(Diagnostic):
    """A diagnostic with one number per query and head."""

    @abstractmethod
    def values(self, rows: Rows) -> Tensor:
        """(..., h, c). Padding, and queries that see no key, are left out whatever stands there."""

    def _measure(self, probe: Probe) -> Measurement:
        layers = []
        for layer in probe.layers:
            found = []
            for rows in probe.rows(layer):
                values = self.values(rows).double().masked_fill(~rows.counted, torch.nan)
                found.append(values.movedim(-2, 0).flatten(1))  # (h, queries)
            layers.append(torch.cat(found, dim=1).cpu().numpy())
        return by_layer_and_head(layers)


def by_layer_and_head(layers: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> Measurement:
    """Summaries of values (h, n) per layer: pooled over everything, per layer, per head."""
    return {
        "pooled": summarise(np.concatenate([layer.ravel() for layer in layers])),
        "layers": [summarise(layer.ravel()) for layer in layers],
        "heads": [[summarise(head) for head in layer] for layer in layers],
    }


def summarise(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """Count, mean and quantiles of what is not NaN. A quantile is one of the values, so infinities do no harm.

    >>> summarise(np.array([1.0, 2.0, np.inf, np.nan]))["q50"]
    2.0
    """
    values = values[~np.isnan(values)]
    if not values.size:
        return {"count": 0}
    found = np.quantile(values, QUANTILES, method="nearest")
    quantiles = {f"q{100 * q:g}": float(value) for q, value in zip(QUANTILES, found, strict=True)}
    return {"count": int(values.size), "mean": float(values.mean()), **quantiles}
