"""Sizes of tiles and grids. Triton's own functions for them are made for kernels, and slow on the host."""

from __future__ import annotations

#: Keys a word of kept bits holds.
BITS = 32
#: Registers of a thread with which three programs of 128 threads share a multiprocessor.
THREE_PROGRAMS = 168


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def padded(n: int, least: int = 1) -> int:
    """The smallest of ``least``, 2 ``least``, 4 ``least``, ... that holds n: padded(40, 16) is 64."""
    size = least
    while size < n:
        size *= 2
    return size
