"""Binary numbers of any size as rows of bits."""

from __future__ import annotations

import numpy as np

from semfocus.tasks.base import BoolArray, IntArray

OPERATOR = 2


def draw_nonzero(rng: np.random.Generator, used: BoolArray) -> IntArray:
    """Fair bits where ``used``, zeros elsewhere, no row all zero: with m bits in use, uniform on 1 .. 2^m - 1."""
    bits: IntArray = rng.integers(0, 2, used.shape) * used
    while (zero := ~bits.any(axis=1)).any():
        bits[zero] = rng.integers(0, 2, used[zero].shape) * used[zero]
    return bits


def draw_operands(rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray, IntArray]:
    """Rows ``a OPERATOR b`` of two positive numbers, and the numbers themselves, each starting in column 0."""
    column = np.arange(length)
    place = rng.integers(1, length - 1, (n, 1))
    a = draw_nonzero(rng, column < place)
    b = draw_nonzero(rng, column > place)
    tokens = np.where(column == place, OPERATOR, a + b)
    source = column + place + 1
    shifted = np.where(source < length, np.take_along_axis(b, np.minimum(source, length - 1), axis=1), 0)
    return tokens, a, shifted


def carry(columns: IntArray) -> tuple[IntArray, IntArray]:
    """Column sums, least significant first, to bits of the same width and the number of significant ones."""
    bits = np.empty_like(columns)
    carried = np.zeros(len(columns), dtype=np.int64)
    for j, column in enumerate(columns.T):
        total = column + carried
        bits[:, j] = total & 1
        carried = total >> 1
    assert not carried.any(), "the columns must leave room for the last carry"
    return bits, columns.shape[1] - bits[:, ::-1].argmax(axis=1)


def split_operands(tokens: list[int]) -> tuple[int, int]:
    """The two numbers of one row ``a OPERATOR b``."""
    place = tokens.index(OPERATOR) if OPERATOR in tokens else 0
    if tokens.count(OPERATOR) != 1 or not 0 < place < len(tokens) - 1:
        raise ValueError(f"tokens is {tokens}; it needs one operator ({OPERATOR}) with bits on both sides")
    return from_bits(tokens[:place]), from_bits(tokens[place + 1 :])


def from_bits(bits: list[int]) -> int:
    """The number with these bits, least significant first."""
    return sum(bit << place for place, bit in enumerate(bits))


def to_bits(number: int) -> list[int]:
    """The bits of a number, least significant first and no more than needed; zero has one."""
    return [int(bit) for bit in reversed(f"{number:b}")]
