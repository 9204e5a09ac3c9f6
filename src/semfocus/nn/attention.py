"""``MultiheadAttention``: PyTorch's layer with a pattern."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import functional
from .._checks import check_pattern
from ..patterns._positions import follows_positions
from ..patterns.base import Pattern, whole_number
from ..patterns.full import Full
from .masks import check_masks, visible_keys, with_extra_keys


class MultiheadAttention(torch.nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` in which each query keeps the keys that ``pattern`` chooses.

    Arguments, state dict, masks and results are PyTorch's; with ``Full()`` they are equal. Four things differ:

    - A query that sees no key gives zeros (before the output projection); PyTorch gives NaN.
    - Weights are returned as they are before dropout; PyTorch returns them after it.
    - Every query sees the keys of ``add_bias_kv`` and ``add_zero_attn``; PyTorch hides them, as keys that come later,
      under ``is_causal=True`` with ``need_weights=False`` and no padding mask.
    - PyTorch's fused inference path is never taken, since it knows no patterns, and nested tensors are refused.

    Masks are PyTorch's: boolean True = may NOT attend, float = added to the scores (before the pattern chooses).
    ``is_causal`` is a hint that ``attn_mask`` is the causal mask, which must be passed too. Dropout is active in
    training mode only and draws from PyTorch's default generator.

    Under ``add_bias_kv`` and ``add_zero_attn`` the extra key is one more candidate. It has no position, so patterns
    over positions are refused there; so are unequal numbers of queries and keys.

    >>> from semfocus import TopK
    >>> layer = MultiheadAttention(8, num_heads=2, batch_first=True, pattern=TopK(3))
    >>> x = torch.randn(4, 10, 8)
    >>> out, weights = layer(x, x, x, average_attn_weights=False)
    >>> out.shape, weights.shape, int((weights > 0).sum(-1).max())
    (torch.Size([4, 10, 8]), torch.Size([4, 2, 10, 10]), 3)
    """

    pattern: Pattern

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        pattern: Pattern = Full(),  # noqa: B008 (patterns are frozen)
    ) -> None:
        embed_dim, num_heads = whole_number("embed_dim", embed_dim), whole_number("num_heads", num_heads)
        if num_heads > 0 and embed_dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}; it must divide embed_dim, which is {embed_dim}")
        if not isinstance(dropout, float | int) or not 0.0 <= dropout <= 1.0:
            raise ValueError(f"dropout is {dropout!r}; it must be a number in [0, 1] (a pattern is passed by name)")
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        check_fit(self, pattern)
        self.pattern = pattern

    @property
    def _qkv_same_embed_dim(self) -> bool:
        # PyTorch's encoder layers read this to decide whether to skip forward() and use the weights themselves. Once
        # there is a pattern the answer is no. While PyTorch's __init__ runs it is what the widths say.
        return bool(self.__dict__["_qkv_same_embed_dim"]) and "pattern" not in self.__dict__

    @_qkv_same_embed_dim.setter
    def _qkv_same_embed_dim(self, value: bool) -> None:
        self.__dict__["_qkv_same_embed_dim"] = value

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As in PyTorch: outputs like ``query``, and weights (b, t, s), or (b, h, t, s) unless averaged."""
        batched = self._check_inputs(query, key, value)
        same = query is key and key is value
        query, key, value = (self._batch_first(x) for x in (query, key, value))  # (b, t, width)
        t, s = query.shape[1], key.shape[1]
        check_masks(attn_mask, key_padding_mask, query.shape[0] if batched else None, self.num_heads, t, s)
        self._check_call(is_causal, attn_mask, t, s)
        q, k, v = self._project(query, key, value, same)
        k, v, extra = self._extra_keys(k, v)
        # The hint saves the mask, so that fused kernels can serve. Extra keys are visible to all: no causal mask then.
        hinted = is_causal and not need_weights and not extra
        padding = key_padding_mask if batched or key_padding_mask is None else key_padding_mask[None]
        mask = visible_keys(None if hinted else attn_mask, padding, self.num_heads)
        result = functional.attention(
            self._heads(q),
            self._heads(k),
            self._heads(v),
            self.pattern,
            attn_mask=with_extra_keys(mask, extra),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=hinted,
            return_weights=need_weights,
        )
        out, weights = result if isinstance(result, tuple) else (result, None)
        out = self.out_proj(out.transpose(1, 2).flatten(2))  # (b, t, e)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out[0], None if weights is None else weights[0]
        return out if self.batch_first else out.transpose(0, 1), weights

    def _batch_first(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)  # (b, h, t, d)

    def _project(self, query: Tensor, key: Tensor, value: Tensor, same: bool) -> tuple[Tensor, Tensor, Tensor]:
        """(b, t, width) -> (b, t, e), each with its part of the weights."""
        packed = self.__dict__["_qkv_same_embed_dim"]
        if packed and same:
            q, k, v = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
            return q, k, v
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = self.in_proj_weight.chunk(3) if packed else apart
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
        return q, k, v

    def _extra_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values (b, s, e) with what add_bias_kv and add_zero_attn put behind them, and how many."""
        keys, values = [k], [v]
        shape = (k.shape[0], 1, self.embed_dim)
        if self.bias_k is not None and self.bias_v is not None:
            keys.append(self.bias_k.to(k.dtype).expand(shape))
            values.append(self.bias_v.to(v.dtype).expand(shape))
        if self.add_zero_attn:
            keys.append(k.new_zeros(shape))
            values.append(v.new_zeros(shape))
        extra = len(keys) - 1
        return (torch.cat(keys, 1), torch.cat(values, 1), extra) if extra else (k, v, 0)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Refuses what cannot be attended to; says whether there is a batch axis."""
        for name, x, width in (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)):
            if not isinstance(x, Tensor):
                raise ValueError(f"{name} is a {type(x).__name__}; it must be a tensor")
            if x.is_nested:
                raise ValueError(
                    f"{name} is a nested tensor; semfocus takes padded ones with key_padding_mask "
                    "(in nn.TransformerEncoder: enable_nested_tensor=False, or focus the whole encoder)"
                )
            if x.ndim not in (2, 3) or x.ndim != query.ndim:
                raise ValueError(
                    f"{name} has {x.ndim} axes; query, key and value must all have 3, or all 2 without a batch"
                )
            if x.shape[-1] != width:
                raise ValueError(f"{name} has width {x.shape[-1]}; this layer was made for {width}")
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(
                f"value has shape {tuple(value.shape)}; all but its width must match key, {tuple(key.shape)}"
            )
        batch = 0 if self.batch_first else 1
        if query.ndim == 3 and query.shape[batch] != key.shape[batch]:
            raise ValueError(f"key has a batch of {key.shape[batch]}; query has {query.shape[batch]}")
        return query.ndim == 3

    def _check_call(self, is_causal: bool, attn_mask: Tensor | None, t: int, s: int) -> None:
        check_fit(self, self.pattern)
        if is_causal and attn_mask is None:
            raise ValueError(
                "is_causal is True but attn_mask is None; as in PyTorch it is a hint about attn_mask, so pass that too"
            )
        if is_causal and self.pattern.global_tokens:
            self.pattern.require(t, s, is_causal)
        if follows_positions(self.pattern) and t != s:
            raise ValueError(
                f"there are {t} queries and {s} keys; {self.pattern.label} follows positions, so both must be one "
                "sequence: use a pattern that follows scores, such as TopK, or leave this layer out "
                "(focus(model, pattern, layers=[...]))"
            )

    def extra_repr(self) -> str:
        return f"pattern={self.pattern.label}"


def check_fit(layer: torch.nn.MultiheadAttention, pattern: Pattern) -> None:
    """Refuses a pattern that has no meaning in this layer."""
    check_pattern(pattern)
    for argument, extra in (("add_bias_kv", layer.bias_k is not None), ("add_zero_attn", layer.add_zero_attn)):
        if extra and (follows_positions(pattern) or pattern.global_tokens):
            raise ValueError(
                f"{argument} is True; its extra key has no position, which {pattern.label} needs: use a pattern that "
                "follows scores, such as TopK"
            )
