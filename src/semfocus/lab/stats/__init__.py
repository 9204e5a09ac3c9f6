"""What may be concluded from the convergence times and accuracies of a few seeds.

Times are epochs T until a level is reached, right-censored at the last epoch E. Two patterns are compared seed by
seed on min(T, E): the sign-flip test keeps its level whatever the distribution, with ties and censoring, because
patterns that do not differ stay exchangeable when both are cut at the same E. What it tests is thus the times within E
epochs; what censoring forbids to say beyond that, ``Comparison.bound`` and ``Comparison.warning`` tell.
"""

from .accuracy import FEWEST_ACCURACIES, Band, band, mean_interval
from .comparison import (
    EQUIVALENT,
    FEWEST_SEEDS,
    HEAVY_CENSORING,
    NO_INTERVAL,
    Bound,
    Comparison,
    Verdict,
    compare,
    holm,
    seeds_needed,
    verdict,
    verdicts,
)
from .median_ratio import MedianRatio, median_ratio
from .sign_flip import ALPHA, EXACT_SEEDS, SignFlip, shown_mean
from .survival import ConvergenceTimes, SurvivalCurve, kaplan_meier, log_rank, right_censored

__all__ = [
    "ALPHA",
    "EQUIVALENT",
    "EXACT_SEEDS",
    "FEWEST_ACCURACIES",
    "FEWEST_SEEDS",
    "HEAVY_CENSORING",
    "NO_INTERVAL",
    "Band",
    "Bound",
    "Comparison",
    "ConvergenceTimes",
    "MedianRatio",
    "SignFlip",
    "SurvivalCurve",
    "Verdict",
    "band",
    "compare",
    "holm",
    "kaplan_meier",
    "log_rank",
    "mean_interval",
    "median_ratio",
    "right_censored",
    "seeds_needed",
    "shown_mean",
    "verdict",
    "verdicts",
]
