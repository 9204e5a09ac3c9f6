"""Stack manipulation: deterministic context-free."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from semfocus.tasks._terminator import terminate, terminated, up_to_terminator
from semfocus.tasks.base import IntArray, Task

POP, PUSH_ZERO, PUSH_ONE = 2, 3, 4


@dataclass(frozen=True)
class StackManipulation(Task):
    """The stack, top first, after a series of actions on it.

    Tokens are the bits of a stack from bottom to top, then actions: 2 pops, 3 pushes a 0, 4 pushes a 1. The height of
    the first stack is uniform, leaving room for at least one action; bits and actions are each equally likely. Popping
    an empty stack does nothing. Targets are the final stack from top to bottom, the terminator 2, and zeros up to one
    more than the number of tokens; the first target is thus the top of the stack, or 2 if it is empty.

    The stack 0 1 (top) loses its 1 and gains a 1 and a 0:

    >>> StackManipulation().solve([0, 1, 2, 4, 3])
    [0, 1, 0, 2, 0, 0]
    """

    vocabulary = 5
    num_classes = 3
    minimum_length = 2

    def output_length(self, length: int) -> int:
        return length + 1

    def answer_mask(self, targets: torch.Tensor) -> torch.Tensor:
        return up_to_terminator(targets)

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        height = rng.integers(1, length, n)
        bits = rng.integers(0, 2, (n, length))
        actions = rng.integers(POP, PUSH_ONE + 1, (n, length))
        tokens = np.where(np.arange(length) < height[:, None], bits, actions)
        stack, size = _surviving(tokens)
        return tokens, terminate(stack, size, self.output_length(length))

    def _solve(self, tokens: list[int]) -> list[int]:
        stack: list[int] = []
        acting = False
        for position, token in enumerate(tokens):
            if acting and token < POP:
                raise ValueError(f"tokens[{position}] is {token}; after the first action (2..4) there are only actions")
            acting = token >= POP
            if token != POP:
                stack.append({PUSH_ZERO: 0, PUSH_ONE: 1}.get(token, token))
            elif stack:
                stack.pop()
        return terminated(stack[::-1], self.output_length(len(tokens)))


def _surviving(tokens: IntArray) -> tuple[IntArray, IntArray]:
    """What is never popped, last first, and how much: from right to left, a pop cancels the next thing pushed."""
    rows = np.arange(len(tokens))
    stack = np.zeros_like(tokens)
    size, pops = np.zeros((2, len(tokens)), dtype=np.int64)
    for token in tokens.T[::-1]:
        pushed = token != POP
        kept = pushed & (pops == 0)
        stack[rows[kept], size[kept]] = ((token == 1) | (token == PUSH_ONE))[kept]
        size += kept
        pops += np.where(pushed, -(pops > 0).astype(np.int64), 1)
    return stack, size
