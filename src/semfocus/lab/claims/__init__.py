"""Claims: statements that the runs of a study can confirm or refute, each with the rule by which it is judged.

The rules are fixed in code before anything runs. Every kind of claim says in ``refuted_by`` which outcome refutes it.
Below ``FEWEST_SEEDS`` seeds and at size "smoke" everything is undecided.
"""

from .accuracies import AsAccurate, Learns
from .base import Claim, Contrast, Judged, Line, Outcome, against
from .in_short import Piece, in_short, listed
from .numbers import Below, Case
from .times import Faster, NoConsistentBenefit

__all__ = [
    "AsAccurate",
    "Below",
    "Case",
    "Claim",
    "Contrast",
    "Faster",
    "Judged",
    "Learns",
    "Line",
    "NoConsistentBenefit",
    "Outcome",
    "Piece",
    "against",
    "in_short",
    "listed",
]
