"""An encoder that classifies, for a whole population at once.

Every weight has a leading model axis: weights (m, ...), tokens (m, b, t), logits (m, b, outputs, classes). A population
of one is the ordinary case. Members share their shapes; each has its own pattern, seed, activation and attention scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._checks import check_pattern
from ..functional import choose
from ..patterns.base import Pattern
from ..randomness import Noise, absorb, dropout, key_of, on_cpu
from ..reference import Problem
from . import init
from .block import EPS, FIRST_EPS, Block, Linear, Settings, product
from .config import ModelConfig
from .positions import sinusoidal

#: Up to this many token ids the embedding is a product with one-hot rows: the gradient of a look-up adds thousands of
#: rows onto a few, one at a time.
ONE_HOT_UP_TO = 64
# Where randomness enters; the number is part of what is drawn.
EMBEDDING_SITE, FIRST_BLOCK_SITE = 0, 1


def run_block(
    block: Block, h: Tensor, visible: Tensor | None, scales: Tensor, noise: Noise, eps: float, settings: Settings
) -> Tensor:
    """One block. A function of its own so that it can be compiled once and serve every layer."""
    out: Tensor = block(h, visible, scales, noise, eps, settings)
    return out


def run_keys(keys: Tensor, training: int, step: int | Tensor, sites: int) -> tuple[Tensor, Tensor]:
    """Of each site and member, the keys that change at every step and those that stay, each (sites, m)."""
    places = torch.arange(sites, device=keys.device)[:, None]
    fresh = absorb(absorb(keys, training), step)
    return absorb(fresh, places), absorb(keys, places)


def run_embedding(tokens: Tensor, table: Tensor, positions: Tensor, key: Tensor, dropout_p: float) -> Tensor:
    """tokens (m, b, t), table (m, ids, d), positions (t, d) -> (m, b, t, d), with dropout."""
    _, ids, width = table.shape
    if ids <= ONE_HOT_UP_TO:
        one_hot = tokens.flatten(1)[..., None] == torch.arange(ids, device=tokens.device)  # (m, n, ids)
        rows = product(one_hot.to(table.dtype), table)  # (m, n, d)
    else:
        rows = table.gather(1, tokens.flatten(1)[..., None].expand(-1, -1, width))
    return dropout(rows.view(*tokens.shape, width) * width**0.5 + positions, dropout_p, key)


class Transformer(nn.Module):
    """A population of encoders. ``configs``, ``patterns`` and ``seeds`` have one entry per member.

    >>> from semfocus import Full, ModelConfig, TopK, Transformer
    >>> config = ModelConfig(vocabulary=2, classes=2, width=8, mlp_width=8, blocks=1)
    >>> population = Transformer([config, config], [Full(), TopK(5)], seeds=[0, 0])
    >>> population(torch.zeros(2, 3, 10, dtype=torch.long)).shape  # 2 members, 3 examples, 10 tokens
    torch.Size([2, 3, 1, 2])
    """

    seeds: Tensor
    keys: Tensor
    scales: Tensor
    appended: Tensor

    def __init__(
        self,
        configs: ModelConfig | Sequence[ModelConfig],
        patterns: Pattern | Sequence[Pattern],
        seeds: int | Sequence[int] = 0,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.configs = [configs] if isinstance(configs, ModelConfig) else list(configs)
        self.patterns = list(patterns) if isinstance(patterns, Sequence) else [patterns]
        seeds = [seeds] if isinstance(seeds, int) else list(seeds)
        self.config = self._check(self.configs, self.patterns, seeds)
        self.global_tokens = self.patterns[0].global_tokens
        c = self.config
        # The task's ids, PAD, the tape's query token if there is a tape, the global tokens.
        tape = c.vocabulary + 1
        first_global = tape + (c.read_out == "tape")
        ids = first_global + self.global_tokens
        appended = [tape] * (c.outputs if c.read_out == "tape" else 0) + list(range(first_global, ids))
        self.register_buffer("appended", torch.tensor(appended, dtype=torch.int64), persistent=False)
        self.register_buffer("seeds", torch.tensor(seeds, dtype=torch.int64), persistent=False)
        self.register_buffer("keys", key_of(self.seeds), persistent=False)  # (m,)
        scales = torch.tensor([config.attention_scale for config in self.configs], dtype=torch.float64)
        self.register_buffer("scales", scales[:, None, None, None, None], persistent=False)  # over (m, b, h, t, d)
        rows = init.each(seeds, lambda s: init.embedding(s, "embedding", ids, c.width))
        self.embedding = nn.Parameter(torch.stack(rows))
        self.blocks = nn.ModuleList(Block(c, seeds, f"blocks.{i}") for i in range(c.blocks))
        self.read_out = Linear(seeds, ["read_out"], c.width, c.classes)
        self.run_block: Callable[..., Tensor] = run_block
        self.run_embedding: Callable[..., Tensor] = run_embedding
        self.run_keys: Callable[..., tuple[Tensor, Tensor]] = run_keys
        with torch.no_grad():
            weights = init.each(seeds, lambda s: init.uniform(s, "read_out.weight", (c.width, c.classes), init.SMALL))
            self.read_out.weight.copy_(torch.stack(weights))
            self.read_out.bias.zero_()
        self.to(device=device, dtype=dtype)

    @staticmethod
    def _check(configs: list[ModelConfig], patterns: list[Pattern], seeds: list[int]) -> ModelConfig:
        if not len(configs) == len(patterns) == len(seeds) > 0:
            raise ValueError(
                f"configs, patterns and seeds have {len(configs)}, {len(patterns)} and {len(seeds)} entries; "
                "give one of each per member"
            )
        for i, pattern in enumerate(patterns):
            check_pattern(pattern, f"patterns[{i}]")
        shared = configs[0].shared()
        for i, config in enumerate(configs):
            if config.shared() != shared:
                raise ValueError(f"configs[{i}] is {config}; all members must share all but activation and scale")
            if patterns[i].global_tokens != patterns[0].global_tokens:
                raise ValueError(f"patterns[{i}] is {patterns[i].label}; all members must have equal global_tokens")
        return shared

    def forward(self, tokens: Tensor, step: int | Tensor = 0) -> Tensor:
        """tokens (m, b, t), or (b, t) for all members alike -> logits (m, b, outputs, classes).

        ``step`` feeds the counter-based randomness: dropout when training, and random patterns always. Count it up in
        a training loop: equal steps draw equal bits.
        """
        tokens = self._check_tokens(tokens)
        pad = tokens == self.config.vocabulary  # (m, b, t)
        tokens, pad = self._append(tokens, pad)
        fresh, fixed = self.run_keys(self.keys, int(self.training), step, 1 + len(self.blocks))  # each (sites, m)
        dropout_p = self.config.dropout if self.training else 0.0
        positions = sinusoidal(tokens.shape[-1], self.config.width, tokens.device, self.embedding.dtype)
        h = self.run_embedding(tokens, self.embedding, positions, fresh[EMBEDDING_SITE], dropout_p)
        visible = ~pad[:, :, None, None] if self.config.mask_padding else None  # (m, b, 1, 1, t)
        settings = Settings.of(self.configs, self.patterns, self.training)
        settings = settings.for_inputs(h, self.config.mlp_width, visible is not None)
        for i, block in enumerate(self.blocks):
            noise = Noise(fresh[FIRST_BLOCK_SITE + i], fixed[FIRST_BLOCK_SITE + i])
            h = self.run_block(block, h, visible, self.scales, noise, EPS if i else FIRST_EPS, settings)
        return self._read(h, pad)

    def implementation(self, member: int, shape: tuple[int, ...], training: bool, compiled: bool = False) -> str:
        """What "auto" chooses for a member whose queries have this shape (members, batch, heads, length, width).

        "block": not only for its attention, but for what surrounds it as well there are kernels.
        """
        like = self.embedding.detach()[0, 0, 0].expand(shape)
        settings = Settings.of(self.configs, self.patterns, training)
        if settings.for_inputs(like[:, :, 0], self.config.mlp_width, self.config.mask_padding).fused_attention:
            return "block"
        problem = Problem(
            q=like,
            k=like,
            v=like,
            pattern=self.patterns[member],
            mask=like[..., 0, :1, :1].bool() if self.config.mask_padding else None,
            is_causal=False,
            query_offset=0,
            scale=1.0,
            dropout_p=self.config.dropout if training else 0.0,
            noise=Noise.none(like.device),
            soft_cap=self.config.soft_cap,
        )
        return choose(problem, with_weights=False, compiled=compiled)

    def _check_tokens(self, tokens: Tensor) -> Tensor:
        members = len(self.patterns)
        if not isinstance(tokens, Tensor):
            raise ValueError(f"tokens is {tokens!r}; it must be an int64 tensor (members, batch, length)")
        fits = tokens.ndim == 2 or (tokens.ndim == 3 and tokens.shape[0] == members)
        if tokens.dtype != torch.int64 or not fits or tokens.shape[-1] == 0:
            raise ValueError(
                f"tokens is {tokens.dtype} {tuple(tokens.shape)}; it must be int64 (members, batch, length) "
                f"with {members} members, or (batch, length)"
            )
        # Not on a GPU, which looking at values would make wait; there an id out of range embeds as zero or fails.
        if on_cpu(tokens) and tokens.numel():
            low, high = (int(x) for x in tokens.aminmax())
            if low < 0 or high > self.config.vocabulary:
                raise ValueError(
                    f"tokens holds {low if low < 0 else high}; ids go from 0 to {self.config.vocabulary} (which is PAD)"
                )
        return tokens if tokens.ndim == 3 else tokens.expand(members, *tokens.shape)

    def _append(self, tokens: Tensor, pad: Tensor) -> tuple[Tensor, Tensor]:
        """The tape's query tokens, then the global tokens; neither is padding."""
        if not len(self.appended):
            return tokens, pad
        new = self.appended.expand(*tokens.shape[:2], -1)
        return torch.cat([tokens, new], -1), F.pad(pad, (0, len(self.appended)))

    def _read(self, h: Tensor, pad: Tensor) -> Tensor:
        """(m, b, t, d) -> logits (m, b, outputs, classes)."""
        m, b, t, d = h.shape
        if self.config.read_out == "tape":
            end = t - self.global_tokens
            read = h[:, :, end - self.config.outputs : end]  # (m, b, outputs, d)
        elif self.config.pool_padding:
            read = h.mean(2, keepdim=True)
        else:
            real = (~pad)[..., None].to(h.dtype)  # (m, b, t, 1)
            read = (h * real).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp(min=1)
        logits: Tensor = self.read_out(read.reshape(m, b * self.config.outputs, d))
        return logits.view(m, b, self.config.outputs, self.config.classes)
