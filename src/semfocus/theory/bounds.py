"""Lipschitz constants of attention, of our block and of the objective, and the paper's two comparisons.

Notation: tokens x_j with ||x_j|| <= Xi, values V x_j, scores x_i' W x_j (W holds 1/sqrt(d)), Gamma = ||W||; all
matrix norms are spectral. A whole input X is measured by the sum of its tokens' norms. Derivations: docs/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .stability import Floats, Numbers, checked_separation


def lambda_w(xi: Numbers, value_norm: float, token_norm: float, keys: Numbers) -> Floats:
    """Movement of one attention output per movement of W: ||V|| Xi^3 n xi.

    ``xi`` in the Euclidean norm. ``keys`` n: the keys that can carry weight on either side: L for full attention, k
    for a fixed mask, 2k for top-k, whose kept set may change altogether.

    >>> float(lambda_w(0.25, value_norm=2.0, token_norm=1.0, keys=4))
    2.0
    """
    return _moved(value_norm * token_norm**3 * np.asarray(keys, float), xi)


def lambda_x(
    xi: Numbers,
    value_norm: float,
    score_norm: float,
    token_norm: float,
    keys: Numbers,
    in_degree: Numbers,
    column_sum: Numbers,
) -> Floats:
    """Movement of all attention outputs per movement of their input: ||V|| (c + Gamma Xi^2 (n + D) xi).

    Both in the sum of token norms, ``xi`` in the sum norm. ``keys`` n as for ``lambda_w``; ``in_degree`` D: queries
    that can keep one key (L for full attention, twice the largest in-degree for top-k); ``column_sum`` c: the largest
    total weight that one key receives (at most e^delta for full attention, beta e^delta for top-k).
    """
    reached = np.asarray(keys, float) + np.asarray(in_degree, float)
    return _moved(value_norm, column_sum) + _moved(value_norm * score_norm * token_norm**2 * reached, xi)


def block_constant(
    attention: Numbers, output_norm: Numbers, first_norm: float, second_norm: float, normalisation: Sequence[float]
) -> float:
    """Our pre-norm block: (1 + ||O|| lambda_X n_1)(1 + ||R|| ||P|| n_2), in the sum of token norms.

    ``attention``: lambda_X, or that of each head; theirs add up, since each may move tokens that the others leave
    alone. ``output_norm``: ||O||, or that of the columns of O that belong to each head.

    ``normalisation`` (n_1, n_2): Lipschitz constants of the two LayerNorms, 1/sqrt(var + eps) at the token of least
    variance. Local: it holds for inputs whose variances are no smaller. Activations are 1-Lipschitz (ReLU), GELU and
    Mish at most 1.13 and 1.09: put that factor into ``first_norm``.

    >>> block_constant(0.5, 1.0, 2.0, 1.0, (1.0, 1.0))
    4.5
    >>> block_constant([3.0, 4.0], 1.0, 0.0, 0.0, (1.0, 1.0))
    8.0
    """
    before, after = normalisation
    heads = float(np.sum(np.asarray(output_norm, float) * np.asarray(attention, float)))
    return (1.0 + heads * before) * (1.0 + second_norm * first_norm * after)


def objective_constant(
    lambda_w: Numbers, output_norm: float, mlp: float, later_blocks: Sequence[float], read_out_norm: float
) -> float:
    """The cross-entropy per movement of one block's W: sqrt(2) ||C|| ||O|| lambda_W m prod(later blocks).

    ``lambda_w``: of one head, or of each whose W moves as far. ``mlp`` m = 1 + ||R|| ||P|| n_2 of the block itself;
    ``later_blocks`` their block constants. The mean read-out divides by the number of tokens what the sum over tokens
    multiplies. The gradient of the cross-entropy in its logits has a norm of at most sqrt(2). Under top-k it compares
    two weights at which all separations are at least Delta; it is no Lipschitz constant of the whole objective.
    """
    heads = float(np.linalg.norm(np.atleast_1d(np.asarray(lambda_w, float))))  # of one token, side by side before O
    return math.sqrt(2.0) * read_out_norm * output_norm * heads * mlp * math.prod(later_blocks)


def w_comparison(delta_s: Numbers, delta_h: Numbers, separation: Numbers) -> Floats:
    """Below 1 the bound lambda_W of top-k is smaller than full attention's:

        delta_h / delta_s + ln(2 (1 + 1/Delta)) / delta_s

    >>> round(float(w_comparison(delta_s=8.61, delta_h=3.51, separation=0.016)), 3)
    0.97
    """
    delta_s, delta_h = _dispersion(delta_s), _not_negative("delta_h", delta_h)
    with np.errstate(divide="ignore", over="ignore"):
        found: Floats = (delta_h + np.log(2.0 * (1.0 + 1.0 / checked_separation(separation)))) / delta_s
    return found


def x_comparison(delta_s: Numbers, delta_h: Numbers, separation: Numbers, beta: Numbers) -> Floats:
    """Below 1 the bound lambda_X of top-k is smaller than full attention's:

    delta_h / delta_s + ln( (delta_s (1 + beta)(1 + 1/Delta) + beta) / (delta_s + 1) ) / delta_s
    """
    delta_s = _dispersion(delta_s)
    delta_h, beta = _not_negative("delta_h", delta_h), _not_negative("beta", beta)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1.0 / checked_separation(separation)
        grown = (delta_s * (1.0 + beta) * (1.0 + inverse) + beta) / (delta_s + 1.0)
        found: Floats = (delta_h + np.log(grown)) / delta_s
    return found


def regions(
    delta_s: float, beta: float, c1: Numbers, c2: Numbers
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Where the W- and the X-comparison hold, for c1 = delta_h / delta_s and c2 = Delta / delta_s; both broadcast.

    >>> w, x = regions(8.0, 1.0, c1=[0.1, 0.9], c2=[0.5, 0.5])
    >>> w.tolist(), x.tolist()
    ([True, False], [True, False])
    """
    delta_h, separation = np.asarray(c1, float) * delta_s, np.asarray(c2, float) * delta_s
    return w_comparison(delta_s, delta_h, separation) < 1.0, x_comparison(delta_s, delta_h, separation, beta) < 1.0


def _moved(factor: Numbers, bound: Numbers) -> Floats:
    """Their product. Scores that cannot move move no weights, and values of 0 no output, however large the bound."""
    factor, bound = np.asarray(factor, float), np.asarray(bound, float)
    with np.errstate(invalid="ignore"):
        found: Floats = np.where(factor == 0, 0.0, factor * bound)
    return found


def _dispersion(delta: Numbers) -> Floats:
    found: Floats = np.asarray(delta, float)
    if (found <= 0).any():
        raise ValueError(f"delta_s is {found.min()}; the comparisons need a dispersion above 0")
    return found


def _not_negative(name: str, given: Numbers) -> Floats:
    found: Floats = np.asarray(given, float)
    if (found < 0).any():
        raise ValueError(f"{name} is {found.min()}; it must be at least 0")
    return found
