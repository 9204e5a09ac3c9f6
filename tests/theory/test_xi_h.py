"""Constants of top-k: the one that docs/theory.md proves, and how often the paper's is exceeded, and in which norm."""

from functools import partial

import numpy as np
import pytest

from semfocus.theory import is_vacuous, xi_h, xi_top_k

PAIRS = 4000
KINDS = ("one key", "signs", "random", "exchange")
NORMS = {"Euclidean": 2, "sum": 1, "maximum": np.inf}


def top_k(z, k):
    kept = np.zeros(z.shape, bool)
    np.put_along_axis(kept, np.argsort(-z, axis=1, kind="stable")[:, :k], True, 1)
    return kept


def softmax(z, kept):
    e = np.where(kept, np.exp(z - np.where(kept, z, -np.inf).max(1, keepdims=True)), 0.0)
    return e / e.sum(1, keepdims=True)


def pairs(rng, keys, k, kind):
    """Scores with kept keys in front, dispersions 0.01 to 3, separations 0.01 to 10; and where they move to."""
    width, gap = (10 ** rng.uniform(low, high, (PAIRS, 1)) for low, high in ((-2, 0.5), (-2, 1)))
    z = np.empty((PAIRS, keys))
    z[:, :k] = width * rng.uniform(0, 1, (PAIRS, k))
    z[:, :k] -= z[:, :k].min(1, keepdims=True)
    z[:, k:] = -gap - rng.exponential(1, (PAIRS, keys - k)) * (np.arange(keys - k) > 0)
    moved, size = z.copy(), 10 ** rng.uniform(-3, 0.3, (PAIRS, 1))
    chosen = np.arange(keys) == rng.integers(0, k, PAIRS)[:, None]
    kept = np.arange(keys) < k
    if kind == "one key":
        moved += size * chosen
    elif kind == "signs":
        moved += size * np.where(chosen, 1, -1) * kept
    elif kind == "random":
        moved += size * rng.normal(size=z.shape) * kept
    else:
        count = rng.integers(1, min(k, keys - k) + 1, PAIRS)[:, None]
        places = np.arange(keys)
        swapped = np.where(
            places < count, places + k, np.where((places >= k) & (places < k + count), places - k, places)
        )
        moved = np.take_along_axis(z, swapped, 1)
    return z, moved


def measured(keys, k, kind, norm, constant=xi_h):
    """Ratios of movements and their bound, for pairs that both have a positive separation."""
    z, moved = pairs(np.random.default_rng(0), keys, k, kind)
    both = [(x, top_k(x, k)) for x in (z, moved)]
    delta = np.max([np.where(s, x, -np.inf).max(1) - np.where(s, x, np.inf).min(1) for x, s in both], axis=0)
    gap = np.min([np.where(s, x, np.inf).min(1) - np.where(s, -np.inf, x).max(1) for x, s in both], axis=0)
    (_, first), (_, second) = both
    weights = np.linalg.norm(softmax(z, first) - softmax(moved, second), ord=NORMS[norm], axis=1)
    ratio = weights / np.linalg.norm(z - moved, ord=NORMS[norm], axis=1)
    return ratio[gap > 0], constant(delta, k, gap)[gap > 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("keys", "k"), [(10, 2), (10, 5), (40, 5), (40, 20)])
def test_never_in_the_euclidean_norm(keys, k, kind):
    ratio, bound = measured(keys, k, kind, "Euclidean")
    assert (ratio <= bound * (1 + 1e-9)).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("keys", "k"), [(10, 1), (10, 2), (10, 5), (40, 5), (40, 20)])
def test_the_proven_constant_holds(keys, k, kind, norm):
    ratio, bound = measured(keys, k, kind, norm, partial(xi_top_k, norm=norm))
    assert len(ratio) > PAIRS / 10
    assert (ratio <= bound * (1 + 1e-9)).all()


@pytest.mark.parametrize("gap", [0.1, 1.0, 10.0])
def test_the_proven_constant_is_reached_where_two_keys_change_places(gap):
    z, moved = np.array([[gap, 0.0]]), np.array([[0.0, gap]])
    weights = np.linalg.norm(softmax(z, top_k(z, 1)) - softmax(moved, top_k(moved, 1)))
    assert weights / np.linalg.norm(z - moved) == pytest.approx(float(xi_top_k(0.0, 1, gap)))


def test_a_norm_that_is_not_known_is_named():
    with pytest.raises(ValueError, match="norm is 'euclid'; did you mean 'Euclidean'"):
        xi_top_k(0.0, 1, 0.5, "euclid")


def test_the_proven_constant_is_reached_by_equal_scores():
    z, step = np.zeros((1, 4)), 1e-4 * np.array([[1.0, -1.0, 0.0, 0.0]])
    all_kept = np.ones((1, 4), bool)
    moved = np.linalg.norm(softmax(z + step, all_kept) - softmax(z, all_kept)) / np.linalg.norm(step)
    assert moved == pytest.approx(float(xi_top_k(0.0, 4, np.inf)), rel=1e-3)


def test_constants_by_hand():
    """e^0 / 4 times max(1 or 3/2, 1/Delta), for separations that leave either the larger one."""
    known = {"Euclidean": (0.5, 0.25), "sum": (0.5, 0.375), "maximum": (0.5, 0.375)}
    for norm, wanted in known.items():
        assert tuple(xi_top_k(0.0, 4, [0.5, 4.0], norm)) == wanted


@pytest.mark.parametrize(("norm", "kind"), [("sum", "one key"), ("maximum", "signs")])
def test_in_the_other_norms_it_is_exceeded_by_less_than_two(norm, kind):
    ratio, bound = measured(40, 5, kind, norm)
    assert 0.05 < (ratio > bound).mean() < 0.2
    assert 1.3 < (ratio / bound).max() <= 2 * (1 - 1 / 5) + 1e-9


def test_an_exchange_of_keys_nearly_reaches_it():
    ratio, bound = measured(10, 2, "exchange", "Euclidean")
    assert (ratio / bound).max() > 0.95


def test_what_it_says_of_random_scores():
    z = np.random.default_rng(0).normal(size=(5000, 40))
    kept = top_k(z, 5)
    delta = np.where(kept, z, -np.inf).max(1) - np.where(kept, z, np.inf).min(1)
    gap = np.where(kept, z, np.inf).min(1) - np.where(kept, -np.inf, z).max(1)
    assert (xi_h(delta, 5, gap) >= 0.5).mean() > 0.999  # as much as any softmax over fixed keys moves, but
    assert 0.1 < is_vacuous(xi_h(delta, 5, gap), gap).mean() < 0.15  # top-k moves by more


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_called_vacuous_holds_for_every_pair(kind):
    for keys, k in ((10, 1), (10, 5), (40, 5)):
        z, moved = pairs(np.random.default_rng(1), keys, k, kind)
        first, second = top_k(z, k), top_k(moved, k)
        both = ((z, first), (moved, second))
        gap = np.min([np.where(s, x, np.inf).min(1) - np.where(s, -np.inf, x).max(1) for x, s in both], axis=0)
        ratio = np.linalg.norm(softmax(z, first) - softmax(moved, second), axis=1) / np.linalg.norm(z - moved, axis=1)
        ratio, gap = ratio[gap > 0], gap[gap > 0]
        assert (ratio <= np.maximum(0.5, 1 / gap) * (1 + 1e-9)).all()
        if kind == "exchange":
            assert ratio.max() > 1  # so 1/2 is no bound
