"""The bounds against what softmax does: random pairs of score vectors, closed forms, the paper's own table."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from semfocus.theory import (
    VACUOUS,
    block_constant,
    is_vacuous,
    lambda_w,
    lambda_x,
    objective_constant,
    regions,
    w_comparison,
    x_comparison,
    xi_h,
    xi_r,
    xi_s,
    xi_top_k,
)


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def dispersion(z):
    return z.max() - z.min()


scores = arrays.arrays(float, st.integers(1, 12), elements=st.floats(-6, 6))


@given(scores, st.integers(0, 2**31), st.sampled_from([1e-3, 0.1, 1.0, 5.0]))
@settings(max_examples=500, deadline=None)
def test_a_fixed_mask_never_moves_more_than_its_bound(z, seed, size):
    other = z + size * np.random.default_rng(seed).normal(size=z.shape)
    moved, step = softmax(z) - softmax(other), z - other
    delta = max(dispersion(z), dispersion(other))
    slack = 1e-12
    assert np.linalg.norm(moved) <= xi_r(delta, len(z)) * np.linalg.norm(step) + slack
    assert np.linalg.norm(moved) <= VACUOUS * np.linalg.norm(step) + slack
    assert np.abs(moved).sum() <= 2 * xi_r(delta, len(z)) * np.abs(step).sum() + slack
    assert np.abs(moved).sum() <= VACUOUS * np.abs(step).sum() + slack


def test_closed_forms():
    assert xi_s(0.0, 40) == 1 / 40
    assert xi_r(math.log(3), 6) == pytest.approx(0.5)
    assert xi_h(math.log(3), 6, 1.0) == pytest.approx(1.0)
    assert xi_h(1.0, 5, np.inf) == xi_s(1.0, 5)  # nothing was dropped
    assert np.isinf(xi_h(1.0, 5, 0.0))
    assert xi_s([0.0, 1.0], 4).tolist() == [0.25, math.e / 4]
    assert is_vacuous([0.49, 0.5, 2.0]).tolist() == [False, True, True]
    assert np.isinf(xi_s(1e4, 3))  # no warning


@pytest.mark.parametrize("bad", [(-1.0, 3), (1.0, 0)])
def test_impossible_arguments(bad):
    with pytest.raises(ValueError, match="at least"):
        xi_s(*bad)


TABLE = {  # the paper's, quantiles 75 / 90 / 95 / 100 % (separation: 25 / 10 / 5 / 0 %)
    "listops": ((8.61, 18.5, 29.4, 87.8), (3.51, 6.74, 9.67, 28.2), (0.016, 0.005, 0.002, 1e-9)),
    "parity": ((8.30, 10.1, 11.2, 19.4), (2.31, 3.13, 3.78, 9.16), (0.062, 0.022, 0.011, 1e-6)),
    "even_pairs": ((2.03, 4.73, 9.44, 14.6), (1.03, 2.84, 5.50, 8.25), (0.009, 0.003, 0.002, 3e-8)),
    "missing_duplicates": ((4.63, 9.25, 17.1, 23.9), (2.36, 4.25, 4.88, 10.5), (0.018, 0.006, 0.003, 1e-7)),
}
IN_DEGREE = {
    "listops": (1, 3, 15, 598),
    "parity": (8, 13, 16, 33),
    "even_pairs": (6, 17, 26, 40),
    "missing_duplicates": (7, 15, 21, 40),
}
# Worked out by hand (a pocket calculator) from the table: delta_h/delta_s + ln(2 (1 + 1/Delta))/delta_s.
W_BY_HAND = {
    "listops": (0.9703, 0.6885, 0.5639, 0.5651),
    "parity": (0.7041, 0.7586, 0.8030, 1.2200),
    "even_pairs": (3.1737, 1.9758, 1.3146, 1.7990),
    "missing_duplicates": (1.5310, 1.0881, 0.6658, 1.1427),
}


@pytest.mark.parametrize("task", TABLE)
def test_the_paper_s_table_gives_these_left_hand_sides(task):
    delta_s, delta_h, separation = TABLE[task]
    found = w_comparison(delta_s, delta_h, separation)
    assert found == pytest.approx(W_BY_HAND[task], abs=1e-4)
    if task == "even_pairs":  # where the speed-up is largest, the comparison fails at every quantile
        assert (found > 1).all()
    beta = np.array(IN_DEGREE[task]) / 5
    by_definition = [
        h / s + math.log((s * (1 + b) * (1 + 1 / g) + b) / (s + 1)) / s
        for s, h, g, b in zip(delta_s, delta_h, separation, beta, strict=True)
    ]
    assert x_comparison(delta_s, delta_h, separation, beta) == pytest.approx(by_definition)


def test_regions_grow_with_separation_and_shrink_with_dispersion():
    c1, c2 = np.meshgrid(np.linspace(0.01, 1, 40), np.linspace(0.01, 2, 40))
    w, x = regions(8.0, 2.0, c1, c2)
    assert (np.diff(w.astype(int), axis=0) >= 0).all()  # more separation never hurts
    assert (np.diff(w.astype(int), axis=1) <= 0).all()  # more dispersion of the kept keys never helps
    assert (np.diff(x.astype(int), axis=0) >= 0).all()
    assert regions(32.0, 2.0, c1, c2)[0].sum() > regions(0.25, 2.0, c1, c2)[0].sum()
    with pytest.raises(ValueError, match="delta_s is 0"):
        w_comparison(0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="delta_h is -1"):
        w_comparison(1.0, -1.0, 1.0)


def attention(x, w, v, mask=None):
    """x (d, L) -> V X A', one column per token."""
    z = x.T @ w @ x  # (queries, keys)
    a = np.stack(
        [softmax(np.where(mask[i], row, -np.inf)) if mask is not None else softmax(row) for i, row in enumerate(z)]
    )
    return v @ x @ a.T, z


def spectral(m):
    return np.linalg.norm(m, 2)


@given(st.integers(0, 2**31), st.sampled_from([1e-2, 0.3]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_lambda_bounds_hold_for_fixed_masks(seed, size, banded):
    rng = np.random.default_rng(seed)
    d, length, width = 4, 7, 3
    x = rng.normal(size=(d, length))
    w, v = 0.5 * rng.normal(size=(d, d)), rng.normal(size=(d, d))
    near = np.abs(np.arange(length)[:, None] - np.arange(length)) <= width // 2
    mask = near if banded else np.ones((length, length), bool)
    kept = mask.sum(1)
    # W moves
    w2 = w + size * rng.normal(size=w.shape)
    (out, z), (out2, z2) = attention(x, w, v, mask), attention(x, w2, v, mask)
    xi_norm = np.linalg.norm(x, axis=0).max()
    for i in range(length):
        delta = max(dispersion(z[i][mask[i]]), dispersion(z2[i][mask[i]]))
        bound = lambda_w(xi_r(delta, kept[i]), spectral(v), xi_norm, kept[i]) * spectral(w - w2)
        assert np.linalg.norm(out[:, i] - out2[:, i]) <= bound + 1e-12
    # X moves
    x2 = x + size * rng.normal(size=x.shape)
    out2, z2 = attention(x2, w, v, mask)
    xi_norm = max(np.linalg.norm(x, axis=0).max(), np.linalg.norm(x2, axis=0).max())
    delta = max(dispersion(row[m]) for scores_ in (z, z2) for row, m in zip(scores_, mask, strict=True))
    n, degree = kept.min(), mask.sum(0).max()
    bound = lambda_x(
        2 * xi_r(delta, n), spectral(v), spectral(w), xi_norm, kept.max(), degree, degree * math.exp(delta) / n
    )
    moved = np.linalg.norm(out - out2, axis=0).sum()
    assert moved <= bound * np.linalg.norm(x - x2, axis=0).sum() + 1e-12


def test_lambda_w_is_reached_where_top_1_changes_its_key():
    """Tokens 1 and -1: W and -W give each query the other key, and every inequality on the way is an equality."""
    x, w, v = np.array([[1.0, -1.0]]), np.array([[0.3]]), np.array([[2.0]])
    out, moved = (attention(x, sign * w, v, sign * x.T @ w @ x > 0)[0] for sign in (1, -1))
    bound = lambda_w(xi_top_k(0.0, 1, 0.6), 2.0, 1.0, 2) * spectral(2 * w)  # z is (0.3, -0.3) or (-0.3, 0.3)
    assert np.abs(out - moved) == pytest.approx(np.full((1, 2), float(bound)))


def test_what_cannot_move_has_constant_0_at_a_tie_too():
    tie = xi_h(1.0, 5, 0.0)
    assert lambda_w(tie, 0.0, 1.0, 10) == lambda_x(tie, 0.0, 1.0, 1.0, 10, 10, 2.0) == 0
    assert lambda_x(tie, 1.0, 0.0, 1.0, 10, 10, 2.0) == 2
    assert np.isinf(lambda_w(tie, 1.0, 1.0, 10))


def test_a_negative_separation_is_not_that_of_the_best_keys():
    for bound in (
        lambda s: xi_h(0.0, 4, s),
        lambda s: w_comparison(3.0, 1.0, s),
        lambda s: x_comparison(3.0, 1.0, s, 1.0),
    ):
        with pytest.raises(ValueError, match=r"separation is -0.5; that of the k best keys is at least 0"):
            bound(np.array([1.0, -0.5]))


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_heads_that_agree_move_as_far_as_their_bound(heads):
    """Equal scores and equal heads, added up: nothing is lost, so the bound must be what happens."""
    rng, length, d, v = np.random.default_rng(0), 5, 4, 3.0
    x, moved = rng.normal(size=(2, d, length))
    moved = x + 1e-3 * moved[:, :1]  # all tokens the same way
    output = np.tile(np.eye(d), heads)  # (d, heads d)

    def block(x):  # without normalisation and MLP
        mean = np.tile(v * x.mean(1, keepdims=True), (heads, length))
        return x + output @ mean

    def size(x):
        return np.linalg.norm(x, axis=0).sum()

    each = float(lambda_x(2 * xi_s(0.0, length), v, 0.0, 1.0, length, length, 1.0))
    bound = block_constant([each] * heads, [1.0] * heads, 0.0, 0.0, (1.0, 1.0))
    assert bound <= block_constant([each] * heads, spectral(output), 0.0, 0.0, (1.0, 1.0)) + 1e-9
    assert size(block(moved) - block(x)) == pytest.approx(bound * size(moved - x))
    assert objective_constant([3.0, 4.0], 1.0, 1.0, [2.0], 1.0) == pytest.approx(math.sqrt(2) * 5 * 2)


def test_heads_that_move_different_tokens_add_up():
    """Each query looks at one key: the first head at its own, the second at the next one, coordinates swapped."""
    d = length = 2
    output = np.block([[1.0, 0, 0, 0], [0, 0, 0, 1.0]])  # of the first head coordinate 1, of the second coordinate 2
    x, step = np.zeros((d, length)), np.array([[1.0, 0.0], [0.0, 0.0]])  # token 1 moves along coordinate 1

    def block(x):
        return x + output @ np.concatenate([x, np.roll(x, 1, axis=1)[::-1]])

    moved = np.linalg.norm(block(x + step) - block(x), axis=0).sum()
    assert moved == pytest.approx(3.0)
    assert block_constant([1.0, 1.0], spectral(output), 0.0, 0.0, (1.0, 1.0)) == pytest.approx(moved)
