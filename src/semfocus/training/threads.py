"""How many CPU threads: measured, not guessed.

Two OpenMP threads beside another busy process can be twenty times slower than one, and a small model may not profit
from a second thread even on an idle machine.
"""

from __future__ import annotations

import os
import time

import torch

from .population import Population

STEPS = 5
#: How many times faster more threads must be.
CLEARLY = 1.1


def choose_threads(population: Population, asked: int | None = None) -> int:
    """Sets and returns as many as asked for; else tries one thread and all cores on real steps, and takes the faster.

    The steps leave no trace.
    """
    if asked:
        torch.set_num_threads(asked)
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    saved = [tensor.clone() for tensor in population.mutable()]
    seconds = {}
    for threads in sorted({1, cores}, reverse=True):
        torch.set_num_threads(threads)
        population.start_epoch(0)
        population.train_step()  # warms up
        start = time.perf_counter()
        for _ in range(STEPS):
            population.cursor.zero_()  # the first batch each time: an epoch may have no other
            population.train_step()
        seconds[threads] = time.perf_counter() - start
    for tensor, value in zip(population.mutable(), saved, strict=True):
        tensor.copy_(value)
    # One thread unless more are clearly worth it: near a tie chance would choose, and the last bits depend on it.
    best = cores if seconds[cores] * CLEARLY < seconds[1] else 1
    torch.set_num_threads(best)
    return best
