"""The knobs of one model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from ..patterns.base import whole_number
from ..registry import suggestion

Activation = Literal["relu", "gelu", "mish"]
Norm = Literal["pre", "post"]
ReadOut = Literal["mean", "tape"]

#: Factors beyond these are no number, or 0, in float32.
SMALLEST, LARGEST = 1e-30, 1e30


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What a user may choose about a model. The defaults are the paper's (NNCH), but for padding, which is masked."""

    width: int = 64
    mlp_width: int = 64
    blocks: int = 5
    heads: int = 1  # each of full width
    activation: Activation = "relu"
    norm: Norm = "pre"
    dropout: float = 0.01
    attention_scale: float = 1.0  # multiplies the scores before selection and softmax
    cosine_scores: bool = False  # queries and keys are normalised: a score is their cosine, times the scale
    soft_cap: float = 0.0  # c > 0: scores z become c tanh(z / c) before selection and softmax
    read_out: ReadOut = "mean"  # "tape": one query token per output is appended and read
    mask_padding: bool = True  # PAD is invisible as a key
    pool_padding: bool = False  # PAD enters the mean of the read-out

    def __post_init__(self) -> None:
        for name, low in (("width", 2), ("mlp_width", 1), ("blocks", 1), ("heads", 1)):
            whole_number(name, getattr(self, name), low)
        for name, choices in (("activation", Activation), ("norm", Norm), ("read_out", ReadOut)):
            value = getattr(self, name)
            if value not in get_args(choices):
                raise ValueError(f"{name} is {value!r}; {suggestion(value, get_args(choices))}")
        for name in ("mask_padding", "pool_padding", "cosine_scores"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        if not isinstance(self.dropout, float | int) or not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is {self.dropout!r}; it must be a number in [0, 1)")
        scale = self.attention_scale
        if not isinstance(scale, float | int) or not SMALLEST <= scale <= LARGEST:
            raise ValueError(f"attention_scale is {scale!r}; it must be a number from {SMALLEST:g} to {LARGEST:g}")
        cap = self.soft_cap
        if not isinstance(cap, float | int) or not (cap == 0.0 or SMALLEST <= cap <= LARGEST):
            raise ValueError(f"soft_cap is {cap!r}; it must be 0 (no cap) or from {SMALLEST:g} to {LARGEST:g}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelOptions):
    """One encoder: its options, and what its task asks of it.

    Token ids: 0 .. vocabulary - 1 are the task's, ``vocabulary`` is PAD; then the tape's and the global tokens'.
    """

    vocabulary: int
    classes: int
    outputs: int = 1  # query tokens of the tape

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocabulary", "classes", "outputs"):
            whole_number(name, getattr(self, name), 1)
        if self.read_out == "mean" and self.outputs != 1:
            raise ValueError(f"outputs is {self.outputs}; the mean read-out gives 1, read_out='tape' gives more")

    def shared(self) -> ModelConfig:
        """What all members of a population must have in common: everything but activation and attention scale."""
        return dataclasses.replace(self, activation="relu", attention_scale=1.0)
