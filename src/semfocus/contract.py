"""What every pattern promises, as checks that run on any pattern, ours or a user's.

Each check takes a pattern and a number of tokens, draws its own inputs, and raises ``AssertionError`` with a sentence
that says what was expected. ``semfocus check FILE`` runs them on a user's file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from . import chunked, reference
from .functional import attention, problem_of
from .patterns.base import Pattern
from .patterns.full import Full

Check = Callable[[Pattern, int], None]
CHECKS: list[Check] = []
BATCH, HEADS, WIDTH = 3, 2, 4


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


#: One key, fewer keys than most budgets, and a number that is no multiple of a block.
LENGTHS = (1, 2, 11)


def failures(pattern: Pattern) -> dict[str, str]:
    """The checks a pattern fails, by name, with what went wrong."""
    failed = {}
    for function in CHECKS:
        for tokens in (n for n in LENGTHS if n >= pattern.global_tokens):
            try:
                function(pattern, tokens)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".removeprefix("AssertionError: ")
                failed[function.__name__] = f"{reason} (with {tokens} tokens)"
    return failed


def draw(tokens: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v (b, h, t, d)."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, BATCH, HEADS, tokens, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return q, k, v


def attend(inputs: Sequence[Tensor], pattern: Pattern, **options: Any) -> Any:
    """attention() with the same randomness at every call."""
    q, k, v = inputs
    return attention(q, k, v, pattern, generator=torch.Generator().manual_seed(3), **options)


def padding_mask(tokens: int, pattern: Pattern) -> Tensor:
    """bool (b, 1, 1, s): some keys invisible, different ones per example; never all, never a global token."""
    visible = torch.rand(BATCH, 1, 1, tokens, generator=torch.Generator().manual_seed(1)) < 0.7
    visible[..., 0] = True
    if pattern.global_tokens:
        visible[..., -pattern.global_tokens :] = True
    return visible


def expect_close(actual: Tensor, wanted: Tensor, what: str, tolerance: float = 1e-9) -> None:
    difference = (actual - wanted).abs().max().item() if actual.numel() else 0.0
    assert difference <= tolerance, f"{what}: they differ by {difference:.3g}"


@check
def frozen_dataclass(pattern: Pattern, tokens: int) -> None:
    """It is a frozen, hashable dataclass with a summary and a declared input dependence."""
    assert dataclasses.is_dataclass(type(pattern)), "decorate the class with @dataclass(frozen=True)"
    twin = dataclasses.replace(cast(Any, pattern))
    assert hash(pattern) == hash(twin), "equal knobs must give equal hashes (frozen=True)"
    assert pattern.summary, "the class needs a docstring: its first line is shown in tables"
    json.dumps(dataclasses.asdict(cast(Any, pattern)))  # runs keep it: "Object of type ... is not JSON serializable"
    assert isinstance(pattern.input_dependent, bool), "set input_dependent to True or False in the class body"


@check
def answer_is_boolean(pattern: Pattern, tokens: int) -> None:
    """keep() gives a boolean tensor that broadcasts to (..., t, s)."""
    q, k, _ = draw(tokens)
    kept = pattern.keep(q, k, torch.ones(tokens, tokens, dtype=torch.bool))
    assert isinstance(kept, Tensor), f"keep() must return a tensor; it returned {type(kept).__name__}"
    assert kept.dtype == torch.bool, f"keep() must return booleans; it returned {kept.dtype}"
    kept.expand(BATCH, HEADS, tokens, tokens)


@check
def weights_sum_to_one_inside_visible(pattern: Pattern, tokens: int) -> None:
    """Every row that sees a key keeps at least one; its weights sum to 1 and are 0 outside."""
    q, k, v = draw(tokens)
    visible = padding_mask(tokens, pattern)
    _, weights = attend((q, k, v), pattern, attn_mask=visible, return_weights=True)
    assert (weights.masked_select(~visible) == 0).all(), "an invisible key has weight"
    expect_close(weights.sum(-1), torch.ones(BATCH, HEADS, tokens, dtype=q.dtype), "weights must sum to 1")


@check
def budget_is_kept(pattern: Pattern, tokens: int) -> None:
    """A query keeps min(budget, visible keys), or at most that many if fills_budget is False."""
    if pattern.budget is None:
        return
    q, k, v = draw(tokens)
    visible = padding_mask(tokens, pattern)
    _, weights = attend((q, k, v), pattern, attn_mask=visible, return_weights=True)
    local = slice(0, tokens - pattern.global_tokens)
    kept = (weights > 0).sum(-1)[..., local]
    expected = visible.sum(-1).clamp(max=pattern.budget)
    assert (kept <= expected).all(), f"a row keeps {kept.max()} keys; the budget is {pattern.budget}"
    if pattern.fills_budget:
        # Every global token is visible here, so a row has min(width, visible local keys) + all global ones.
        short = (kept != expected).sum().item()
        assert short == 0, f"{short} rows keep fewer than min(budget, visible keys)"


@check
def largest_budget_is_full(pattern: Pattern, tokens: int) -> None:
    """With a budget larger than the row it equals full attention."""
    widest = pattern.with_budget(tokens + (pattern.budget or 0))
    if widest is None:
        return
    q, k, v = draw(tokens)
    visible = padding_mask(tokens, pattern)
    expect_close(
        attend((q, k, v), widest, attn_mask=visible), attend((q, k, v), Full(), attn_mask=visible), "with k = all keys"
    )


@check
def future_does_not_leak(pattern: Pattern, tokens: int) -> None:
    """Under is_causal, changing later tokens leaves earlier outputs as they were."""
    if pattern.global_tokens:  # they see the future
        return
    q, k, v = draw(tokens)
    other = draw(tokens, seed=9)
    cut = tokens // 2
    changed = [torch.cat([x[..., :cut, :], y[..., cut:, :]], -2) for x, y in zip((q, k, v), other, strict=True)]
    before = attend((q, k, v), pattern, is_causal=True)[..., :cut, :]
    after = attend(changed, pattern, is_causal=True)[..., :cut, :]
    expect_close(after, before, "outputs before the change", 1e-12)


@check
def invisible_tokens_do_not_matter(pattern: Pattern, tokens: int) -> None:
    """Padding put in front, in the middle or behind changes no output."""
    q, k, v = draw(tokens)
    wanted = attend((q, k, v), pattern)
    for place in {0, tokens // 2, tokens - pattern.global_tokens}:
        padded = [
            torch.cat([x[..., :place, :], 5 + y, x[..., place:, :]], -2)
            for x, y in zip((q, k, v), draw(2), strict=True)
        ]
        real = torch.ones(tokens + 2, dtype=torch.bool)
        real[place : place + 2] = False
        actual = attend(padded, pattern, attn_mask=real.expand(1, 1, 1, -1))[..., real, :]
        expect_close(actual, wanted, f"with two invisible tokens inserted at {place}")


@check
def masking_a_key_equals_deleting_it(pattern: Pattern, tokens: int) -> None:
    """-inf on a key, False on it, and removing it give the same."""
    if pattern.global_tokens or tokens < 2:
        return
    q, k, v = draw(tokens)
    for gone in {0, tokens // 2, tokens - 1}:
        rest = torch.arange(tokens) != gone
        added = torch.zeros(tokens, tokens, dtype=q.dtype).masked_fill(~rest, -torch.inf)
        # The queries stand behind all keys, so that deleting one moves every query by one place.
        masked = attend((q, k, v), pattern, attn_mask=added, query_offset=tokens)
        deleted = attend((q, k[..., rest, :], v[..., rest, :]), pattern, query_offset=tokens - 1)
        expect_close(masked, deleted, f"key {gone} at -inf against key {gone} deleted")
        boolean = attend((q, k, v), pattern, attn_mask=rest.expand(tokens, tokens), query_offset=tokens)
        expect_close(boolean, masked, f"key {gone} at False against -inf", 0.0)


@check
def decoding_with_a_cache_agrees(pattern: Pattern, tokens: int) -> None:
    """The last query alone, at its offset, gives the last row of the causal pass."""
    if pattern.global_tokens:  # they see the future
        return
    q, k, v = draw(tokens)
    whole = attend((q, k, v), pattern, is_causal=True)[..., -1:, :]
    alone = attend((q[..., -1:, :], k, v), pattern, is_causal=True, query_offset=tokens - 1)
    expect_close(alone, whole, "one query with a cache")


@check
def examples_are_independent(pattern: Pattern, tokens: int) -> None:
    """One example alone gives what it gives in a batch, unless batch_dependent is declared."""
    if pattern.batch_dependent:
        return
    q, k, v = draw(tokens)
    expect_close(attend((q[:1], k[:1], v[:1]), pattern), attend((q, k, v), pattern)[:1], "the first example alone")


@check
def rows_without_keys_give_zero(pattern: Pattern, tokens: int) -> None:
    """A row that sees nothing gives 0 and finite gradients."""
    inputs = [x.requires_grad_() for x in draw(tokens)]
    visible = torch.ones(BATCH, 1, tokens, tokens, dtype=torch.bool)
    visible[0] = False
    visible[1, :, tokens // 2] = False
    out = attend(inputs, pattern, attn_mask=visible)
    assert (out[0] == 0).all(), "an empty row gives something other than 0"
    assert (out[1, :, tokens // 2] == 0).all(), "an empty row gives something other than 0"
    for name, gradient in zip("qkv", torch.autograd.grad(out.square().sum(), inputs), strict=True):
        assert gradient.isfinite().all(), f"the gradient of {name} is not finite"


@check
def gradients_are_right(pattern: Pattern, tokens: int) -> None:
    """Gradients agree with finite differences in float64."""
    inputs = tuple(x[:2, :1, : min(tokens, 5)].clone().requires_grad_() for x in draw(tokens))
    if pattern.global_tokens > inputs[0].shape[-2]:
        return
    right = torch.autograd.gradcheck(lambda *qkv: attend(qkv, pattern), inputs, raise_exception=False)
    assert right, "the gradients are not those of finite differences"


@check
def chunks_agree(pattern: Pattern, tokens: int) -> None:
    """A few queries at a time give the reference's output and gradients."""
    q, k, v = inputs = [x.requires_grad_() for x in draw(tokens)]
    mask, generator = padding_mask(tokens, pattern), torch.Generator().manual_seed(3)
    problem = problem_of(q, k, v, pattern, mask, 0.3, False, None, False, 0, generator)
    results = []
    for out, _ in (reference.attend(problem), chunked.attend(problem, chunk=3)):
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for name, wanted, actual in zip(("output", "dq", "dk", "dv"), *results, strict=True):
        expect_close(actual, wanted, name)


@check
def half_precision_is_near(pattern: Pattern, tokens: int) -> None:
    """bfloat16 and float16 inputs give the float32 result for those inputs, rounded once."""
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = draw(tokens, dtype=dtype)
        exact = attend((q.float(), k.float(), v.float()), pattern)
        # One rounding of the output; no output exceeds the largest value.
        bound = torch.finfo(dtype).eps * v.abs().max().item()
        expect_close(attend((q, k, v), pattern).float(), exact, f"in {dtype}", bound)


@check
def randomness_comes_from_the_generator(pattern: Pattern, tokens: int) -> None:
    """Same generator, same answer; a pattern that is not random never asks for one."""
    q, k, v = draw(tokens)
    expect_close(attend((q, k, v), pattern), attend((q, k, v), pattern), "two calls with equal generators", 0.0)
    before = torch.get_rng_state()
    first = attention(q, k, v, pattern)
    second = attention(q, k, v, pattern)
    untouched = torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    if not pattern.random:
        assert untouched, "it drew from the global generator; set random = True and use view.noise"
        expect_close(second, first, "two calls (set random = True if it is meant to change)", 0.0)


@check
def input_dependence_is_declared(pattern: Pattern, tokens: int) -> None:
    """The choice changes with the tokens exactly if input_dependent is True."""
    chosen = []
    for seed in range(4):
        q, k, v = draw(tokens, seed=seed)
        chosen.append(attend((q, k, v), pattern, return_weights=True)[1] > 0)
    changes = any(not torch.equal(chosen[0], other) for other in chosen[1:])
    if not pattern.input_dependent:
        assert not changes, "input_dependent is False, yet the choice changes with the tokens"
    elif pattern.budget is not None and pattern.budget < tokens:
        assert changes, "input_dependent is True, yet the choice never changed in 4 draws"
