"""Fused attention in Triton. Nothing here imports Triton before a kernel is used: ``cannot`` says why one is not."""

from __future__ import annotations

import math
import os
from importlib.util import find_spec

import torch

from .._checks import not_over_keys
from .._tracing import no_derivative_rules
from ..patterns._windows import Window
from ..patterns.full import Full
from ..patterns.top_k import TopK
from ..reference import Problem

INSTALLED = find_spec("triton") is not None
#: Triton's interpreter runs kernels on a CPU, slowly: for tests.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: Rows up to this length are short: one kernel selects and attends.
LONGEST_ROW = 1024
#: For these budgets up to this length, where the search for candidates gains least; not for a few queries.
BUDGETS_OF_LONGER_ROWS = range(33, 65)
LONGER_ROW = 2048
QUERIES_OF_LONGER_ROWS = 64
WIDEST_HEAD = 128
#: Long rows are searched for candidates first.
WIDEST_LONG_HEAD = 256
LARGEST_LONG_BUDGET = 1024
LARGEST_DROPOUT = 1 - 2**-20
#: With fewer keys the plain path, compiled, is as fast; and without a compiler, with fewer than that.
PAYS_FROM_KEYS = 64
PAYS_FROM_KEYS_UNCOMPILED = 16


def is_long(problem: Problem) -> bool:
    """Does the call go to the kernels for long rows? They take wide heads too.

    A key of NaN is never kept there, so that it does not show; a query of NaN does.
    """
    p = problem
    keys = p.k.shape[-2]
    if not isinstance(p.pattern, TopK) or p.pattern.k >= keys:
        return False
    longer = p.pattern.k in BUDGETS_OF_LONGER_ROWS and p.q.shape[-2] >= QUERIES_OF_LONGER_ROWS
    if keys > (LONGER_ROW if longer else LONGEST_ROW) or p.q.shape[-1] > WIDEST_HEAD:
        return True
    # Short rows have no tensor cores for exact float32 products; long ones filter in halves and rank in float32.
    return exact_products(p) and keys >= PAYS_FROM_KEYS and p.dropout_p == 0


def pays(problem: Problem, compiled: bool = False) -> bool:
    """Is the kernel faster than plain PyTorch here, ``compiled`` or not?"""
    if problem.q.device.type != "cuda":
        return False
    enough = PAYS_FROM_KEYS if compiled else PAYS_FROM_KEYS_UNCOMPILED
    return is_long(problem) or (problem.k.shape[-2] >= enough and not exact_products(problem))


def exact_products(problem: Problem) -> bool:
    """Float32 inputs, and PyTorch's own products are not allowed to round them."""
    return problem.q.dtype == torch.float32 and highest_precision()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # a change of this setting makes the compiler trace anew
def highest_precision() -> bool:
    return torch.get_float32_matmul_precision() == "highest"


def cannot(problem: Problem, with_weights: bool) -> str | None:
    """Why the fused kernel cannot serve, or None if it can."""
    p = problem
    if not INSTALLED:
        return "Triton is not installed"
    if p.q.device.type != "cuda" and not INTERPRETED:
        return f"it needs a CUDA device, query is on {p.q.device}"
    if with_weights:
        return "it does not return weights"
    if reason := no_derivative_rules():
        return reason
    known = isinstance(p.pattern, Window) or (isinstance(p.pattern, TopK) and not p.pattern.sinks)
    if not known and not isinstance(p.pattern, Full):
        return f"the pattern is {p.pattern.label}, and it knows full, windows and top_k without sinks only"
    if p.soft_cap:
        return f"the scores are capped at {p.soft_cap:g}"
    if p.q.dtype == torch.float64:
        return "it has no float64"
    if 0 in p.q.shape or 0 in p.k.shape or 0 in p.v.shape:
        return "an axis has length 0"
    if p.v.shape[-1] != p.q.shape[-1]:
        return f"value has width {p.v.shape[-1]}, query {p.q.shape[-1]}"
    widest = WIDEST_LONG_HEAD if is_long(p) else WIDEST_HEAD
    if p.q.shape[-1] > widest:
        return f"heads have width {p.q.shape[-1]}; it goes up to {widest}"
    # The output's rows hold all heads. (Not ``numel``: it would fix the sizes that a trace has as symbols.)
    if math.prod(p.q.shape[-3:]) >= 2**31 or any(x.shape[-2] * x.stride(-2) >= 2**31 for x in (p.q, p.k, p.v)):
        return "a head's matrix spans 2^31 elements or more"
    if is_long(p):
        return _cannot_long(p) or _cannot_mask_or_scale(p)
    if p.dropout_p > LARGEST_DROPOUT:
        return f"dropout_p is {p.dropout_p}; it goes up to {LARGEST_DROPOUT:.6f}"
    return _cannot_mask_or_scale(p)


def _cannot_long(p: Problem) -> str | None:
    assert isinstance(p.pattern, TopK)
    if p.dropout_p > 0:
        return f"dropout_p is {p.dropout_p}; with more than {LONGEST_ROW} keys or wide heads it has no dropout"
    if p.pattern.k > LARGEST_LONG_BUDGET:
        return f"k is {p.pattern.k}; with more than {LONGEST_ROW} keys it goes up to {LARGEST_LONG_BUDGET}"
    if p.pattern.k * p.q.shape[-2] * (p.q.shape[-3] // p.k.shape[-3]) >= 2**31:
        return "a key head has more than 2^31 kept keys"
    return None


def _cannot_mask_or_scale(p: Problem) -> str | None:
    if isinstance(p.scale, torch.Tensor):
        if p.scale.requires_grad:
            return "scale needs a gradient"
        if any(size != 1 for size in p.scale.shape[-2:]):
            return f"scale has shape {tuple(p.scale.shape)}; it must be one number for each head"
    return not_over_keys(p.mask)
