"""Counter-based randomness: every random bit is a pure function of (key, element).

Nothing here has a state, so what one model draws depends neither on who else is in its population, nor on how a long
input was cut into chunks, nor on a resume. A *key* is an int32 tensor; an index is *absorbed* into it by

    h <- mix(h + (index xor OFFSET) * GOLDEN)        (32-bit arithmetic that wraps)

one coordinate at a time, so a bit depends on its coordinates alone, never on the size of the tensor it sits in.
``mix`` is the avalanche function "lowbias32" (constants: C. Wellons, hash-prospector, public domain).

>>> bits(key_of(7), (2, 3)).equal(bits(key_of(7), (4, 5))[:2, :3])
True
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ._tracing import numbers_are_hidden

_GOLDEN = 0x9E3779B9 - 2**32  # 2^32 over the golden ratio, as a signed 32-bit number
# Keeps index 0 away from 0. An exclusive or, since compilers fold sums into index arithmetic that overflows.
_OFFSET = 0x3C6EF372
_MULTIPLIERS = (0x7FEB352D, 0x846CA68B - 2**32)


def mix(h: Tensor) -> Tensor:
    """Scrambles int32 values so that flipping one input bit flips every output bit with probability near 1/2."""
    if on_cpu(h):
        return torch.from_numpy(_mix_unsigned(h.numpy().view(np.uint32)).view(np.int32))
    # The masks make the shifts logical: int32 shifts carry the sign.
    h = multiply(h ^ ((h >> 16) & 0xFFFF), _MULTIPLIERS[0])
    h = multiply(h ^ ((h >> 15) & 0x1FFFF), _MULTIPLIERS[1])
    return h ^ ((h >> 16) & 0xFFFF)


def absorb(h: Tensor, index: Tensor | int) -> Tensor:
    """A new key for each index; ``h`` and ``index`` broadcast against one another."""
    if isinstance(index, Tensor):
        return mix(add(h, multiply(index.to(torch.int32) ^ _OFFSET, _GOLDEN)))
    return mix(add(h, _signed((index ^ _OFFSET) * _GOLDEN)))


def multiply(a: Tensor, constant: int) -> Tensor:
    """int32 product that wraps."""
    return _wrapped(a.long() * constant) if _undefined_overflow(a) else a * constant


def add(a: Tensor, b: Tensor | int) -> Tensor:
    """int32 sum that wraps."""
    return _wrapped(a.long() + b) if _undefined_overflow(a) else a + b


def _undefined_overflow(x: Tensor) -> bool:
    """Compiled for a CPU, the code is C++, where overflow of int32 may do anything; elsewhere it wraps."""
    return x.device.type == "cpu" and torch.compiler.is_compiling()


def _wrapped(wide: Tensor) -> Tensor:
    """The low 32 bits of int64 values, as int32."""
    return (((wide + 2**31) & 0xFFFFFFFF) - 2**31).to(torch.int32)


def on_cpu(x: Tensor) -> bool:
    """May NumPy work on this tensor's memory?"""
    return x.device.type == "cpu" and not numbers_are_hidden()


def _mix_unsigned(h: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The same in NumPy, which has unsigned arithmetic and less overhead: most of what dropout costs on a CPU."""
    mixed = np.right_shift(h, 16, out=np.empty_like(h))
    mixed ^= h
    shifted = np.empty_like(h)
    for multiplier, shift in zip(_MULTIPLIERS, (15, 16), strict=True):
        np.multiply(mixed, np.uint32(multiplier % 2**32), out=mixed)
        mixed ^= np.right_shift(mixed, shift, out=shifted)
    return mixed


def _signed(value: int) -> int:
    """The low 32 bits of a Python integer, as a signed number."""
    return (value + 2**31) % 2**32 - 2**31


def key_of(seed: int | Tensor, device: torch.device | str | None = None) -> Tensor:
    """The key of a 64-bit seed, or of a tensor of seeds (one key each)."""
    if not isinstance(seed, Tensor):
        seed = torch.full((), seed, dtype=torch.int64, device=device)  # a fill, so that a CUDA graph can hold it
    return absorb(mix(_wrapped(seed & 0xFFFFFFFF)), (seed >> 32).to(torch.int32))


def spread(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A key for each element of ``shape``, whose first axes are the key's own: (m,) -> (m, b, h)."""
    for size in shape[key.ndim :]:
        key = absorb(key.unsqueeze(-1), torch.arange(size, device=key.device))
    return key.expand(shape)


def bits(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform int32 values of the given shape, beginning with the key's own axes."""
    return spread(key, (*key.shape, *shape))


def dropout_numbers(p: float) -> tuple[int, float]:
    """The smallest int32 draw that dropout spares, and the factor of what it spares; p < 1."""
    return min(round(p * 2**32) - 2**31, 2**31 - 1), 1.0 / (1.0 - p)


def dropout_factor(rows: Tensor, columns: int, p: float, dtype: torch.dtype) -> Tensor:
    """What to multiply by, (..., columns): 0 with probability p, else 1 / (1 - p). ``rows`` has a key for each row."""
    if p >= 1.0:
        return torch.zeros(*rows.shape, columns, dtype=dtype, device=rows.device)
    limit, scale = dropout_numbers(p)
    drawn = absorb(rows.unsqueeze(-1), torch.arange(columns, device=rows.device))
    if on_cpu(drawn):  # NumPy again: the comparison and the conversion take a third of torch's time
        wide = torch.promote_types(dtype, torch.float32)  # NumPy has no bfloat16
        factor = torch.empty(drawn.shape, dtype=wide, device=drawn.device)
        np.multiply(drawn.numpy() >= np.int32(limit), scale, out=factor.numpy(), casting="unsafe")
        return factor.to(dtype)
    return (drawn >= limit).to(dtype) * scale


def dropout(x: Tensor, p: float, key: Tensor) -> Tensor:
    """Inverted dropout: x (m, ..., d) with a key (m,) for each member, or any x with a scalar key.

    The bits of an element depend on its row, counted through the axes before the last, and its place in the row.
    """
    if p == 0.0:
        return x
    rows = bits(key, (x.shape[key.ndim : -1].numel(),))
    return x * dropout_factor(rows, x.shape[-1], p, x.dtype).view(x.shape)


@dataclass(frozen=True)
class Noise:
    """The randomness of one attention call.

    ``fresh`` changes at every step, ``fixed`` stays the same through a run. Their axes are the first axes of the
    queries: a key for each member of a population, or a scalar for everything.
    """

    fresh: Tensor
    fixed: Tensor

    @staticmethod
    def none(device: torch.device) -> Noise:
        """For calls in which nothing is random from one time to the next."""
        zero = torch.zeros((), dtype=torch.int32, device=device)
        return Noise(zero, zero)

    @staticmethod
    def from_generator(generator: torch.Generator | None, device: torch.device) -> Noise:
        """One draw from a torch generator (the default one if None); the draw stays on its device."""
        source = device if generator is None else generator.device
        seed = torch.randint(-(2**63), 2**63 - 1, (), generator=generator, device=source).to(device)
        return Noise(key_of(seed), Noise.none(device).fixed)
