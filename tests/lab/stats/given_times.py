"""Convergence times from plain lists: None for a seed that never converged."""

from semfocus.lab.stats import ConvergenceTimes, compare


def times(values, *, name="x", last_epoch=100, first_seed=0, diverged=()):
    by_seed = dict(enumerate(values, first_seed))
    return ConvergenceTimes(name, by_seed, last_epoch, diverged=frozenset(diverged))


def comparison(a, b, *, last_epoch=100):
    return compare(times(a, name="a", last_epoch=last_epoch), times(b, name="b", last_epoch=last_epoch))
