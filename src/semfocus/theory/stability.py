"""Input stability of the softmax: how far attention weights can move per unit of movement of the scores.

    ||softmax(z) - softmax(z')|| <= xi ||z - z'||

For a fixed mask of n keys the Jacobian is J = diag(a) - a a', with weights a <= e^delta / n, where delta is the
dispersion max z - min z over the kept keys. On the way from z to z' no dispersion exceeds the larger of the two (it
is convex), so

    Euclidean norm:  ||J||_2 <= max a               <= e^delta / n
    sum norm:        ||J||_1  = max 2 a_j (1 - a_j) <= 2 (1 - 1/n) e^delta / n,   and so in the maximum norm

These operator norms never exceed 1/2 whatever the scores, so a bound of 1/2 or more says nothing. Top-k exchanges keys,
though, and then moves by more: ``is_vacuous``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..registry import suggestion

Numbers = npt.ArrayLike
Floats = npt.NDArray[np.float64]
#: Over fixed keys the softmax is 1/2-Lipschitz in each of these norms anyway.
VACUOUS = 0.5
NORMS = ("Euclidean", "sum", "maximum")


def xi_s(delta: Numbers, keys: Numbers) -> Floats:
    """Full attention over ``keys`` keys with dispersion ``delta``: e^delta / L. Euclidean norm, any two score vectors.

    ``delta`` is the larger dispersion of the two.

    >>> float(xi_s(0.0, 4))  # equal scores: the weights are 1/4 each
    0.25
    """
    return _weight_bound(delta, keys)


def xi_r(delta: Numbers, kept: Numbers) -> Floats:
    """A fixed mask of ``kept`` keys: e^delta / k. Euclidean norm; the mask must not depend on the scores."""
    return _weight_bound(delta, kept)


def xi_h(delta: Numbers, kept: Numbers, separation: Numbers) -> Floats:
    """Top-k as the paper states it: (e^delta / k) (1 + 1 / Delta), with Delta the separation of the kept scores.

    Assumes that both score vectors have dispersion at most ``delta`` over their kept keys and separation at least
    ``separation``. Delta = 0 makes it infinite, and no dropped key (Delta infinite) makes it ``xi_s``. Holds in the
    Euclidean norm, and in the sum and the maximum norm for k <= 2 or Delta <= k / (k - 2); ``xi_top_k`` is sharper.

    >>> float(xi_h(0.0, 4, 1.0)), float(xi_h(0.0, 4, np.inf)), float(xi_h(1.0, 4, 0.0))
    (0.5, 0.25, inf)
    """
    with np.errstate(divide="ignore", over="ignore"):
        return _weight_bound(delta, kept) * (1.0 + 1.0 / checked_separation(separation))


def xi_top_k(delta: Numbers, kept: Numbers, separation: Numbers, norm: str = "Euclidean") -> Floats:
    """Top-k, proven in docs/theory.md: e^delta / k times max(1, 1/Delta), in the Euclidean norm.

    In the "sum" and the "maximum" norm it is times max(2 (1 - 1/k), 1/Delta), and for k = 1 times 1/Delta in all
    three. Other arguments as for ``xi_h``, than which it is up to twice as sharp in the Euclidean norm (for k = 1
    more). It is reached: two keys that change places (k = 1, Delta = 1/2) move the weights by sqrt(2) and the scores
    by sqrt(2) / 2.

    >>> float(xi_top_k(0.0, 1, 0.5)), float(xi_top_k(0.0, 4, np.inf)), float(xi_top_k(0.0, 4, 0.5, "sum"))
    (2.0, 0.25, 0.5)
    """
    if norm not in NORMS:
        raise ValueError(f"norm is {norm!r}; {suggestion(norm, NORMS)}")
    weight, kept = _weight_bound(delta, kept), np.asarray(kept, float)
    same_keys = np.where(kept > 1, 1.0, 0.0) if norm == "Euclidean" else 2.0 * (1.0 - 1.0 / kept)
    with np.errstate(divide="ignore", over="ignore"):
        found: Floats = weight * np.maximum(same_keys, 1.0 / checked_separation(separation))
    return found


def is_vacuous(xi: Numbers, separation: Numbers = np.inf) -> npt.NDArray[np.bool_]:
    """Does a bound say no more than is true of every softmax?

    Over fixed keys that is 1/2. Where top-k exchanges keys, its weights move by at most 1/Delta times its scores (in
    the Euclidean norm by at most sqrt(2), and they by at least sqrt(2) Delta): give ``xi_top_k`` or ``xi_h`` the
    ``separation``; they are vacuous from max(1/2, 1/Delta) on.

    >>> is_vacuous([0.4, 0.6, 0.6], [np.inf, np.inf, 1.0]).tolist()
    [False, True, False]
    """
    with np.errstate(divide="ignore", over="ignore"):
        known = np.maximum(VACUOUS, 1.0 / checked_separation(separation))
    found: npt.NDArray[np.bool_] = np.asarray(xi, float) >= known
    return found


def checked_separation(separation: Numbers) -> Floats:
    """Negative ones are those of keys that are not the best."""
    found: Floats = np.asarray(separation, float)
    if (found < 0).any():
        raise ValueError(f"separation is {found[found < 0].min()}; that of the k best keys is at least 0")
    return found


def _weight_bound(delta: Numbers, keys: Numbers) -> Floats:
    """No weight of a softmax over n keys with dispersion delta exceeds e^delta / n."""
    delta, keys = np.asarray(delta, float), np.asarray(keys, float)
    if (delta < 0).any():
        raise ValueError(f"delta is {delta.min()}; a dispersion is at least 0")
    if (keys < 1).any():
        raise ValueError(f"the number of keys is {keys.min():g}; it must be at least 1")
    with np.errstate(over="ignore"):
        found: Floats = np.exp(delta) / keys
    return found
