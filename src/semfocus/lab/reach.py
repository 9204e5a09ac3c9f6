"""How far information travels: what a fixed pattern lets any position see after all blocks.

In one block query i sees the keys it keeps, A[i, j]. After n blocks it sees the positions reachable in n steps of A
(it always keeps its own by the residual connection). The read-out is linear in the mean over positions, so two tokens
can be combined only inside a position that sees both: where none does, a task that needs it is impossible, not slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..patterns.base import Pattern, View, chosen
from ..patterns.full import Full
from ..randomness import Noise, key_of
from ..training.protocol import RunConfig


@dataclass(frozen=True)
class Reach:
    """What positions can see after all blocks."""

    most: int  # tokens that the best placed position sees
    length: int
    impossible: bool  # no position can see together what the task's rule combines

    def shown(self) -> str:
        """
        >>> Reach(most=21, length=40, impossible=True).shown()
        '21 of 40: impossible'
        """
        return f"{self.most} of {self.length}" + (": impossible" if self.impossible else "")


def why_impossible(labels: Sequence[str]) -> str:
    return f"{' and '.join(labels)} cannot bring together the tokens that decide the label"


def reach(config: RunConfig) -> Reach:
    """The reach of a run's model."""
    length = config.length
    seen = visible_after(config.pattern, length, config.model.blocks)[:, :length]
    pairs = [] if config.data.random_labels else config.task.make().must_meet(config.task.length)
    apart = any(not bool((seen[:, i] & seen[:, j]).any()) for i, j in pairs)
    return Reach(int(seen.sum(1).max()), length, apart)


@lru_cache(maxsize=1024)
def visible_after(pattern: Pattern, length: int, blocks: int) -> Tensor:
    """bool (t, t): may query i know of token j after so many blocks? ``length`` is without global tokens.

    >>> from semfocus import Banded, TopK
    >>> visible_after(Banded(5), 40, 5).sum(1).max().item()
    21
    >>> visible_after(TopK(5), 40, 1).all().item()
    True
    """
    tokens = length + pattern.global_tokens
    if pattern.input_dependent or pattern.random or isinstance(pattern, Full):
        return torch.ones(tokens, tokens, dtype=torch.bool)  # any key may be chosen
    nothing = torch.zeros(1, tokens, 1)
    everything = torch.ones(1, tokens, tokens, dtype=torch.bool)
    seen = torch.eye(tokens, dtype=torch.bool)
    for block in range(blocks):
        noise = Noise(key_of(block), key_of(block))  # a typical draw, where a pattern is drawn once
        kept = chosen(pattern, View(nothing, nothing, everything, noise=noise)).expand(1, tokens, tokens)[0]
        seen = (kept | torch.eye(tokens, dtype=torch.bool)).float() @ seen.float() > 0
    return seen
