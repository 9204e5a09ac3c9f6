"""Each pattern against its definition, written again here as loops over one row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import semfocus
from semfocus import (
    Banded,
    BlockLocal,
    BottomK,
    FixedRandom,
    Full,
    PositionalTopK,
    RandomK,
    Strided,
    SwappedTopK,
    TopK,
    patterns,
)
from semfocus.patterns.base import View, keep_best
from semfocus.randomness import Noise, key_of


def kept_sets(pattern, visible, scores=None, offset=0):
    """The kept indices of every row of one head, as a list of sets."""
    t, s = visible.shape
    q, k = torch.zeros(1, t, 2), torch.zeros(1, s, 2)
    scores = torch.zeros(1, t, s) if scores is None else scores[None]
    view = View(q, k, visible, scores=scores, positions=torch.arange(offset, offset + t))
    kept = (pattern.select(view) & visible).expand(1, t, s)[0]
    return [set(row.nonzero().flatten().tolist()) for row in kept]


def by_ranks(visible, offset, choose):
    """Applies ``choose(r, n)`` -> ranks to each row's visible keys."""
    rows = []
    for i, row in enumerate(visible.tolist()):
        keys = [j for j, seen in enumerate(row) if seen]
        r = max(sum(j <= i + offset for j in keys) - 1, 0)
        rows.append({keys[rank] for rank in choose(r, len(keys)) if 0 <= rank < len(keys)})
    return rows


def banded_ranks(width):
    def choose(r, n):
        low = min(max(r - (width - 1) // 2, 0), max(n - width, 0))
        return range(low, low + width)

    return choose


def block_ranks(width):
    return lambda r, n: [rank for rank in range(n) if rank // width == r // width]


def strided_ranks(k):
    return lambda r, n: [(r + j * n // min(k, n)) % n for j in range(min(k, n))] if n else []


masks = (
    st.integers(1, 9)
    .flatmap(lambda s: st.lists(st.lists(st.booleans(), min_size=s, max_size=s), min_size=1, max_size=6))
    .map(torch.tensor)
)


@settings(max_examples=150, deadline=None)
@given(visible=masks, size=st.integers(1, 10), offset=st.integers(0, 4))
def test_positional_patterns_follow_ranks(visible, size, offset):
    for pattern, ranks in (
        (Banded(size), banded_ranks(size)),
        (BlockLocal(size), block_ranks(size)),
        (Strided(size), strided_ranks(size)),
    ):
        assert kept_sets(pattern, visible, offset=offset) == by_ranks(visible, offset, ranks), pattern.label


@settings(max_examples=150, deadline=None)
@given(visible=masks, k=st.integers(1, 10), data=st.data())
def test_top_k_and_bottom_k_with_ties_and_sinks(visible, k, data):
    # Scores from a small set, so that ties are common.
    scores = torch.tensor(
        data.draw(st.lists(st.integers(0, 3), min_size=visible.numel(), max_size=visible.numel()))
    ).view(visible.shape)
    sinks = data.draw(st.integers(0, k))
    top, bottom, sunk = [], [], []
    for row, seen in zip(scores.tolist(), visible.tolist(), strict=True):
        keys = [j for j, visible_here in enumerate(seen) if visible_here]
        top.append(set(sorted(keys, key=lambda j: (-row[j], j))[:k]))
        bottom.append(set(sorted(keys, key=lambda j: (row[j], j))[:k]))
        first = keys[:sinks]
        rest = sorted((j for j in keys if j not in first), key=lambda j: (-row[j], j))
        sunk.append(set(first + rest[: k - len(first)]))
    assert kept_sets(TopK(k), visible, scores.double()) == top
    assert kept_sets(BottomK(k), visible, scores.double()) == bottom
    assert kept_sets(TopK(k, sinks=sinks), visible, scores.double()) == sunk


def test_the_paper_s_window_at_the_edges():
    everything = torch.ones(7, 7, dtype=torch.bool)
    rows = kept_sets(Banded(5), everything)
    assert rows[0] == rows[1] == rows[2] == {0, 1, 2, 3, 4}
    assert rows[3] == {1, 2, 3, 4, 5}
    assert rows[4] == rows[6] == {2, 3, 4, 5, 6}
    assert kept_sets(Banded(4), everything)[3] == {2, 3, 4, 5}  # (w - 1) // 2 to the left, the rest to the right
    assert kept_sets(BlockLocal(3), everything) == [{0, 1, 2}] * 3 + [{3, 4, 5}] * 3 + [{6}]
    causal = everything.tril()
    assert kept_sets(Banded(3), causal)[5] == {3, 4, 5}  # the last three


def test_global_tokens_attend_to_all_and_all_attend_to_them():
    everything = torch.ones(7, 7, dtype=torch.bool)
    rows = kept_sets(BlockLocal(2, global_tokens=2), everything)
    assert rows[:5] == [{0, 1, 5, 6}, {0, 1, 5, 6}, {2, 3, 5, 6}, {2, 3, 5, 6}, {4, 5, 6}]
    assert rows[5] == rows[6] == set(range(7))
    assert kept_sets(Banded(3, global_tokens=2), everything)[4] == {2, 3, 4, 5, 6}  # windows end before the globals


def batch_view(scores, visible=None):
    b, h, t, s = scores.shape
    visible = torch.ones(t, s, dtype=torch.bool) if visible is None else visible
    return View(torch.zeros(b, h, t, 2), torch.zeros(b, h, s, 2), visible, scores=scores)


def test_swapped_top_k_takes_its_neighbour_s_choice():
    scores = torch.randn(4, 2, 6, 6)
    wanted = TopK(2).select(batch_view(scores)).roll(-1, 0)
    assert torch.equal(SwappedTopK(2).select(batch_view(scores)), wanted)


def test_swapped_top_k_fills_up_where_the_neighbour_sees_less():
    scores = torch.tensor([[0.0, 1, 2, 3], [9, 8, 7, 6]]).view(2, 1, 1, 4)
    visible = torch.tensor([[True] * 4, [False, True, False, False]]).view(2, 1, 1, 4)
    kept = SwappedTopK(2).select(batch_view(scores, visible)) & visible
    assert kept[0].flatten().tolist() == [True, True, False, False]  # the neighbour's only key, then the lowest index
    assert kept[1].flatten().tolist() == [False, True, False, False]


def test_positional_top_k_is_one_choice_for_the_batch():
    scores = torch.randn(5, 2, 6, 6)
    wanted = TopK(3).select(batch_view(scores.mean(0, keepdim=True).expand(5, -1, -1, -1)))
    assert torch.equal(PositionalTopK(3).select(batch_view(scores)).expand(5, 2, 6, 6), wanted)


def random_view(seed, b=200, h=2, t=5, s=8):
    noise = Noise(key_of(seed), key_of(0))
    return View(torch.zeros(b, h, t, 2), torch.zeros(b, h, s, 2), torch.ones(t, s, dtype=torch.bool), noise=noise)


def test_random_k_is_uniform_without_replacement():
    kept = RandomK(3).select(random_view(1))
    assert (kept.sum(-1) == 3).all()
    rate, n = kept.double().mean((0, 1)), 400
    assert ((rate - 3 / 8).abs() < 4.5 * (3 / 8 * 5 / 8 / n) ** 0.5).all()  # each of 40 places
    assert not torch.equal(kept, RandomK(3).select(random_view(2)))
    assert not torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[:, 0], kept[:, 1])


def test_queries_behind_the_keys_draw_for_themselves():
    noise = Noise(key_of(1), key_of(0))
    view = View(torch.zeros(1, 1, 40, 2), torch.zeros(1, 1, 8, 2), torch.ones(40, 8, dtype=torch.bool), noise=noise)
    for pattern in (RandomK(3), FixedRandom(3)):
        kept = pattern.select(view)[0, 0]
        assert len({tuple(row) for row in kept.tolist()}) > 20


def test_numpy_integers_are_integers():
    assert TopK(np.int64(3)) == TopK(3)
    assert type(TopK(np.int64(3)).k) is int


def test_fixed_random_is_one_draw_per_seed_head_and_query():
    kept = FixedRandom(3).select(random_view(1)).expand(200, 2, 5, 8)
    assert (kept == kept[:1]).all()
    assert torch.equal(kept, FixedRandom(3).select(random_view(2)).expand(200, 2, 5, 8))
    other_seed = FixedRandom(3, seed=1).select(random_view(1)).expand(200, 2, 5, 8)
    assert not torch.equal(kept, other_seed)
    assert not torch.equal(kept[0, 0], kept[0, 1])
    assert len({tuple(row) for row in kept[0].flatten(0, 1).tolist()}) > 1


def test_keep_best_orders_equal_values_by_index():
    priority = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    assert keep_best(priority, torch.ones(5, dtype=torch.bool), 2).tolist() == [False, True, True, False, False]
    visible = torch.tensor([True, False, True, True, True])
    assert keep_best(priority, visible, 3).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TopK(0), ["k is 0", "at least 1"]),
        (lambda: TopK(2.5), ["k is 2.5"]),
        (lambda: TopK(True), ["k is True"]),
        (lambda: Banded(-1), ["width is -1"]),
        (lambda: BlockLocal(3, global_tokens=-1), ["global_tokens is -1"]),
        (lambda: TopK(2, sinks=3), ["sinks is 3", "at most k"]),
        (lambda: FixedRandom(2, seed=-1), ["seed is -1"]),
        (lambda: patterns.get("topk", k=3), ["'topk'", "'top_k'"]),
        (lambda: patterns.get("banded", widht=3), ["'widht'", "'width'"]),
        (lambda: patterns.get("top_k"), ["needs k"]),
        (lambda: patterns.get("top_k", k=0), ["k is 0"]),
    ],
)
def test_bad_knobs_are_named(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_labels_leave_out_defaults():
    assert TopK(5).label == "top_k(k=5)"
    assert Banded(5, global_tokens=1).label == "banded(width=5, global_tokens=1)"
    assert Full().label == "full()"


def test_a_label_uses_no_regular_expression(monkeypatch):
    """Labels are made inside compiled functions, which would then depend on the expressions Python remembers."""
    monkeypatch.setattr("re.sub", None)
    assert SwappedTopK(5).label == "swapped_top_k(k=5)"


def test_budgets_as_large_as_tensors_hold():
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    wanted = semfocus.attention(q, k, v)
    for pattern in (semfocus.Banded(2**63 - 1), semfocus.BlockLocal(2**63 - 1), semfocus.Strided(2**63 - 1)):
        torch.testing.assert_close(semfocus.attention(q, k, v, pattern), wanted)
    with pytest.raises(ValueError, match=f"width is {2**63}; it must be below 2.63"):
        semfocus.Banded(2**63)
