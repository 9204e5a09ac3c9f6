"""A decoder: each token is predicted from those before it, and each query keeps the keys its pattern chooses.

Normalisation first, rotary positions, no biases, the embedding also serves as read-out.
Shapes: b sequences, t tokens, h heads, d width, e = d / h, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import functional
from ..functional import problem_of
from ..model import init
from ..patterns.base import Pattern
from ..randomness import Noise, absorb, key_of
from ..reference import Problem
from .config import DecoderConfig

#: Deviation of the initial weights, times the square root of the width.
SPREAD = 0.5
#: A uniform distribution's half-width over its deviation.
HALF_WIDTH = 3**0.5
ROTARY_BASE = 10_000.0
#: What attention sees of a layer: q, k, v, each (b, h, t, e).
Seen = tuple[Tensor, Tensor, Tensor]
#: What attention gives, (b, h, t, e), and its weights where it has them.
Attended = tuple[Tensor, Tensor | None]


class Block(nn.Module):
    """h + attention(norm h), then h + mlp(norm h)."""

    def __init__(self, config: DecoderConfig, pattern: Pattern, seed: int, number: int) -> None:
        super().__init__()
        self.pattern, self.heads = pattern, config.heads
        self.scale = config.attention_scale * (config.width // config.heads) ** -0.5
        d, inner, spread = config.width, config.inner, SPREAD * config.width**-0.5
        small = spread * (2 * config.blocks) ** -0.5  # of what writes into the residual stream, whatever the depth
        self.attention_norm = nn.Parameter(torch.ones(d))
        self.qkv = _matrix(seed, f"blocks.{number}.qkv", (3 * d, d), spread)
        self.out = _matrix(seed, f"blocks.{number}.out", (d, d), small)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.up = _matrix(seed, f"blocks.{number}.up", (inner, d), spread)
        self.down = _matrix(seed, f"blocks.{number}.down", (d, inner), small)
        self.before: Callable[..., Seen] = before_attention
        self.attend: Callable[[Problem], Attended] = _attend
        self.after: Callable[..., Tensor] = after_attention

    def forward(self, h: Tensor, turns: Tensor, noise: Noise) -> Tensor:
        """h (b, t, d) -> the same shape. ``noise`` is an argument so that a layer computed twice draws the same."""
        q, k, v = self.before(h, self.attention_norm, self.qkv, turns, self.heads)
        mixed, _ = self.attend(self._problem(q, k, v, noise))  # (b, h, t, e)
        return self.after(h, mixed, self.out, self.mlp_norm, self.up, self.down)

    def _problem(self, q: Tensor, k: Tensor, v: Tensor, noise: Noise) -> Problem:
        problem = problem_of(q, k, v, self.pattern, None, 0.0, True, self.scale, False, 0, None, draws=False)
        return replace(problem, noise=noise)


def _attend(problem: Problem) -> Attended:
    """Looked up at each call: ``semfocus.diagnose`` watches there."""
    return functional.attend(problem)


def before_attention(h: Tensor, norm: Tensor, qkv: Tensor, turns: Tensor, heads: int) -> Seen:
    """(b, t, d) -> q, k, v (b, h, t, e), in one precision."""
    b, t, d = h.shape
    normed = F.rms_norm(h, (d,), norm.to(h.dtype))
    q, k, v = F.linear(normed, qkv).view(b, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4).unbind(0)
    return _turned(q, turns), _turned(k, turns), v


def after_attention(h: Tensor, mixed: Tensor, out: Tensor, norm: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """What attention gave, joined and added; then the MLP."""
    h = h + F.linear(mixed.transpose(1, 2).flatten(2), out)
    return h + F.linear(F.gelu(F.linear(F.rms_norm(h, h.shape[-1:], norm.to(h.dtype)), up)), down)


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary positions: pairs (i, i + e/2) of x (b, h, t, e) turn by the angle of their position."""
    cos, sin = turns.unbind(0)  # (t, e/2) each, float32: half precision would blur positions
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Decoder(nn.Module):
    """tokens (b, t) -> logits (b, t, v). Initial weights depend on the seed and their names alone."""

    turns: Tensor
    keys: Tensor

    def __init__(self, config: DecoderConfig, vocabulary: int, pattern: Pattern, seed: int) -> None:
        super().__init__()
        self.embedding = _matrix(seed, "embedding", (vocabulary, config.width), SPREAD * config.width**-0.5)
        self.blocks = nn.ModuleList(Block(config, pattern, seed, i) for i in range(config.blocks))
        self.norm = nn.Parameter(torch.ones(config.width))
        self.draws = pattern.random
        self.register_buffer("turns", _turns(config.context, config.width // config.heads), persistent=False)
        keys = absorb(key_of(seed), torch.arange(config.blocks))
        self.register_buffer("keys", keys, persistent=False)  # of what is random, one for each block

    def forward(self, tokens: Tensor, step: int | Tensor = 0, rows: Tensor | None = None) -> Tensor:
        """What a random pattern draws depends on the seed, on training or not, on ``step``, and on where each sequence
        stands in the whole batch: ``rows`` (b,) says it to those who see a part of the batch only.
        """
        if rows is None:
            rows = torch.arange(len(tokens), device=tokens.device)
        h = F.embedding(tokens, self.embedding)  # (b, t, d)
        for block, noise in zip(self.blocks, self._noise(step, rows), strict=True):
            h = block(h, self.turns[:, : tokens.shape[1]], noise)
        return F.linear(F.rms_norm(h, h.shape[-1:], self.norm), self.embedding)

    def _noise(self, step: int | Tensor, rows: Tensor) -> Iterator[Noise]:
        """For each block: its own keys for every row, and one that stays through the run."""
        fresh = torch.zeros_like(rows, dtype=torch.int32).expand(len(self.blocks), -1)  # (blocks, b)
        if self.draws:
            fresh = absorb(absorb(absorb(self.keys, int(self.training)), step)[:, None], rows)
        return map(Noise, fresh, self.keys)

    def compile_parts(self) -> None:
        """Compiles what stands before and after attention: one version serves all layers and all patterns."""
        before, after = _compiled()
        for block in self.blocks:
            assert isinstance(block, Block)
            block.before, block.after = before, after


@lru_cache(maxsize=1)
def _compiled() -> tuple[Callable[..., Seen], Callable[..., Tensor]]:
    return torch.compile(before_attention, dynamic=False), torch.compile(after_attention, dynamic=False)


def _turns(length: int, width: int) -> Tensor:
    """(2, length, width / 2): cosines and sines of position / base^(2i / width)."""
    rates = ROTARY_BASE ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.stack((angles.cos(), angles.sin())).float()


def _matrix(seed: int, name: str, shape: tuple[int, int], deviation: float) -> nn.Parameter:
    return nn.Parameter(init.uniform(seed, name, shape, HALF_WIDTH * deviation).float())
