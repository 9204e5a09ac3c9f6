"""The fused second half of a block as a PyTorch operator."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..randomness import dropout_numbers
from .integers import cdiv, padded
from .mlp_half_tiles import mlp_backward, mlp_forward

#: Tokens of a tile.
BLOCK_M = 64
#: How each kernel is launched: the fastest of those measured on an H200.
FORWARD = {"num_warps": 4, "maxnreg": 128}
BACKWARD = {"num_warps": 4, "num_stages": 2}
#: Of an H200; on other GPUs parts are cut alike, so that sums are the same there.
MULTIPROCESSORS, AT_ONCE = 132, 2  # programs on each
#: What a part costs beside its tiles, in tiles: it reads the maps, and writes its sums. And the most parts of a member.
OVERHEAD, MOST_PARTS = 0.5, 512


@lru_cache(maxsize=256)
def parts_of(members: int, tokens: int, tile: int = BLOCK_M) -> tuple[int, int]:
    """Into how many parts the tokens of a member are cut for the backward pass, and tokens of a part.

    Each part is a program, of which a multiprocessor runs two at once. They go in waves, and the last should
    be full: of 31 members with 235 tiles, 17 parts make two waves of 14 tiles, where 18 would make three.

    >>> parts_of(31, 15000), parts_of(1000, 1000)
    ((17, 896), (1, 1024))
    """
    tiles, programs = cdiv(tokens, tile), AT_ONCE * MULTIPROCESSORS

    def cost(parts: int) -> float:
        return cdiv(members * parts, programs) * (cdiv(tiles, parts) + OVERHEAD)

    per_part = cdiv(tiles, min(range(1, min(tiles, MOST_PARTS) + 1), key=cost)) * tile
    return cdiv(tokens, per_part), per_part


def by_member(x: Tensor) -> Tensor:
    """Weights (m, ...) are taken as they lie: all of one member's weights may come before the next member's."""
    return x if x[0].is_contiguous() else x.contiguous()


def no_second_derivative(ctx: Any, *gradients: Tensor) -> None:
    raise NotImplementedError(
        "the fused halves of a block have no second derivative; use torch.set_float32_matmul_precision('highest')"
    )


def _flags(h: Tensor, w_in: Tensor, dropout_p: float) -> dict[str, Any]:
    width, hidden = h.shape[-1], w_in.shape[-1]
    sizes = {"BLOCK_D": padded(width, 16), "BLOCK_E": padded(hidden, 16)}
    return {"WIDTH": width, "HIDDEN": hidden, "DROPOUT": dropout_p > 0, "BLOCK_M": BLOCK_M, **sizes}


@torch.library.custom_op("semfocus::mlp_half", mutates_args=())
def mlp_half(
    h: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor, keys: Tensor, kinds: Tensor, present: int,
    eps: float, dropout_p: float,
) -> Tensor:  # fmt: skip
    """h (m, n, d), w_in (m, d, e), b_in (m, 1, e), w_out (m, e, d), b_out (m, 1, d), keys (m,) -> (m, n, d).

    kinds int32 (m,): the activation of each member, a bit; ``present``: all of them.
    """
    h = h.contiguous()
    weights = [by_member(x) for x in (w_in, b_in, w_out, b_out)]
    out = torch.empty_like(h)
    members, tokens, _ = h.shape
    mlp_forward[(members * cdiv(tokens, BLOCK_M),)](
        h, *weights, keys, kinds, out, *(x.stride(0) for x in weights), tokens, eps, *dropout_numbers(dropout_p),
        PRESENT=present, **_flags(h, w_in, dropout_p), **FORWARD,
    )  # fmt: skip
    return out


@mlp_half.register_fake
def _(h: Tensor, *rest: Any) -> Tensor:
    return h.new_empty(h.shape)


@torch.library.custom_op("semfocus::mlp_half_backward", mutates_args=())
def _backward(
    d_out: Tensor, h: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, keys: Tensor, kinds: Tensor, present: int,
    eps: float, dropout_p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dh, and the gradients of the weights of each member in a row: w_in, b_in, w_out, b_out."""
    d_out, h = d_out.contiguous(), h.contiguous()
    weights = [by_member(x) for x in (w_in, b_in, w_out)]
    members, tokens, _ = h.shape
    parts, per_part = parts_of(members, tokens)
    dh = torch.empty_like(h)
    sums = h.new_empty((members, parts, _size(h, w_in)))
    mlp_backward[(members * parts,)](
        h, d_out, *weights, keys, kinds, dh, sums, *(x.stride(0) for x in weights), tokens, parts, per_part,
        eps, *dropout_numbers(dropout_p), PRESENT=present, **_flags(h, w_in, dropout_p), **BACKWARD,
    )  # fmt: skip
    return dh, sums.sum(1)


def _size(h: Tensor, w_in: Tensor) -> int:
    width, hidden = h.shape[-1], w_in.shape[-1]
    return 2 * width * hidden + width + hidden


@_backward.register_fake
def _(d_out: Tensor, h: Tensor, w_in: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), h.new_empty((h.shape[0], _size(h, w_in)))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    h, w_in, b_in, w_out, _, keys, kinds, *ctx.numbers = inputs
    ctx.save_for_backward(h, w_in, b_in, w_out, keys, kinds)


def _differentiate(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
    dh, flat = torch.ops.semfocus.mlp_half_backward(d_out, *ctx.saved_tensors, *ctx.numbers)
    members, width, hidden = ctx.saved_tensors[1].shape
    dw_in, db_in, dw_out, db_out = flat.split([width * hidden, hidden, width * hidden, width], dim=1)
    shaped = (dw_in.view(members, width, hidden), db_in[:, None], dw_out.view(members, hidden, width), db_out[:, None])
    return (dh, *shaped, *[None] * 5)


mlp_half.register_autograd(_differentiate, setup_context=_setup)
_backward.register_autograd(no_second_derivative)
