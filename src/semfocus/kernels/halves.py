"""The two halves of a block, each as one kernel: when they serve, and what each member of a population keeps.

This module imports no Triton; the operators do, when they are first called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .._tracing import made_once, no_derivative_rules
from ..patterns._windows import Window
from ..patterns.base import Pattern
from ..patterns.full import Full
from ..patterns.top_k import TopK
from ..randomness import Noise
from ..reference import Problem
from ..windows import Intervals, intervals
from . import INSTALLED, INTERPRETED, LONGEST_ROW, highest_precision

#: What fits on chip as a whole: an example, and the maps of a block.
LONGEST_EXAMPLE, WIDEST = 64, 64
#: In place of a budget: the member's choice is made before, by its pattern.
CHOSEN = -1
#: What the kernel of the second half knows, in the order of its bits.
ACTIVATIONS = ("relu", "gelu", "mish")
#: (pattern, first member, last member + 1)
Runs = Sequence[tuple[Pattern, int, int]]


@dataclass(frozen=True)
class Keeps:
    """Which keys the queries of each member keep: those of an interval and the global ones, and of those the best k."""

    window: Tensor | None  # int32 (2, m, t): begin and end
    budgets: Tensor | None  # int32 (m,): k, or 0 for all; CHOSEN where the kernel does not know the pattern
    first_global: int
    chosen: tuple[bool, ...]  # of each run of members: is the choice made before?


@dataclass(frozen=True)
class Spans:
    """The same for longer examples, pattern by pattern: members up to ``ends[i]`` have the i-th."""

    windows: Tensor | None  # int32 (4, patterns, t): begin and end of each query's keys, and of each key's queries
    ends: list[int]
    budgets: list[int]
    windowed: list[int]
    first_global: int


@dataclass(frozen=True)
class Bends:
    """The activation of each member."""

    kinds: Tensor  # int32 (m,): a bit each, by the place in ACTIVATIONS
    present: int  # all of them


def bends(h: Tensor, hidden: int, activations: Sequence[tuple[str, int, int]]) -> Bends | None:
    """What the kernel of the second half must know of runs of members with an activation each, on h (m, b, t, d).

    None where it cannot serve.
    """
    fits = _on_chip(h) and max(h.shape[-1], hidden) <= WIDEST and {name for name, _, _ in activations} <= {*ACTIVATIONS}
    return _bends(tuple(activations), h.device) if fits else None


@made_once(64)
def _bends(activations: Sequence[tuple[str, int, int]], device: torch.device) -> Bends:
    kinds = [1 << ACTIVATIONS.index(name) for name, start, stop in activations for _ in range(start, stop)]
    return Bends(torch.tensor(kinds, dtype=torch.int32, device=device), sum(set(kinds)))


def keeps(h: Tensor, patterns: Runs, heads: int, masked: bool) -> Keeps | None:
    """What the kernel of the first half must know; None where it cannot serve."""
    fits = h.shape[2] <= LONGEST_EXAMPLE and heads == 1 and _fits(h)
    return _keeps(tuple(patterns), h.shape[2], masked, h.device) if fits else None


def spans(h: Tensor, patterns: Runs, masked: bool) -> Spans | None:
    """What the kernels of the first half must know where examples are longer; None where they cannot serve."""
    known = all(serve_pattern(pattern, masked) for pattern, _, _ in patterns)
    fits = LONGEST_EXAMPLE < h.shape[2] <= LONGEST_ROW and _fits(h) and known
    return _spans(tuple(patterns), h.shape[2], h.device) if fits else None


def as_bits(kept: Tensor) -> Tensor:
    """bool (..., t, s) as int32 (..., t, words of 32 keys), the first key in the lowest bit.

    >>> as_bits(torch.tensor([[True, False, True]]))
    tensor([[5]], dtype=torch.int32)
    """
    places = torch.arange(32, dtype=torch.int32, device=kept.device)
    padded = F.pad(kept, (0, -kept.shape[-1] % 32)).to(torch.int32)
    return (padded.view(*kept.shape[:-1], -1, 32) << places).sum(-1, dtype=torch.int32)


def _fits(h: Tensor) -> bool:
    return _on_chip(h) and h.shape[3] <= WIDEST


def serve_pattern(pattern: Pattern, masked: bool) -> bool:
    """Do the kernels of the first half know a pattern? A mask would give each example windows of its own."""
    known = (Full, TopK) if masked else (Full, TopK, Window)
    return isinstance(pattern, known) and not getattr(pattern, "sinks", 0)


def _on_chip(h: Tensor) -> bool:
    there = INSTALLED and (h.device.type == "cuda" or INTERPRETED) and no_derivative_rules() is None
    return there and h.dtype == torch.float32 and not highest_precision()


@made_once(64)
def _keeps(patterns: Runs, tokens: int, masked: bool, device: torch.device) -> Keeps:
    """Made once and shared: no step of a population makes it again."""
    budgets, rows, first_global = [], [], tokens
    chosen = tuple(not serve_pattern(pattern, masked) for pattern, _, _ in patterns)
    for (pattern, start, stop), before in zip(patterns, chosen, strict=True):
        begin, end = torch.zeros(tokens, dtype=torch.int64), torch.full((tokens,), tokens)
        budget = CHOSEN if before else 0
        if isinstance(pattern, Window) and not before:
            found = _intervals(pattern, tokens)
            begin, end, first_global = found.begin, found.end, found.first_global
        elif isinstance(pattern, TopK) and not before and pattern.k < tokens:
            budget = pattern.k
        rows += [torch.stack([begin, end])] * (stop - start)
        budgets += [budget] * (stop - start)
    windows = any(isinstance(pattern, Window) for pattern, _, _ in patterns)
    return Keeps(
        torch.stack(rows, dim=1).to(torch.int32).to(device) if windows else None,
        torch.tensor(budgets, dtype=torch.int32).to(device) if any(budgets) else None,
        first_global,
        chosen,
    )


@made_once(64)
def _spans(patterns: Runs, tokens: int, device: torch.device) -> Spans:
    windowed = [int(isinstance(pattern, Window)) for pattern, _, _ in patterns]
    first_global, rows = tokens, []
    for pattern, _, _ in patterns:
        found = _intervals(pattern, tokens) if isinstance(pattern, Window) else None
        rows.append(
            torch.zeros(4, tokens) if found is None else torch.stack([found.begin, found.end, *found.reach(tokens)])
        )
        first_global = first_global if found is None else found.first_global
    return Spans(
        torch.stack(rows, dim=1).to(torch.int32).to(device) if any(windowed) else None,
        [stop for _, _, stop in patterns],
        [pattern.k if isinstance(pattern, TopK) and pattern.k < tokens else 0 for pattern, _, _ in patterns],
        windowed,
        first_global,
    )


def _intervals(pattern: Window, tokens: int) -> Intervals:
    like = torch.zeros(1, tokens, 1)
    return intervals(Problem(like, like, like, pattern, None, False, 0, 1.0, 0.0, Noise.none(like.device)))
