"""An encoder that classifies, for a whole population at once.

Every weight has a leading model axis: weights (m, ...), tokens (m, b, t), logits (m, b, outputs, classes). A population
of one is the ordinary case. Members share their shapes; each has its own pattern, seed, activation and attention scale.
Shapes: m models, b batch, h heads, t tokens, d width, e = mlp width, n = b * t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional import attend
from ..patterns.base import Pattern
from ..randomness import Noise, absorb, dropout, key_of
from ..reference import Problem
from . import init
from .config import ModelConfig
from .positions import sinusoidal

EPS = 1e-5
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "mish": F.mish}
#: Up to this many token ids the embedding is a product with one-hot rows: the gradient of a look-up adds thousands of
#: rows onto a few, one at a time.
ONE_HOT_UP_TO = 64
# Where randomness enters; the number is part of what is drawn.
EMBEDDING_SITE, FIRST_BLOCK_SITE, SITES_PER_BLOCK = 0, 1, 4
WEIGHTS, ATTENTION_OUT, MLP_HIDDEN, MLP_OUT = range(SITES_PER_BLOCK)


class Linear(nn.Module):
    """One linear map per member: x (m, n, i) -> (m, n, o)."""

    def __init__(self, seeds: Sequence[int], name: str, inputs: int, outputs: int) -> None:
        super().__init__()
        drawn = [init.linear(seed, name, inputs, outputs) for seed in seeds]
        self.weight = nn.Parameter(torch.stack([w for w, _ in drawn]))  # (m, i, o)
        self.bias = nn.Parameter(torch.stack([b for _, b in drawn])[:, None])  # (m, 1, o)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Block(nn.Module):
    """Attention and MLP of one layer."""

    def __init__(self, config: ModelConfig, seeds: Sequence[int], name: str) -> None:
        super().__init__()
        inner = config.heads * config.width
        self.query = Linear(seeds, f"{name}.query", config.width, inner)
        self.key = Linear(seeds, f"{name}.key", config.width, inner)
        self.value = Linear(seeds, f"{name}.value", config.width, inner)
        self.output = Linear(seeds, f"{name}.output", inner, config.width)
        self.mlp_in = Linear(seeds, f"{name}.mlp_in", config.width, config.mlp_width)
        self.mlp_out = Linear(seeds, f"{name}.mlp_out", config.mlp_width, config.width)


class Transformer(nn.Module):
    """A population of encoders. ``configs``, ``patterns`` and ``seeds`` have one entry per member.

    >>> from semfocus import Full, ModelConfig, TopK, Transformer
    >>> config = ModelConfig(vocabulary=2, classes=2, width=8, mlp_width=8, blocks=1)
    >>> population = Transformer([config, config], [Full(), TopK(5)], seeds=[0, 0])
    >>> population(torch.zeros(2, 3, 10, dtype=torch.long)).shape  # 2 members, 3 examples, 10 tokens
    torch.Size([2, 3, 1, 2])
    """

    seeds: Tensor
    scales: Tensor

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
        self.patterns = [patterns] if isinstance(patterns, Pattern) else list(patterns)
        seeds = [seeds] if isinstance(seeds, int) else list(seeds)
        self.config = self._check(self.configs, self.patterns, seeds)
        self.global_tokens = self.patterns[0].global_tokens
        # The task's ids, PAD, the global tokens, and the tape's query token.
        c = self.config
        ids = c.vocabulary + 1 + self.global_tokens + (c.read_out == "tape")
        self.register_buffer("seeds", torch.tensor(seeds, dtype=torch.int64), persistent=False)
        scales = torch.tensor([config.attention_scale for config in self.configs], dtype=torch.float64)
        self.register_buffer("scales", scales[:, None, None, None, None], persistent=False)  # over (m, b, h, t, d)
        self.embedding = nn.Parameter(torch.stack([init.embedding(s, "embedding", ids, c.width) for s in seeds]))
        self.blocks = nn.ModuleList(Block(c, seeds, f"blocks.{i}") for i in range(c.blocks))
        self.read_out = Linear(seeds, "read_out", c.width, c.classes)
        with torch.no_grad():
            weights = [init.uniform(s, "read_out.weight", (c.width, c.classes), init.SMALL) for s in seeds]
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
        shared = configs[0].shared()
        for i, config in enumerate(configs):
            if config.shared() != shared:
                raise ValueError(f"configs[{i}] is {config}; all members must share all but activation and scale")
            if patterns[i].global_tokens != patterns[0].global_tokens:
                raise ValueError(f"patterns[{i}] is {patterns[i].label}; all members must have equal global_tokens")
        return shared

    def forward(self, tokens: Tensor, step: int | Tensor = 0) -> Tensor:
        """tokens (m, b, t), or (b, t) for all members alike -> logits (m, b, outputs, classes).

        ``step`` feeds the counter-based randomness: dropout when training, and random patterns always.
        """
        tokens = self._check_tokens(tokens)
        pad = tokens == self.config.vocabulary  # (m, b, t)
        tokens, pad = self._append(tokens, pad)
        key = absorb(absorb(key_of(self.seeds), int(self.training)), step)  # (m,)
        h = self._drop(self._embed(tokens), key, EMBEDDING_SITE)  # (m, b, t, d)
        visible = self._visible(pad)
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            h = self._block(h, block, visible, key, i)
        return self._read(h, pad)

    def _check_tokens(self, tokens: Tensor) -> Tensor:
        members = len(self.patterns)
        if (
            tokens.dtype != torch.int64
            or tokens.ndim not in (2, 3)
            or (tokens.ndim == 3 and tokens.shape[0] != members)
        ):
            raise ValueError(
                f"tokens is {tokens.dtype} {tuple(tokens.shape)}; it must be int64 (members, batch, length) "
                f"with {members} members, or (batch, length)"
            )
        # Looking at values would make a GPU wait; there the embedding's own check reports them.
        if tokens.device.type == "cpu" and tokens.numel():
            low, high = (int(x) for x in tokens.aminmax())
            if low < 0 or high > self.config.vocabulary:
                raise ValueError(
                    f"tokens holds {low if low < 0 else high}; ids go from 0 to {self.config.vocabulary} (which is PAD)"
                )
        return tokens if tokens.ndim == 3 else tokens.expand(members, *tokens.shape)

    def _append(self, tokens: Tensor, pad: Tensor) -> tuple[Tensor, Tensor]:
        """The tape's query tokens, then the global tokens; neither is padding."""
        c = self.config
        first_global = c.vocabulary + 1
        extra = [first_global + self.global_tokens] * c.outputs if c.read_out == "tape" else []
        extra += range(first_global, first_global + self.global_tokens)
        if not extra:
            return tokens, pad
        new = torch.tensor(extra, device=tokens.device).expand(*tokens.shape[:2], len(extra))
        return torch.cat([tokens, new], -1), F.pad(pad, (0, len(extra)))

    def _embed(self, tokens: Tensor) -> Tensor:
        _, ids, width = self.embedding.shape
        if ids <= ONE_HOT_UP_TO:
            one_hot = tokens.flatten(1)[..., None] == torch.arange(ids, device=tokens.device)  # (m, n, ids)
            rows = one_hot.to(self.embedding.dtype) @ self.embedding  # (m, n, d)
        else:
            rows = self.embedding.gather(1, tokens.flatten(1)[..., None].expand(-1, -1, width))
        h: Tensor = rows.view(*tokens.shape, width) * width**0.5
        return h + sinusoidal(tokens.shape[-1], width, tokens.device).to(h.dtype)

    def _visible(self, pad: Tensor) -> Tensor | None:
        """bool (m, b, 1, 1, t), or None if nothing is masked."""
        return ~pad[:, :, None, None] if self.config.mask_padding else None

    def _block(self, h: Tensor, block: Block, visible: Tensor | None, key: Tensor, index: int) -> Tensor:
        site = FIRST_BLOCK_SITE + SITES_PER_BLOCK * index
        if self.config.norm == "pre":
            attended = self._attention(_norm(h, 0.0 if index == 0 else EPS), block, visible, key, site)
            h = h + self._drop(attended, key, site + ATTENTION_OUT)
            return h + self._drop(self._mlp(_norm(h, EPS), block, key, site), key, site + MLP_OUT)
        h = _norm(h + self._drop(self._attention(h, block, visible, key, site), key, site + ATTENTION_OUT), EPS)
        return _norm(h + self._drop(self._mlp(h, block, key, site), key, site + MLP_OUT), EPS)

    def _attention(self, h: Tensor, block: Block, visible: Tensor | None, key: Tensor, site: int) -> Tensor:
        m, b, t, d = h.shape
        x = h.reshape(m, b * t, d)
        q, k, v = (
            part(x).view(m, b, t, self.config.heads, d).transpose(2, 3)  # (m, b, h, t, d)
            for part in (block.query, block.key, block.value)
        )
        q = q * self.scales
        noise = Noise(absorb(key, site + WEIGHTS), absorb(key_of(self.seeds), site + WEIGHTS))
        # Neighbours with the same pattern go together: a member's result does not depend on that.
        outputs = []
        for pattern, group in groupby(range(m), key=lambda i: self.patterns[i]):
            members = list(group)
            outputs.append(self._attend(q, k, v, pattern, visible, noise, slice(members[0], members[-1] + 1)))
        mixed = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
        out: Tensor = block.output(mixed.transpose(2, 3).reshape(m, b * t, -1))
        return out.view(m, b, t, d)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, visible: Tensor | None, noise: Noise, members: slice
    ) -> Tensor:
        problem = Problem(
            q=q[members],
            k=k[members],
            v=v[members],
            pattern=pattern,
            mask=None if visible is None else visible[members],
            is_causal=False,
            query_offset=0,
            scale=q.shape[-1] ** -0.5,
            dropout_p=self.config.dropout if self.training else 0.0,
            noise=Noise(noise.fresh[members], noise.fixed[members]),
        )
        return attend(problem)[0]

    def _mlp(self, h: Tensor, block: Block, key: Tensor, site: int) -> Tensor:
        m, b, t, d = h.shape
        hidden = block.mlp_in(h.reshape(m, b * t, d)).view(m, b, t, -1)
        hidden = self._drop(hidden, key, site + MLP_HIDDEN)
        parts = []
        for name, group in groupby(range(m), key=lambda i: self.configs[i].activation):
            members = list(group)
            parts.append(ACTIVATIONS[name](hidden[members[0] : members[-1] + 1]))
        hidden = torch.cat(parts) if len(parts) > 1 else parts[0]
        out: Tensor = block.mlp_out(hidden.view(m, b * t, -1))
        return out.view(m, b, t, d)

    def _drop(self, x: Tensor, key: Tensor, site: int) -> Tensor:
        return dropout(x, self.config.dropout, absorb(key, site)) if self.training else x

    def _read(self, h: Tensor, pad: Tensor) -> Tensor:
        """(m, b, t, d) -> logits (m, b, outputs, classes)."""
        m, b, t, _ = h.shape
        if self.config.read_out == "tape":
            end = t - self.global_tokens
            read = h[:, :, end - self.config.outputs : end]  # (m, b, outputs, d)
        elif self.config.pool_padding:
            read = h.mean(2, keepdim=True)
        else:
            real = (~pad)[..., None].to(h.dtype)  # (m, b, t, 1)
            read = (h * real).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp(min=1)
        logits: Tensor = self.read_out(read.reshape(m, b * self.config.outputs, -1))
        return logits.view(m, b, self.config.outputs, -1)


def _norm(h: Tensor, eps: float) -> Tensor:
    """LayerNorm without learned scale or shift."""
    return F.layer_norm(h, h.shape[-1:], eps=eps)
