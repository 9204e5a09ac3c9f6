"""The theory as functions: how much attention weights, blocks and losses can move. Derivations: docs/theory.md."""

from .bounds import block_constant, lambda_w, lambda_x, objective_constant, regions, w_comparison, x_comparison
from .stability import VACUOUS, is_vacuous, xi_h, xi_r, xi_s, xi_top_k

__all__ = [
    "VACUOUS",
    "block_constant",
    "is_vacuous",
    "lambda_w",
    "lambda_x",
    "objective_constant",
    "regions",
    "w_comparison",
    "x_comparison",
    "xi_h",
    "xi_r",
    "xi_s",
    "xi_top_k",
]
