"""The contract, written once in semfocus.contract, run over the whole registry."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semfocus
from semfocus import contract, patterns

EXAMPLES = [pattern for name in patterns.registry.own_names() for pattern in patterns.find(name).examples()]


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("pattern", EXAMPLES, ids=lambda pattern: pattern.label)
def test_contract(pattern, check):
    for tokens in contract.LENGTHS:
        if tokens >= pattern.global_tokens:
            check(pattern, tokens)


@settings(max_examples=60, deadline=None)
@given(
    pattern=st.sampled_from(EXAMPLES),
    size=st.integers(1, 12),
    tokens=st.integers(3, 14),
    check=st.sampled_from([c for c in contract.CHECKS if c is not contract.gradients_are_right]),
)
def test_contract_at_any_size(pattern, size, tokens, check):
    sinks = getattr(pattern, "sinks", 0)  # one key more than these, or nothing is left to choose
    check(pattern.with_budget(max(size, sinks + 1)) or pattern, tokens)


@dataclasses.dataclass(frozen=True)
class LeakyTopK(semfocus.TopK):
    """Chooses among all keys, visible or not: the classic mistake."""

    def select(self, view):
        return patterns.base.keep_best(view.scores, torch.ones_like(view.visible), self.k)


@dataclasses.dataclass(frozen=True)
class PositionWindow(semfocus.Pattern):
    """A window over raw positions instead of ranks."""

    input_dependent = False
    width: int = 3

    def keep(self, q, k, visible):
        distance = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
        return distance.abs() <= self.width // 2


@dataclasses.dataclass(frozen=True)
class AmongQueries(semfocus.Pattern):
    """Compares a score with those of other queries, which a chunk or a cache does not have."""

    input_dependent = True

    def select(self, view):
        return view.visible & (view.scores >= view.scores.mean(-2, keepdim=True))


@pytest.mark.parametrize(
    ("pattern", "caught"),
    [
        (LeakyTopK(3), {"weights_sum_to_one_inside_visible", "future_does_not_leak", "invisible_tokens_do_not_matter"}),
        (AmongQueries(), {"chunks_agree", "decoding_with_a_cache_agrees"}),
        (PositionWindow(), {"invisible_tokens_do_not_matter", "masking_a_key_equals_deleting_it"}),
    ],
)
def test_the_contract_has_teeth(pattern, caught):
    assert caught <= contract.failures(pattern).keys()
