"""What a pattern rests on decides where it has a meaning."""

from __future__ import annotations

from .base import Pattern
from .full import Full


def follows_positions(pattern: Pattern) -> bool:
    """Does the choice rest on where queries and keys stand, or on chance, instead of on scores?

    >>> from semfocus import Banded, TopK
    >>> [follows_positions(pattern) for pattern in (Full(), TopK(5), Banded(5))]
    [False, False, True]
    """
    return not pattern.input_dependent and not isinstance(pattern, Full)
