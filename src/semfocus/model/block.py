"""One layer of the encoder, for a whole population: attention, then an MLP, each with a residual connection.

Shapes: m models, b batch, h heads, t tokens, d width, e = mlp width, n = b * t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional import attend
from ..patterns.base import Pattern
from ..randomness import Noise, absorb, dropout
from ..reference import Problem
from . import init
from .config import ModelConfig

V = TypeVar("V")

EPS = 1e-5
#: The first attention norm had eps 0 in the paper's runs. This changes no digit of float32, but where dropout has set a
#: whole row to zero, 0 would give NaN.
FIRST_EPS = 1e-12
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "mish": F.mish}
# Where randomness enters a block; the number is part of what is drawn.
WEIGHTS, ATTENTION_OUT, MLP_HIDDEN, MLP_OUT = range(4)


@dataclass(frozen=True)
class Settings:
    """What a block needs to know beside its weights. Runs are (value, first member, last member + 1)."""

    heads: int
    norm: str
    dropout: float  # 0 when evaluating
    patterns: tuple[tuple[Pattern, int, int], ...]
    activations: tuple[tuple[str, int, int], ...]

    @staticmethod
    def of(configs: Sequence[ModelConfig], patterns: Sequence[Pattern], training: bool) -> Settings:
        return Settings(
            heads=configs[0].heads,
            norm=configs[0].norm,
            dropout=configs[0].dropout if training else 0.0,
            patterns=_runs(patterns),
            activations=_runs([config.activation for config in configs]),
        )


def _runs(values: Sequence[V]) -> tuple[tuple[V, int, int], ...]:
    """Neighbours with equal values go together: ``[a, a, b]`` -> ``((a, 0, 2), (b, 2, 3))``."""
    runs = []
    for value, group in groupby(range(len(values)), key=values.__getitem__):
        members = list(group)
        runs.append((value, members[0], members[-1] + 1))
    return tuple(runs)


class Linear(nn.Module):
    """One linear map per member: x (m, n, i) -> (m, n, o). With several names: several maps side by side."""

    def __init__(self, seeds: Sequence[int], names: Sequence[str], inputs: int, outputs: int) -> None:
        super().__init__()
        drawn = [[init.linear(seed, name, inputs, outputs) for name in names] for seed in seeds]
        self.weight = nn.Parameter(torch.stack([torch.cat([w for w, _ in maps], -1) for maps in drawn]))  # (m, i, o)
        self.bias = nn.Parameter(torch.stack([torch.cat([b for _, b in maps]) for maps in drawn])[:, None])  # (m, 1, o)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, self.weight) + self.bias  # baddbmm would copy the bias to full size first


class Block(nn.Module):
    """Attention and MLP. ``qkv`` holds the maps to queries, keys and values side by side; all heads have width d."""

    def __init__(self, config: ModelConfig, seeds: Sequence[int], name: str) -> None:
        super().__init__()
        inner = config.heads * config.width
        self.qkv = Linear(seeds, [f"{name}.{part}" for part in ("query", "key", "value")], config.width, inner)
        self.output = Linear(seeds, [f"{name}.output"], inner, config.width)
        self.mlp_in = Linear(seeds, [f"{name}.mlp_in"], config.width, config.mlp_width)
        self.mlp_out = Linear(seeds, [f"{name}.mlp_out"], config.mlp_width, config.width)

    def forward(
        self, h: Tensor, visible: Tensor | None, scales: Tensor, noise: Noise, first_eps: float, settings: Settings
    ) -> Tensor:
        """h (m, b, t, d) -> the same shape. ``noise`` has a key per member; ``first_eps`` is the attention norm's."""
        if settings.norm == "pre":
            h = h + _drop(
                self.attention(_norm(h, first_eps), visible, scales, noise, settings), noise, ATTENTION_OUT, settings
            )
            return h + _drop(self.mlp(_norm(h, EPS), noise, settings), noise, MLP_OUT, settings)
        h = _norm(h + _drop(self.attention(h, visible, scales, noise, settings), noise, ATTENTION_OUT, settings), EPS)
        return _norm(h + _drop(self.mlp(h, noise, settings), noise, MLP_OUT, settings), EPS)

    def attention(self, h: Tensor, visible: Tensor | None, scales: Tensor, noise: Noise, settings: Settings) -> Tensor:
        m, b, t, d = h.shape
        qkv = self.qkv(h.reshape(m, b * t, d)).view(m, b, t, 3, settings.heads, d)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5).unbind(0)  # each (m, b, h, t, d)
        fresh, fixed = absorb(noise.fresh, WEIGHTS), absorb(noise.fixed, WEIGHTS)
        parts = []
        for pattern, start, stop in settings.patterns:
            problem = Problem(
                q=q[start:stop],
                k=k[start:stop],
                v=v[start:stop],
                pattern=pattern,
                mask=None if visible is None else visible[start:stop],
                is_causal=False,
                query_offset=0,
                scale=scales[start:stop] * d**-0.5,
                dropout_p=settings.dropout,
                noise=Noise(fresh[start:stop], fixed[start:stop]),
            )
            parts.append(attend(problem)[0])
        mixed = torch.cat(parts) if len(parts) > 1 else parts[0]
        out: Tensor = self.output(mixed.transpose(2, 3).reshape(m, b * t, settings.heads * d))
        return out.view(m, b, t, d)

    def mlp(self, h: Tensor, noise: Noise, settings: Settings) -> Tensor:
        m, b, t, d = h.shape
        hidden = self.mlp_in(h.reshape(m, b * t, d))
        hidden = hidden.view(m, b, t, hidden.shape[-1])
        hidden = _drop(hidden, noise, MLP_HIDDEN, settings)
        parts = [ACTIVATIONS[name](hidden[start:stop]) for name, start, stop in settings.activations]
        hidden = torch.cat(parts) if len(parts) > 1 else parts[0]
        out: Tensor = self.mlp_out(hidden.view(m, b * t, hidden.shape[-1]))
        return out.view(m, b, t, d)


def _norm(h: Tensor, eps: float) -> Tensor:
    """LayerNorm without learned scale or shift."""
    return F.layer_norm(h, h.shape[-1:], eps=eps)


def _drop(x: Tensor, noise: Noise, site: int, settings: Settings) -> Tensor:
    return dropout(x, settings.dropout, absorb(noise.fresh, site)) if settings.dropout else x
