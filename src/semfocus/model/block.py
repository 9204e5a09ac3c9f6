"""One layer of the encoder, for a whole population: attention, then an MLP, each with a residual connection.

Shapes: m models, b batch, h heads, t tokens, d width, e = mlp width, n = b * t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._tracing import no_derivative_rules
from ..functional import attend
from ..kernels import halves
from ..patterns.base import Pattern
from ..randomness import Noise, absorb, dropout
from ..reference import Problem, kept_keys, raw_scores
from . import init
from .config import ModelConfig

V = TypeVar("V")

EPS = 1e-5
#: The first attention norm had eps 0 in the paper's runs. This changes no digit of float32, but where dropout has set a
#: whole row to zero, 0 would give NaN.
FIRST_EPS = 1e-12
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "mish": F.mish}
#: Multiprocessors of a large GPU, about; and the fewest rows that a part of a weight gradient sums over.
MULTIPROCESSORS, SHORTEST_PART = 128, 512
# Where randomness enters a block; the number is part of what is drawn.
WEIGHTS, ATTENTION_OUT, MLP_HIDDEN, MLP_OUT = range(4)


@dataclass(frozen=True)
class Settings:
    """What a block needs to know beside its weights. Runs are (value, first member, last member + 1)."""

    heads: int
    norm: str
    dropout: float  # 0 when evaluating
    cosine_scores: bool
    soft_cap: float
    patterns: tuple[tuple[Pattern, int, int], ...]
    activations: tuple[tuple[str, int, int], ...]
    keeps: halves.Keeps | None = None  # if one kernel serves the attention half
    spans: halves.Spans | None = None  # if several do, because examples are long
    bends: halves.Bends | None = None  # if one serves the other half

    @staticmethod
    def of(configs: Sequence[ModelConfig], patterns: Sequence[Pattern], training: bool) -> Settings:
        return Settings(
            heads=configs[0].heads,
            norm=configs[0].norm,
            dropout=configs[0].dropout if training else 0.0,
            cosine_scores=configs[0].cosine_scores,
            soft_cap=configs[0].soft_cap,
            patterns=_runs(patterns),
            activations=_runs([config.activation for config in configs]),
        )

    def for_inputs(self, h: Tensor, mlp_width: int, masked: bool) -> Settings:
        """With the kernels that serve a block on h (m, b, t, d)."""
        if self.norm != "pre":
            return self
        plain = not self.cosine_scores and not self.soft_cap
        return replace(
            self,
            keeps=halves.keeps(h, self.patterns, self.heads, masked) if plain else None,
            spans=halves.spans(h, self.patterns, masked) if plain else None,
            bends=halves.bends(h, mlp_width, self.activations),
        )

    @property
    def fused_attention(self) -> bool:
        return self.keeps is not None or self.spans is not None

    @property
    def fused(self) -> bool:
        """Is there nothing left to compile?"""
        return self.fused_attention and self.bends is not None and not (self.keeps and any(self.keeps.chosen))


def _runs(values: Sequence[V]) -> tuple[tuple[V, int, int], ...]:
    """Neighbours with equal values go together: ``[a, a, b]`` -> ``((a, 0, 2), (b, 2, 3))``."""
    starts = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    return tuple((values[i], i, end) for i, end in zip(starts, [*starts[1:], len(values)], strict=True))


class Linear(nn.Module):
    """One linear map per member: x (m, n, i) -> (m, n, o). With several names: several maps side by side."""

    def __init__(self, seeds: Sequence[int], names: Sequence[str], inputs: int, outputs: int) -> None:
        super().__init__()
        drawn = init.each(seeds, lambda seed: [init.linear(seed, name, inputs, outputs) for name in names])
        self.weight = nn.Parameter(torch.stack([torch.cat([w for w, _ in maps], -1) for maps in drawn]))  # (m, i, o)
        self.bias = nn.Parameter(torch.stack([torch.cat([b for _, b in maps]) for maps in drawn])[:, None])  # (m, 1, o)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight) + self.bias  # baddbmm would copy the bias to full size first


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x (m, n, i) times weight (m, i, o). Where few members leave a GPU idle, the weights' gradient is cut into parts.

    That gradient sums over n, and one long sum per member keeps only a few multiprocessors busy.
    """
    m, n, i = x.shape
    cut = x.device.type == "cuda" and no_derivative_rules() is None
    parts = gradient_parts(m, n, i, weight.shape[-1]) if cut else 1
    if parts == 1:
        return torch.bmm(x, weight)
    out: Tensor = SplitProduct.apply(x, weight, parts)  # type: ignore[no-untyped-call]
    return out


def gradient_parts(members: int, n: int, inputs: int, outputs: int) -> int:
    """1 where the members fill a GPU; else the fewest equal parts of n that fill it twice and are not too short."""
    tiles = members * -(-inputs // 64) * -(-outputs // 64)
    if tiles >= MULTIPROCESSORS:
        return 1
    useful = [parts for parts in range(1, n // SHORTEST_PART + 1) if n % parts == 0]
    enough = [parts for parts in useful if parts * tiles >= 2 * MULTIPROCESSORS]
    return enough[0] if enough else max(useful, default=1)


class SplitProduct(torch.autograd.Function):
    """``torch.bmm``, whose gradient for the weights is a sum of products over parts of the rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, parts: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parts = parts
        return torch.bmm(x, weight)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, Tensor, None]:
        x, weight = ctx.saved_tensors
        m, n, i = x.shape
        d_x = torch.bmm(d_out, weight.mT) if ctx.needs_input_grad[0] else None
        cut = (m * ctx.parts, n // ctx.parts, -1)
        d_weight = torch.bmm(x.reshape(cut).mT, d_out.reshape(cut))  # (m * parts, i, o)
        return d_x, d_weight.view(m, ctx.parts, i, -1).sum(1), None


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
            h = self._attention_half(h, visible, scales, noise, first_eps, settings)
            return self._mlp_half(h, noise, settings)
        h = _norm(h + _drop(self.attention(h, visible, scales, noise, settings), noise, ATTENTION_OUT, settings), EPS)
        return _norm(h + _drop(self.mlp(h, noise, settings), noise, MLP_OUT, settings), EPS)

    def problems(
        self, h: Tensor, visible: Tensor | None, scales: Tensor, noise: Noise, first_eps: float, settings: Settings
    ) -> list[tuple[Problem, int, int]]:
        """The attention calls that ``forward`` makes with these arguments, each with its first and last + 1 member."""
        return self._problems(_norm(h, first_eps) if settings.norm == "pre" else h, visible, scales, noise, settings)

    def _problems(
        self, h: Tensor, visible: Tensor | None, scales: Tensor, noise: Noise, settings: Settings
    ) -> list[tuple[Problem, int, int]]:
        m, b, t, d = h.shape
        qkv = self.qkv(h.reshape(m, b * t, d)).view(m, b, t, 3, settings.heads, d)
        q, k, v = qkv.permute(3, 0, 1, 4, 2, 5).unbind(0)  # each (m, b, h, t, d)
        if settings.cosine_scores:  # norms of d^(1/4): the scale of 1/sqrt(d) makes their product a cosine
            q, k = (F.normalize(x, dim=-1) * d**0.25 for x in (q, k))
        fresh, fixed = absorb(noise.fresh, WEIGHTS), absorb(noise.fixed, WEIGHTS)
        problems = []
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
                soft_cap=settings.soft_cap,
                packed=None if settings.cosine_scores else qkv[start:stop],
            )
            problems.append((problem, start, stop))
        return problems

    def attention(self, h: Tensor, visible: Tensor | None, scales: Tensor, noise: Noise, settings: Settings) -> Tensor:
        m, b, t, d = h.shape
        parts = [attend(problem)[0] for problem, _, _ in self._problems(h, visible, scales, noise, settings)]
        mixed = torch.cat(parts) if len(parts) > 1 else parts[0]
        out: Tensor = self.output(mixed.transpose(2, 3).reshape(m, b * t, settings.heads * d))
        return out.view(m, b, t, d)

    def _attention_half(
        self, h: Tensor, visible: Tensor | None, scales: Tensor, noise: Noise, eps: float, settings: Settings
    ) -> Tensor:
        """h + dropout(attention(norm(h)))"""
        keeps, spans = settings.keeps, settings.spans
        if keeps is None and spans is None:
            mixed = self.attention(_norm(h, eps), visible, scales, noise, settings)
            return h + _drop(mixed, noise, ATTENTION_OUT, settings)
        from ..kernels import attention_half, long_half  # noqa: F401 (import Triton, register the operators)

        mask = None if visible is None else visible[:, :, 0, 0]  # (m, b, t)
        weights = (self.qkv.weight, self.qkv.bias, self.output.weight, self.output.bias)
        inputs = (h, *weights, scales.flatten(), noise.fresh, mask)
        out: Tensor
        if keeps is not None:
            chosen = None
            if any(keeps.chosen):
                chosen = self._choices(_norm(h.detach(), eps), visible, scales, noise, settings, keeps.chosen)
            out = torch.ops.semfocus.attention_half(
                *inputs, keeps.window, keeps.budgets, chosen, keeps.first_global, eps, settings.dropout
            )[0]
        else:
            assert spans is not None
            out = torch.ops.semfocus.long_half(
                *inputs, spans.windows, spans.ends, spans.budgets, spans.windowed, spans.first_global, eps,
                settings.dropout,
            )[0]  # fmt: skip
        return out

    @torch.no_grad()
    def _choices(
        self, h: Tensor, visible: Tensor | None, scales: Tensor, noise: Noise, settings: Settings,
        wanted: Sequence[bool],
    ) -> Tensor:  # fmt: skip
        """int32 (m, b, t, words): the keys that the patterns choose, as bits; nothing for runs that are not wanted."""
        m, b, t, _ = h.shape
        bits = torch.zeros(m, b, t, -(-t // 32), dtype=torch.int32, device=h.device)
        problems = self._problems(h, visible, scales, noise, settings)
        for (problem, start, stop), needed in zip(problems, wanted, strict=True):
            if needed:
                kept = kept_keys(problem, problem.q, problem.k, raw_scores(problem, problem.q, problem.k))
                bits[start:stop] = halves.as_bits(kept.expand(stop - start, b, 1, t, t)[:, :, 0])
        return bits

    def _mlp_half(self, h: Tensor, noise: Noise, settings: Settings) -> Tensor:
        """h + dropout(mlp(norm(h)))"""
        bends = settings.bends
        if bends is None:
            return h + _drop(self.mlp(_norm(h, EPS), noise, settings), noise, MLP_OUT, settings)
        from ..kernels import mlp_half  # noqa: F401 (imports Triton, registers the operator)

        weights = (self.mlp_in.weight, self.mlp_in.bias, self.mlp_out.weight, self.mlp_out.bias)
        out: Tensor = torch.ops.semfocus.mlp_half(
            h.flatten(1, 2), *weights, noise.fresh, bends.kinds, bends.present, EPS, settings.dropout
        )
        return out.view(h.shape)

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
