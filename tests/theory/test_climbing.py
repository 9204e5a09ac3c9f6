"""Climbing towards top-k's constants: they are reached and never passed (docs/theory.md)."""

import numpy as np
import pytest

from semfocus.theory import xi_top_k

CLIMBERS, STEPS = 500, 300
NORMS = {"Euclidean": 2, "sum": 1, "maximum": np.inf}


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def ratio(x, k, m, norm):
    """Movement of the weights over its bound. The keys: k - m that stay kept, m that leave, m that enter.

    A row of x holds the kept scores before, what the common ones move by, those of the keys that enter, how far below
    the separation dropped keys lie, and logarithms of a factor of the scores and of the separation.
    """
    size, gap, common = np.exp(x[:, -2:-1]), np.exp(x[:, -1:]), k - m
    before = size * x[:, :k]
    after = np.hstack([before[:, :common] + size * x[:, k : k + common], size * x[:, k + common : 2 * k]])
    below = np.abs(x[:, 2 * k : -2])
    enter = before.min(1, keepdims=True) - gap - below[:, :m]
    leave = after.min(1, keepdims=True) - gap - below[:, m:]
    step = np.hstack([before, enter]) - np.hstack([after[:, :common], leave, after[:, common:]])
    nothing, a, b = np.zeros((len(x), m)), softmax(before), softmax(after)
    moved = np.hstack([a, nothing]) - np.hstack([b[:, :common], nothing, b[:, common:]])
    bound = xi_top_k(np.maximum(np.ptp(before, 1), np.ptp(after, 1)), k, gap[:, 0], norm)
    size_of_step = np.linalg.norm(step, NORMS[norm], axis=1)
    found = np.linalg.norm(moved, NORMS[norm], axis=1) / (bound * size_of_step + 1e-300)
    return np.where(size_of_step > 1e-6, found, 0.0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("k", "m"), [(1, 1), (2, 0), (3, 1), (4, 2), (3, 3), (5, 0)])
def test_the_constants_are_reached_and_never_passed(k, m, norm):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIMBERS, 2 * k + 2 * m + 2))
    x[:, -2], x[:, -1] = rng.uniform(-6, 1, CLIMBERS), rng.uniform(-3, 2, CLIMBERS)
    best, size = ratio(x, k, m, norm), np.full((CLIMBERS, 1), 0.5)
    for _ in range(STEPS):
        tried = x + size * rng.normal(size=x.shape) * (rng.random(x.shape) < 0.5)
        tried[:, :-2] *= rng.random((CLIMBERS, x.shape[1] - 2)) > 0.05
        tried[:, -2] = np.maximum(tried[:, -2], -7.0)
        found = ratio(tried, k, m, norm)
        better = found > best
        x[better], best[better] = tried[better], found[better]
        size = np.clip(np.where(better[:, None], 1.3 * size, 0.95 * size), 1e-4, 1.0)
    assert 0.98 < best.max() <= 1 + 1e-9
