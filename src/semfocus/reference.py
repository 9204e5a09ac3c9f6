"""The oracle: attention under a pattern in plain PyTorch. Everything fast is compared with this file.

scores = scale * q k^T + bias        kept = pattern(scores, ...) and visible
weights = softmax of the scores over the kept keys, 0 elsewhere;  out = dropout(weights) v
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ._tracing import no_rules
from .patterns.base import Pattern, View, chosen
from .patterns.full import Full
from .randomness import Noise, absorb, dropout_factor, spread

#: What hides keys by a number, not by -inf, adds the smallest one of a dtype, -1e9 or -1e4, rounded to its dtype.
#: Beside a visible key with a score like theirs such keys weigh exactly 0 in every dtype.
HIDDEN_BELOW = -9e3


def hiding(mask: Tensor) -> Tensor:
    """A float mask of a model that hides keys by large negative numbers, with -inf in their place.

    >>> hiding(torch.tensor([0.0, -1e9, -1e4, -5.0])).tolist()
    [0.0, -inf, -inf, -5.0]
    """
    return mask.masked_fill(mask <= HIDDEN_BELOW, -torch.inf)


@dataclass(frozen=True)
class Problem:
    """One attention call with its inputs checked. ``mask`` is broadcastable to (..., t, s)."""

    q: Tensor  # (..., h, t, d)
    k: Tensor  # (..., h or fewer, s, d)
    v: Tensor  # (..., h or fewer, s, e)
    pattern: Pattern
    mask: Tensor | None  # bool: True = may attend; float: added to the scores
    is_causal: bool
    query_offset: int  # position of the first query among the keys
    scale: float | Tensor  # of the scores; a tensor must broadcast against the queries
    dropout_p: float
    noise: Noise
    soft_cap: float = 0.0  # c > 0: scores z become c tanh(z / c), before a bias is added
    packed: Tensor | None = None  # (m, b, t, 3, h, d): what q, k and v are views of, if they lie side by side

    @property
    def bias(self) -> Tensor | None:
        """What is added to the scores, in the precision of the scores."""
        return None if self.mask is None or self.mask.dtype == torch.bool else self.mask.to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """At least float32, whatever the inputs: half precision would change which keys are kept."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def positions(self) -> Tensor:
        """(t,): where the queries stand among the keys."""
        return torch.arange(self.query_offset, self.query_offset + self.q.shape[-2], device=self.q.device)

    @property
    def sees_something(self) -> bool:
        """Is it certain, without looking at a mask, that every query sees a key?"""
        return self.mask is None and self.k.shape[-2] > 0 and (not self.is_causal or self.query_offset >= 0)

    @property
    def keeps_everything(self) -> bool:
        """Is it certain that every query keeps every key?"""
        return isinstance(self.pattern, Full) and self.sees_something and not self.is_causal

    def visible(self) -> Tensor:
        """bool: who may attend to whom. Its last axes are (t, s); those before broadcast."""
        keys = torch.arange(self.k.shape[-2], device=self.q.device)
        if self.is_causal:
            seen = keys <= self.positions[:, None]
        else:
            seen = torch.ones((), dtype=torch.bool, device=self.q.device).expand(self.q.shape[-2], self.k.shape[-2])
        if self.mask is None:
            return seen
        bias = self.bias  # already converted: a finite number too large for float32 is -inf there, hence invisible
        return seen & (self.mask if bias is None else bias.detach() != -torch.inf)  # NaN hides nothing

    def rows(self, start: int, stop: int) -> Problem:
        """The same call for some of the queries."""
        per_row = self.mask is not None and self.mask.ndim >= 2 and self.mask.shape[-2] > 1
        return replace(
            self,
            q=self.q[..., start:stop, :],
            mask=self.mask[..., start:stop, :] if per_row and self.mask is not None else self.mask,
            query_offset=self.query_offset + start,
            packed=None,
        )


def attend(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output (..., t, e) and weights (..., t, s) before dropout, both in the dtype of the queries."""
    with without_autocast(problem.q.device):
        return _attend(problem)


def autocasting(device: torch.device) -> bool:
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def _attend(p: Problem) -> tuple[Tensor, Tensor]:
    q, k, v = (x.to(p.dtype) for x in (p.q, *repeat_heads(p)))
    scores = raw_scores(p, q, k)  # (..., t, s)
    if p.keeps_everything:
        weights = scores.softmax(-1)
    else:
        weights = masked_softmax(scores, kept_keys(p, q, k, scores), p.sees_something)
    out = _dropout(weights, p) @ v
    return out.to(p.q.dtype), weights.to(p.q.dtype)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """It would form scores in half precision."""
    return torch.autocast(device.type, enabled=False) if autocasting(device) else nullcontext()


def beyond_the_plain(p: Problem, with_weights: bool) -> str | None:
    """What a call asks for that implementations with a backward pass of their own and little else lack, or None."""
    if with_weights:
        return "it does not return weights"
    if p.dropout_p > 0:
        return f"dropout_p is {p.dropout_p}; it has no dropout"
    if p.soft_cap:
        return f"the scores are capped at {p.soft_cap:g}"
    if isinstance(p.scale, Tensor) and p.scale.requires_grad:
        return "scale needs a gradient"
    if 0 in p.q.shape or 0 in p.k.shape or 0 in p.v.shape:
        return "an axis has length 0"
    return no_rules()


def raw_scores(p: Problem, q: Tensor, k: Tensor) -> Tensor:
    """(..., t, s): scaled, capped, with the bias added."""
    scores = (q * p.scale) @ k.transpose(-2, -1)
    if p.soft_cap:
        scores = p.soft_cap * torch.tanh(scores / p.soft_cap)
    bias = p.bias
    return scores if bias is None else scores + bias


def repeat_heads(problem: Problem) -> tuple[Tensor, Tensor]:
    """Keys and values with one head for each query head (grouped-query attention)."""
    groups = problem.q.shape[-3] // max(problem.k.shape[-3], 1)
    if groups == 1:
        return problem.k, problem.v
    return problem.k.repeat_interleave(groups, dim=-3), problem.v.repeat_interleave(groups, dim=-3)


@torch.no_grad()
def kept_keys(problem: Problem, q: Tensor, k: Tensor, scores: Tensor) -> Tensor:
    """bool, broadcastable to (..., t, s): what the pattern chose, among the visible keys only."""
    visible = problem.visible()
    view = View(q, k, visible, scores=scores.detach(), positions=problem.positions, noise=problem.noise)
    return chosen(problem.pattern, view)


def masked_softmax(scores: Tensor, kept: Tensor, never_empty: bool = False) -> Tensor:
    """Softmax over the kept keys. A row that keeps nothing gives zeros, and its gradient is zero, not NaN."""
    scores = scores.masked_fill(~kept, -torch.inf)
    if never_empty:
        return scores.softmax(-1)
    empty = ~kept.any(-1, keepdim=True)
    # An empty row is given equal finite scores first, so that nothing in it is ever -inf minus -inf.
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def _dropout(weights: Tensor, p: Problem) -> Tensor:
    """Dropout whose bits depend on (key, leading axes, query position, key position) alone."""
    if p.dropout_p == 0.0:
        return weights
    rows = absorb(spread(p.noise.fresh, tuple(p.q.shape[:-2]))[..., None], p.positions)  # (..., t)
    return weights * dropout_factor(rows, weights.shape[-1], p.dropout_p, weights.dtype)
