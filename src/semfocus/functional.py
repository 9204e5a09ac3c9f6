"""``attention``: scaled dot-product attention under a pattern, shaped like PyTorch's own function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from . import chunked, gathered, kernels, reference, windows
from ._checks import check_flags, check_inputs, check_mask, check_options
from ._tracing import forward_mode
from .patterns.base import Pattern, whole_number
from .patterns.full import Full
from .randomness import Noise
from .reference import Problem, autocasting

#: From this many scores on, "auto" computes a few query rows at a time.
CHUNK_FROM = {"cpu": 2**25, "cuda": 2**29}
#: From this many keys on, and this many per kept key, gathering the kept keys and windows pay on a CPU.
GATHER_FROM_KEYS, GATHER_FROM_RATIO = 512, 8
WINDOW_FROM_KEYS, WINDOW_FROM_RATIO = 256, 2


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern = ...,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    query_offset: int = ...,
    generator: torch.Generator | None = ...,
    implementation: str = ...,
    return_weights: Literal[False] = ...,
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern = ...,
    attn_mask: Tensor | None = ...,
    dropout_p: float = ...,
    is_causal: bool = ...,
    scale: float | None = ...,
    enable_gqa: bool = ...,
    *,
    query_offset: int = ...,
    generator: torch.Generator | None = ...,
    implementation: str = ...,
    return_weights: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern = Full(),  # noqa: B008 (patterns are frozen)
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    query_offset: int = 0,
    generator: torch.Generator | None = None,
    implementation: str = "auto",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention in which each query keeps the keys that ``pattern`` chooses among the visible ones.

    With ``Full()`` this is ``torch.nn.functional.scaled_dot_product_attention``, what its kernels make of NaN included.

    Args:
        query: (..., heads, t, d) in float64, float32, bfloat16 or float16.
        key: (..., heads, s, d); with ``enable_gqa`` its heads may be fewer and must divide the query's.
        value: (..., heads, s, e), as many heads as ``key``.
        pattern: which keys each query keeps, per head.
        attn_mask: broadcastable to (..., heads, t, s). Boolean: True = may attend. Float: added to the scores before
            the pattern chooses; -inf = may not attend.
        dropout_p: probability of dropping an attention weight. There is no training flag: pass 0.0 to evaluate.
        is_causal: query i sees the keys up to position ``query_offset + i``; combines with ``attn_mask``.
        scale: multiplies the scores before the pattern chooses; 1/sqrt(d) by default.
        enable_gqa: grouped-query attention.
        query_offset: position of the first query among the keys: s - t when decoding with a cache.
        generator: source of randomness for dropout and random patterns; PyTorch's default one if None.
        implementation: "auto", "reference" (the oracle), "chunked" (O(chunk x s) memory), "gathered" (remembers the
            kept keys only), "windows" (``Banded`` and ``BlockLocal`` in O(t w)), "sdpa" (``Full`` only) or "fused"
            (Triton, on a GPU: ``Full``, ``TopK``, windows). The last four are once differentiable.
        return_weights: return (output, weights); weights (..., heads, t, s) are those before dropout.

    Returns:
        (..., heads, t, e) in the dtype of ``query``, under autocast and mixed inputs in autocast's. A query that sees
        no key gives zeros, with zero gradients.

    Example:
        >>> import torch, semfocus
        >>> q, k, v = torch.randn(3, 2, 4, 16, 8)  # batch 2, 4 heads, 16 tokens, width 8
        >>> semfocus.attention(q, k, v, semfocus.TopK(5), is_causal=True).shape
        torch.Size([2, 4, 16, 8])
    """
    check_options(pattern, dropout_p, scale, generator, implementation)
    check_flags(return_weights=return_weights)
    problem = problem_of(
        query, key, value, pattern, attn_mask, dropout_p, is_causal, scale, enable_gqa, query_offset, generator
    )
    out, weights = attend(problem, implementation, return_weights)
    if return_weights:
        assert weights is not None
        return out, weights
    return out


def problem_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    query_offset: int,
    generator: torch.Generator | None,
    draws: bool = True,
) -> Problem:
    """A call with its tensors checked; without ``draws`` nobody's generator is touched."""
    inputs = (query, key, value)
    if all(isinstance(x, Tensor) for x in inputs) and any(x.dtype != query.dtype for x in inputs):
        query, key, value = in_autocasts_dtype(*inputs)  # rotations leave some in float32
    check_flags(is_causal=is_causal, enable_gqa=enable_gqa)
    check_inputs(query, key, value, enable_gqa)
    query_offset = whole_number("query_offset", query_offset, bits=62)  # positions count on from there in 64 bits
    pattern.require(query.shape[-2], key.shape[-2], is_causal, query_offset)
    if attn_mask is not None:
        check_mask(attn_mask, (*query.shape[:-1], key.shape[-2]), query.device)
        attn_mask = attn_mask.expand(*attn_mask.shape[:-1], key.shape[-2])  # one entry for all keys: a view
    needs_noise = draws and (dropout_p > 0 or pattern.random)
    return Problem(
        q=query,
        k=key,
        v=value,
        pattern=pattern,
        mask=attn_mask,
        is_causal=is_causal,
        query_offset=query_offset,
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        dropout_p=float(dropout_p),
        noise=Noise.from_generator(generator, query.device) if needs_noise else Noise.none(query.device),
    )


def in_autocasts_dtype(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Under autocast in its dtype, as PyTorch's own attention takes its inputs; float64 stays."""
    device = inputs[0].device
    if not autocasting(device):
        return inputs
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in inputs)


@dataclass(frozen=True)
class Explanation:
    """Which implementation "auto" takes for a call, and what is to be said of each."""

    choice: str
    reasons: dict[str, str]

    def __str__(self) -> str:
        width = max(map(len, self.reasons))
        return "\n".join(f"{name:{width}}  {reason}" for name, reason in self.reasons.items())


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern = Full(),  # noqa: B008 (patterns are frozen)
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    query_offset: int = 0,
    return_weights: bool = False,
) -> Explanation:
    """What ``attention`` would do with these arguments under "auto", and why. Nothing is computed.

    >>> from semfocus import TopK
    >>> q, k, v = torch.randn(3, 1, 2, 16, 8)
    >>> found = explain(q, k, v, TopK(5))
    >>> found.choice
    'reference'
    >>> found.reasons["sdpa"]
    'cannot serve: the pattern is top_k(k=5), and it knows full attention only'
    """
    check_options(pattern, dropout_p, scale, None, "auto")
    problem = problem_of(
        query, key, value, pattern, attn_mask, dropout_p, is_causal, scale, enable_gqa, query_offset, None, draws=False
    )
    choice = choose(problem, return_weights)
    limit = _chunk_from(problem)
    says = {
        "sdpa": "PyTorch's fused attention computes the same",
        "fused": "selects and attends on chip" if kernels.pays(problem) else "not the fastest here",
        "windows": "a block of queries against the keys of their windows",
        "gathered": "remembers the kept keys only",
        "chunked": f"saves memory from {limit:,} scores on, here are {_scores(problem):,}",
        "reference": "the plain one",
    }
    reasons = {}
    for name, words in says.items():
        why_not = why_cannot(name, problem, return_weights)
        if why_not:
            reasons[name] = f"cannot serve: {why_not}"
        else:
            reasons[name] = f"chosen: {words}" if name == choice else f"can serve: {words}"
    return Explanation(choice, reasons)


def _scores(problem: Problem) -> int:
    return math.prod(problem.q.shape[:-1]) * problem.k.shape[-2]  # numel() would make symbols into numbers


def _chunk_from(problem: Problem) -> int:
    return CHUNK_FROM.get(problem.q.device.type, CHUNK_FROM["cpu"])


def attend(problem: Problem, implementation: str = "auto", with_weights: bool = False) -> tuple[Tensor, Tensor | None]:
    """Runs a checked problem on the implementation asked for, or on the best one that can serve."""
    if implementation == "auto":
        implementation = choose(problem, with_weights)
    if implementation == "reference":
        return reference.attend(problem)
    if implementation == "chunked":
        return chunked.attend(problem, with_weights=with_weights)
    reason = why_cannot(implementation, problem, with_weights)
    if reason:
        raise ValueError(f"implementation is {implementation!r}; it cannot serve here: {reason}. Use 'auto'")
    serve = {"sdpa": _sdpa, "fused": _fused, "windows": windows.attend, "gathered": gathered.attend}
    return serve[implementation](problem), None


def why_cannot(implementation: str, problem: Problem, with_weights: bool) -> str | None:
    """Why an implementation cannot serve, or None if it can. The reference and its chunks always can."""
    asks = {"sdpa": sdpa_cannot, "fused": kernels.cannot, "windows": windows.cannot, "gathered": gathered.cannot}
    return asks[implementation](problem, with_weights) if implementation in asks else None


def choose(problem: Problem, with_weights: bool, compiled: bool | None = None) -> str:
    """What "auto" means: a fused kernel where one computes the same thing and pays, else by the size of the scores.

    ``compiled``: for a call inside ``torch.compile``; by default, is this one?
    """
    compiled = torch.compiler.is_compiling() if compiled is None else compiled
    fused = kernels.pays(problem, compiled) and kernels.cannot(problem, with_weights) is None
    # PyTorch's kernel is the faster one in half precision only. A compiler need not see other patterns' refusals.
    sdpa = isinstance(problem.pattern, Full) and sdpa_cannot(problem, with_weights) is None
    if sdpa and not (fused and problem.q.dtype == torch.float32):
        return "sdpa"
    if fused:
        return "fused"
    budget, keys = problem.pattern.budget, problem.k.shape[-2]
    # Both look at numbers on their way, which a GPU would wait for and a compiler cannot.
    if budget and problem.q.device.type == "cpu" and not compiled:
        if keys >= max(WINDOW_FROM_KEYS, WINDOW_FROM_RATIO * budget) and not windows.cannot(problem, with_weights):
            return "windows"
        if keys >= max(GATHER_FROM_KEYS, GATHER_FROM_RATIO * budget) and not gathered.cannot(problem, with_weights):
            return "gathered"
    return "chunked" if _scores(problem) >= _chunk_from(problem) else "reference"


def _fused(problem: Problem) -> Tensor:
    from .kernels import long_rows, short_rows  # import Triton

    return long_rows.attend(problem) if kernels.is_long(problem) else short_rows.attend(problem)


def sdpa_cannot(problem: Problem, with_weights: bool) -> str | None:
    """Why PyTorch's fused attention cannot serve, or None if it can."""
    if not isinstance(problem.pattern, Full):
        return f"the pattern is {problem.pattern.label}, and it knows full attention only"
    if with_weights:
        return "it does not return weights"
    if problem.soft_cap:
        return f"the scores are capped at {problem.soft_cap:g}"
    if problem.dropout_p > 0:
        return "its dropout is not counter-based, so chunks and resumed runs would draw other bits"
    if problem.mask is not None and problem.mask.dtype != torch.bool:
        if problem.mask.requires_grad:
            return "attn_mask needs a gradient"
        if problem.mask.dtype != problem.q.dtype:
            return f"attn_mask is {problem.mask.dtype}, query {problem.q.dtype}"
    if 0 in problem.q.shape or 0 in problem.k.shape:
        return "an axis has length 0"
    if forward_mode():
        return "it has no forward-mode derivative"
    return None


def _sdpa(p: Problem) -> Tensor:
    # PyTorch's causal kernel on a CPU hides keys before it scales: 0 or less would show them, or give NaN.
    q, scale = (p.q * p.scale, 1.0) if isinstance(p.scale, Tensor) or p.scale <= 0 else (p.q, p.scale)
    gqa = False
    if p.k.shape[-3] != q.shape[-3]:  # compared here: a compiler's sizes may be symbols, and so would be the answer
        gqa = True
    # PyTorch's causal kernels know an offset of zero only; an offset behind all keys hides none of them.
    sees_all = not p.is_causal or p.query_offset >= p.k.shape[-2] - 1
    if p.mask is None and (sees_all or p.query_offset == 0):
        out = F.scaled_dot_product_attention(q, p.k, p.v, is_causal=not sees_all, scale=scale, enable_gqa=gqa)
        return out.to(p.q.dtype)  # under autocast it is the reduced one
    visible = p.visible()
    seen = visible.any(-1, keepdim=True)  # (..., t, 1)
    mask = visible | ~seen  # a row that sees nothing is computed over everything and then set to zero
    if p.mask is not None and p.mask.dtype != torch.bool:
        mask = p.mask.to(q.dtype).masked_fill(~visible, -torch.inf).masked_fill(~seen, 0.0)
    out = F.scaled_dot_product_attention(q, p.k, p.v, attn_mask=mask, scale=scale, enable_gqa=gqa) * seen
    return out.to(p.q.dtype)
