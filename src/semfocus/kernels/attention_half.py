"""The fused first half of a block as a PyTorch operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..randomness import dropout_numbers
from .attention_half_tiles import half_backward, half_forward
from .integers import THREE_PROGRAMS, padded
from .mlp_half import by_member, no_second_derivative


def _block_t(h: Tensor) -> int:
    return padded(h.shape[2], 32)


def _flags(h: Tensor, dropout_p: float) -> dict[str, Any]:
    width = h.shape[-1]
    sizes = {"WIDTH": width, "BLOCK_D": padded(width, 16), "BLOCK_T": _block_t(h)}
    return {"DROPOUT": dropout_p > 0, "num_warps": 4, "num_stages": 1, **sizes}


@torch.library.custom_op("semfocus::attention_half", mutates_args=())
def attention_half(
    h: Tensor, w: Tensor, b: Tensor, w_out: Tensor, b_out: Tensor, scales: Tensor, keys: Tensor, mask: Tensor | None,
    window: Tensor | None, budgets: Tensor | None, chosen: Tensor | None, first_global: int, eps: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """h (m, b, t, d), w (m, d, 3 d), w_out (m, d, d), scales and keys (m,); of each member, None for all keys:
    mask bool (m, b, t), window int32 (2, m, t), budgets int32 (m,) with 0 for no limit, and a negative one where the
    keys are in ``chosen`` int32 (m, b, t, words), as bits.

    Returns the result and the kept bits.
    """
    h = h.contiguous()
    chosen = None if chosen is None else chosen.contiguous()
    weights = [by_member(x) for x in (w, b, w_out, b_out)]
    out, words = _empty(h)
    members, examples, tokens, _ = h.shape
    begins, ends = (h, h) if window is None else window  # h stands in for what is absent
    half_forward[(members * examples,)](
        h, *weights, scales, keys, h if mask is None else mask.contiguous().view(torch.uint8), begins, ends,
        h if budgets is None else budgets, h if chosen is None else chosen, out, words,
        *(x.stride(0) for x in weights), examples, tokens, eps, *dropout_numbers(dropout_p), first_global,
        CHOOSING=budgets is not None, CHOSEN=chosen is not None, WINDOW=window is not None, MASKED=mask is not None,
        maxnreg=THREE_PROGRAMS, **_flags(h, dropout_p),
    )  # fmt: skip
    return out, words


def _empty(h: Tensor) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), h.new_empty((*h.shape[:3], _block_t(h) // 32), dtype=torch.int32)


@attention_half.register_fake
def _(h: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _empty(h)


@torch.library.custom_op("semfocus::attention_half_backward", mutates_args=())
def _backward(
    d_out: Tensor, words: Tensor, h: Tensor, w: Tensor, b: Tensor, w_out: Tensor, scales: Tensor, keys: Tensor,
    eps: float, dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dh, dw, dw_out, and the biases' gradients side by side (m, 4 d)."""
    d_out, h = d_out.contiguous(), h.contiguous()
    weights = [by_member(x) for x in (w, b, w_out)]
    members, examples, tokens, d = h.shape
    n = examples * tokens
    dh = torch.empty_like(h)
    x, mixed, dy = (h.new_empty((members, n, d)) for _ in range(3))
    d_qkv, d_biases = h.new_empty((members, n, 3 * d)), h.new_empty((members, examples, 4 * d))
    half_backward[(members * examples,)](
        h, d_out, *weights, scales, keys, words, dh, x, d_qkv, mixed, dy, d_biases,
        *(x.stride(0) for x in weights), examples, tokens, eps, *dropout_numbers(dropout_p), **_flags(h, dropout_p),
    )  # fmt: skip
    return dh, torch.bmm(x.mT, d_qkv), torch.bmm(mixed.mT, dy), d_biases.sum(1)


@_backward.register_fake
def _(
    d_out: Tensor, words: Tensor, h: Tensor, w: Tensor, b: Tensor, w_out: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_biases = h.new_empty((h.shape[0], 4 * h.shape[-1]))
    return h.new_empty(h.shape), w.new_empty(w.shape), w_out.new_empty(w_out.shape), d_biases


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    h, w, b, w_out, _, scales, keys = inputs[:7]
    ctx.save_for_backward(output[1], h, w, b, w_out, scales, keys)
    ctx.numbers = inputs[12:]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_out: Tensor, *_: None) -> tuple[Any, ...]:
    dh, dw, dw_out, d_biases = torch.ops.semfocus.attention_half_backward(d_out, *ctx.saved_tensors, *ctx.numbers)
    db, db_out = d_biases[:, None].split([3 * dh.shape[-1], dh.shape[-1]], dim=-1)
    return (dh, dw, db, dw_out, db_out, *[None] * 9)


attention_half.register_autograd(_differentiate, setup_context=_setup)
_backward.register_autograd(no_second_derivative)
