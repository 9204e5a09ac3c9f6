"""The config of one run of a language model: everything its result depends on.

corpus = "my.txt"              # left out: the Python sources of this machine
[pattern]
name = "top_k"
k = 16
[model]
width = 320
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..patterns import Pattern
from ..patterns.full import Full
from ..text.tokens import BYTES
from ..training.protocol import plain_data, read_pattern, run_name
from ..training.strict import at_least, build, refuse_unknown

#: Steps that the rate needs after a warm-up: one with the largest, one with the smallest.
FALL = 2


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """How the text is cut into tokens, and how much of it is looked at."""

    tokenizer: Literal["bytes", "bpe"] = "bytes"  # BPE is trained on the training text
    vocabulary: int = BYTES
    megabytes: float = 2.0  # of the corpus, counted in characters
    sha256: str = ""  # of the corpus; filled in before a study trains

    def __post_init__(self) -> None:
        if self.tokenizer == "bytes" and self.vocabulary != BYTES:
            raise ValueError(f"vocabulary is {self.vocabulary}; bytes have {BYTES} (or choose tokenizer 'bpe')")
        if self.vocabulary < BYTES:
            raise ValueError(f"vocabulary is {self.vocabulary}; it must be at least {BYTES}, one for each byte")
        if not 0 < self.megabytes <= 100_000:
            raise ValueError(f"megabytes is {self.megabytes}; it must be above 0 and at most 100000")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape of the decoder."""

    width: int = 48
    blocks: int = 2
    heads: int = 2
    mlp_width: int = 0  # 0: four times the width
    context: int = 64  # tokens of a sequence
    attention_scale: float = 1.0  # multiplies the scores before selection and softmax

    def __post_init__(self) -> None:
        at_least(self, width=2, blocks=1, heads=1, mlp_width=0, context=2)
        if self.width % self.heads or self.width // self.heads % 2:
            raise ValueError(f"heads is {self.heads}; it must divide the width, {self.width}, into even parts")
        if not 0.0 < self.attention_scale < float("inf"):
            raise ValueError(f"attention_scale is {self.attention_scale}; it must be positive and finite")

    @property
    def inner(self) -> int:
        return self.mlp_width or 4 * self.width


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """AdamW. How the rate rises and falls from step to step, ``schedule`` says."""

    learning_rate: float = 3e-3
    weight_decay: float = 0.1  # of matrices
    warm_up: float = 0.1  # share of the steps
    clip: float = 1.0  # largest global norm of the gradient

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive and finite")
        if not 0.0 <= self.weight_decay < float("inf"):
            raise ValueError(f"weight_decay is {self.weight_decay}; it must be at least 0 and finite")
        if not 0.0 <= self.warm_up < 1.0:
            raise ValueError(f"warm_up is {self.warm_up}; it must lie in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class PassConfig:
    """One pass over as many training tokens, in equal stretches with an evaluation after each.

    In a run's curve an "epoch" is such a stretch: no token is seen twice.
    """

    tokens: int = 131_072
    batch: int = 16  # sequences of a step, over all processes
    epochs: int = 8  # stretches
    heldout: int = 32_768  # tokens of the validation text, evenly spread over it; all if there are fewer
    diagnose: int = 4  # validation sequences on which attention is measured at the beginning and the end; 0: none
    keep_weights: bool = True
    compiled: bool = True  # on a GPU
    parallel: Literal["ddp", "fsdp"] = "ddp"  # how several processes share a model

    def __post_init__(self) -> None:
        at_least(self, tokens=1, batch=1, epochs=1, heldout=1, diagnose=0)


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """One run."""

    corpus: str = ""  # a UTF-8 file; empty: the Python sources of this machine
    text: TextConfig = field(default_factory=TextConfig)
    pattern: Pattern = field(default_factory=Full)
    model: DecoderConfig = field(default_factory=DecoderConfig)
    optimiser: AdamConfig = field(default_factory=AdamConfig)
    train: PassConfig = field(default_factory=PassConfig)
    seed: int = 0
    precision: Literal["float32", "bfloat16"] = "float32"  # of matrix products and attention

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; it must be at least 0 and below 2^63")
        if self.pattern.global_tokens:
            raise ValueError(f"pattern is {self.pattern.label}; a decoder has no global tokens, use global_tokens=0")
        if self.steps < self.train.epochs:
            least = self.train.epochs * self.step_tokens
            raise ValueError(f"train.tokens is {self.train.tokens}; {self.train.epochs} epochs need at least {least}")
        if self.train.heldout < self.step_tokens:
            raise ValueError(f"train.heldout is {self.train.heldout}; one batch has {self.step_tokens} tokens")

    @property
    def step_tokens(self) -> int:
        return self.train.batch * self.model.context

    @property
    def steps(self) -> int:
        """Whole batches in ``train.tokens``."""
        return self.train.tokens // self.step_tokens

    @property
    def warm_up_steps(self) -> int:
        return round(self.optimiser.warm_up * self.steps)

    def steps_until(self, epoch: int) -> int:
        """Steps done at the end of a stretch; stretches differ by one step at most."""
        return epoch * self.steps // self.train.epochs

    @property
    def parameters(self) -> int:
        """Numbers that are trained; the pattern changes nothing about them.

        >>> LanguageConfig().parameters == 256 * 48 + 2 * (4 * 48 * 48 + 2 * 48 * 192 + 2 * 48) + 48
        True
        """
        m = self.model
        block = 4 * m.width**2 + 2 * m.width * m.inner + 2 * m.width
        return self.text.vocabulary * m.width + m.blocks * block + m.width

    def to_dict(self) -> dict[str, Any]:
        """Plain data that ``from_dict`` reads back as an equal config."""
        return plain_data(self)

    @property
    def hash(self) -> str:
        """The name of the run: equal configs, equal names. A user's pattern is known by its source, too."""
        return run_name(self.to_dict(), self.code)

    @property
    def code(self) -> tuple[type, ...]:
        """What may be a user's own."""
        return (type(self.pattern),)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> LanguageConfig:
        refuse_unknown(LanguageConfig, data)
        return build(LanguageConfig, {**data, "pattern": read_pattern(data.get("pattern", {"name": "full"}))})
