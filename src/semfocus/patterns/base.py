"""The contract of a pattern: given queries, keys and what is visible, say which keys each query keeps.

Letters in shapes, here and everywhere: m models, b batch, h heads, t queries, s keys, d width, k budget.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import ClassVar, SupportsIndex

import torch
from torch import Tensor

from .._tracing import numbers_are_hidden
from ..randomness import Noise
from ..registry import snake_case


class PatternError(ValueError):
    """A mistake in a pattern's own code. The message is one sentence for its author."""


class View:
    """What a pattern may look at when it chooses. Gradients never flow through a choice."""

    def __init__(
        self,
        q: Tensor,  # (..., t, d)
        k: Tensor,  # (..., s, d)
        visible: Tensor,  # bool, broadcastable to (..., t, s)
        *,
        scores: Tensor | None = None,  # (..., t, s)
        positions: Tensor | None = None,  # (t,) where the queries stand among the keys
        noise: Noise | None = None,
    ) -> None:
        self.q, self.k, self.visible = q, k, visible
        self.positions = torch.arange(q.shape[-2], device=q.device) if positions is None else positions
        self.noise = Noise.none(q.device) if noise is None else noise
        self._scores = scores

    @property
    def scores(self) -> Tensor:
        """Scaled scores with any additive mask, in at least float32: what the softmax will see."""
        if self._scores is None:
            dtype = torch.promote_types(self.q.dtype, torch.float32)
            scale: float = self.q.shape[-1] ** -0.5
            self._scores = (self.q.to(dtype) * scale) @ self.k.to(dtype).transpose(-2, -1)
        return self._scores

    @property
    def lead(self) -> tuple[int, ...]:
        """The axes before (t, d): usually (b, h) or (m, b, h)."""
        return tuple(self.q.shape[:-2])


class Pattern:
    """Which keys a query keeps: a frozen dataclass of its knobs.

    Define ``keep``, or ``select`` if the choice needs the scores with masks added, positions, or random numbers. The
    answer is intersected with ``visible`` by the caller, so no pattern can attend to the future or to padding.
    """

    #: Its name everywhere: in the registry, on the command line, in tables. Made from the class's name, once: compiled
    #: code would otherwise depend on the regular expressions that Python remembers.
    name: ClassVar[str]
    #: One line for tables; the first line of the docstring unless set.
    summary: ClassVar[str]
    #: Does the choice depend on the tokens (and not on positions or chance alone)?
    input_dependent: ClassVar[bool]
    #: Does the choice for one example look at the other examples of its batch?
    batch_dependent: ClassVar[bool] = False
    #: Does it change from call to call?
    random: ClassVar[bool] = False
    #: Does every row keep exactly min(budget, number of visible keys)? Otherwise at most that many.
    fills_budget: ClassVar[bool] = True
    #: Extra tokens at the end of the sequence that attend to all and to which all attend.
    global_tokens: int = 0

    def __init_subclass__(cls) -> None:
        if cls.keep is Pattern.keep and cls.select is Pattern.select:
            raise TypeError(f"{cls.__name__} must define keep(q, k, visible) or select(view)")
        cls.name = snake_case(cls.__name__)
        if "summary" not in cls.__dict__:
            cls.summary = (cls.__doc__ or "").strip().partition("\n")[0].rstrip(".")

    def keep(self, q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
        """bool, broadcastable to (..., t, s). ``visible`` is broadcastable to the same shape."""
        return self.select(View(q, k, visible))

    def select(self, view: View) -> Tensor:
        """The same from a whole view. This is what attention calls."""
        return self.keep(view.q, view.k, view.visible)

    @property
    def budget(self) -> int | None:
        """How many keys a query keeps at most, itself included and global tokens too; None: no limit."""
        return None

    @property
    def label(self) -> str:
        """Its name with its knobs, for tables: ``top_k(k=5)``. Knobs at their default are left out."""
        fields = getattr(self, "__dataclass_fields__", {}).values()
        knobs = ((f, getattr(self, f.name)) for f in fields)
        return f"{self.name}({', '.join(f'{f.name}={value}' for f, value in knobs if value != f.default)})"

    @classmethod
    def examples(cls) -> list[Pattern]:
        """Instances on which the contract is tested: each knob without a default is tried at 1, 3 and 64."""
        knobs = getattr(cls, "__dataclass_fields__", {}).values()
        required = [f.name for f in knobs if f.default is f.default_factory is dataclasses.MISSING]
        return [cls(**dict.fromkeys(required, size)) for size in (1, 3, 64)] if required else [cls()]

    def with_budget(self, size: int) -> Pattern | None:
        """The same pattern with another ``k`` or ``width``; None if it has neither."""
        knobs = {f.name for f in dataclasses.fields(self)} & {"k", "width"}  # type: ignore[arg-type]
        return dataclasses.replace(self, **dict.fromkeys(knobs, size)) if knobs else None  # type: ignore[type-var]

    def require(self, queries: int, keys: int, is_causal: bool, query_offset: int = 0) -> None:
        """Refuses calls the pattern has no meaning for."""
        if not self.global_tokens:
            return
        if is_causal:
            raise ValueError(f"global_tokens is {self.global_tokens} in {self.label}; it must be 0 when is_causal=True")
        if query_offset:
            raise ValueError(f"query_offset is {query_offset}; it must be 0 with the global tokens of {self.label}")
        if queries != keys:
            raise ValueError(
                f"global_tokens is {self.global_tokens} in {self.label}; that needs as many queries as keys, "
                f"but there are {queries} queries and {keys} keys"
            )
        if queries < self.global_tokens:
            raise ValueError(f"global_tokens is {self.global_tokens}; the sequence has only {queries} positions")


def chosen(pattern: Pattern, view: View) -> Tensor:
    """What a pattern keeps of the visible keys: bool, broadcastable to (..., t, s). No other answer is taken."""
    kept: object = pattern.select(view)
    shape = (*view.lead, view.q.shape[-2], view.k.shape[-2])
    if isinstance(kept, Tensor) and kept.dtype == torch.bool and broadcasts(kept.shape, shape):
        return kept & view.visible
    method = "keep" if type(pattern).select is Pattern.select else "select"
    given = f"{kept.dtype} {tuple(kept.shape)}" if isinstance(kept, Tensor) else repr(kept)
    raise PatternError(
        f"{type(pattern).__name__}.{method} gave {given}; it must give a boolean tensor, broadcastable to {shape}"
    )


def broadcasts(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Can a tensor be expanded to the wanted shape?"""
    axes = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(n in (m, 1) for n, m in axes)  # m first: an exported length is no number


def require_int(pattern: Pattern, name: str, minimum: int) -> None:
    """Knobs are checked when a pattern is made: ``TopK(0)`` fails there and not in the middle of a run."""
    number = whole_number(name, getattr(pattern, name), minimum, bits=63)  # tensors hold no larger ones
    object.__setattr__(pattern, name, number)  # a NumPy integer becomes a plain one


def whole_number(name: str, value: object, minimum: int | None = None, bits: int | None = None) -> int:
    """``value`` as an int, or an error that says what would do; with ``bits`` its size must be below 2^bits."""
    number: int | None = None
    if type(value) is int or isinstance(value, torch.SymInt):
        number = value  # type: ignore[assignment]  # as it is: a compiler's symbol must not become a number
    elif isinstance(value, SupportsIndex) and not isinstance(value, bool | Tensor):
        number = operator.index(value)
    if number is None or (minimum is not None and number < minimum):
        wanted = "an integer" if minimum is None else f"an integer of at least {minimum}"
        raise ValueError(f"{name} is {value!r}; it must be {wanted}")
    if bits is not None and type(number) is int and abs(number) >= 2**bits:
        raise ValueError(f"{name} is {number}; it must be below 2^{bits}")
    return number


def ranks(visible: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Positions as ranks among the visible keys, so that padding, causality and caches never change an answer.

    Returns each key's rank (..., t, s), each query's rank r = (visible keys at or before it) - 1, at least 0
    (..., t, 1), and the number n of visible keys (..., t, 1). The rank of an invisible key means nothing.
    """
    counted = visible.cumsum(-1)  # (..., t, s) visible keys up to each key
    total = counted[..., -1:] if visible.shape[-1] else visible.sum(-1, keepdim=True)
    keys = torch.arange(visible.shape[-1], device=visible.device)
    before = (visible & (keys <= positions[:, None])).sum(-1, keepdim=True)
    return counted - 1, (before - 1).clamp(min=0), total


def query_places(visible: Tensor, positions: Tensor) -> Tensor:
    """(..., t, 1): where each query stands among the visible keys, counted on behind the last of them.

    Like the query's rank, padding does not change it; unlike the rank, no two queries share it.
    """
    keys = torch.arange(visible.shape[-1], device=visible.device)
    hidden = ((keys <= positions[:, None]) & ~visible).sum(-1, keepdim=True)
    return positions[:, None] - hidden


#: Compiled for a GPU, up to this k the best key is taken k times: reductions fuse into one kernel, a sort does not.
REMOVALS_UP_TO = 16


def keep_best(priority: Tensor, visible: Tensor, k: int) -> Tensor:
    """The k visible keys of highest priority, fewer where fewer are visible; ties keep the lowest index.

    NaN comes first: whoever keeps it shows it.

    >>> keep_best(torch.tensor([3, 1, 3, 3]), torch.tensor([True, True, True, True]), 2).tolist()
    [True, False, True, False]
    """
    keys = priority.shape[-1]
    if k >= keys:
        return visible
    lowest = -torch.inf if priority.is_floating_point() else torch.iinfo(priority.dtype).min
    priority = priority.masked_fill(~visible, lowest)
    if k <= REMOVALS_UP_TO and priority.is_cuda and torch.compiler.is_compiling():
        return _remove_best(_nan_first(priority), visible, k, lowest)
    threshold = priority.topk(k, dim=-1).values[..., -1:]  # (..., t, 1); NaN is the largest to it, too
    if priority.device.type == "cpu" and not numbers_are_hidden():
        # Without ties at the threshold this is all; on a GPU the look would make it wait.
        kept = ~(priority < threshold) & visible
        if bool((kept.sum(-1) <= k).all()):
            return kept
    priority, threshold = _nan_first(priority), _nan_first(threshold)
    above = priority > threshold
    # Fill up with keys at the threshold, lowest index first. Invisible ones may sit there too when the row is short.
    tied = (priority == threshold) & visible
    room = k - above.sum(-1, keepdim=True)
    return above | (tied & (tied.cumsum(-1) <= room))


def _nan_first(priority: Tensor) -> Tensor:
    return priority.masked_fill(priority.isnan(), torch.inf) if priority.is_floating_point() else priority


def _remove_best(priority: Tensor, visible: Tensor, k: int, lowest: float) -> Tensor:
    """The same by taking the best remaining key k times."""
    keys = torch.arange(priority.shape[-1], device=priority.device)
    left = visible.expand(priority.shape)
    for _ in range(k):
        best = priority.amax(-1, keepdim=True)
        first = torch.where(left & (priority == best), keys, priority.shape[-1]).amin(-1, keepdim=True)
        taken = keys == first
        left = left & ~taken
        priority = priority.masked_fill(taken, lowest)
    return visible & ~left
