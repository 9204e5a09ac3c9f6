"""The learning rate of a step: up in a line, down along a cosine."""

from __future__ import annotations

import math

from .config import LanguageConfig

#: The last value over the largest.
FLOOR = 0.1


def rate(config: LanguageConfig, step: int) -> float:
    """The learning rate of a step, counted from 0, over its largest.

    >>> config = LanguageConfig()
    >>> [round(rate(config, step), 2) for step in (0, 12, 127)]
    [0.08, 1.0, 0.1]
    """
    warm = config.warm_up_steps
    if step < warm:
        return (step + 1) / warm
    along = (step - warm) / max(config.steps - 1 - warm, 1)
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * along))
