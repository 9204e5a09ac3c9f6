"""A process that dies at a given epoch, and the curves of runs without their timings."""

from semfocus.training.population import Population
from semfocus.training.run_directory import RunDirectory


def curves(out, runs):
    """The metrics of all runs without their timings."""
    rows = {run.hash: RunDirectory(out, run.hash).metrics() for run in runs}
    return {run: [{k: v for k, v in row.items() if k != "seconds"} for row in lines] for run, lines in rows.items()}


class Stop(BaseException):
    """Stands for the process dying."""


def dying(monkeypatch, *, epoch):
    """From now on the process dies when it begins that epoch (counted from 0); undo with monkeypatch.undo()."""
    original = Population.train_epoch

    def train_epoch(self, number, after_step=None):
        if number == epoch:
            raise Stop
        return original(self, number, after_step)

    monkeypatch.setattr(Population, "train_epoch", train_epoch)
