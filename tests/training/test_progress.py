"""What training says of itself on the way."""

from rich.console import Console

from semfocus import TopK
from semfocus.training.progress import Progress
from semfocus.training.trainer import Trainer


def test_progress_tells_epochs_and_time_left(tiny, tmp_path, capsys):
    Trainer(tmp_path, progress=Progress(Console(width=300))).run([tiny(TopK(3), seed) for seed in range(3)])
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert "epoch 3/3" in last
    assert "median loss" in last
    assert "time left 0:00" in last


def test_progress_within_long_epochs(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("semfocus.training.progress.LINE_EVERY", 0.0)
    Trainer(tmp_path, progress=Progress(Console(width=300))).run([tiny(TopK(3))])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("runs 0/1  evaluating, train: step 1 of ")
    assert any(line.startswith("runs 0/1  training, epoch 3: step 2 of ") for line in lines)


def test_progress_within_long_epochs_in_a_terminal(monkeypatch):
    monkeypatch.setattr("semfocus.training.progress.LINE_EVERY", 0.0)
    console = Console(width=150, force_terminal=True, record=True, legacy_windows=False)
    with Progress(console) as progress:
        progress.within("training, epoch 1", 3, 10)
        progress.epoch(1, 5, [{"train_loss": 1.0, "heldout_loss": 1.0}], 1)
        progress.within("training, epoch 2", 4, 10)
    text = console.export_text()
    assert "1/5" in text
    assert "training, epoch 2: step 4 of 10" in text


def test_progress_in_a_terminal_is_a_live_table(tiny, tmp_path):
    console = Console(width=150, force_terminal=True, record=True, legacy_windows=False)
    with Progress(console) as progress:
        Trainer(tmp_path, progress=progress).run([tiny(TopK(3))])
    text = console.export_text()
    assert "median member" in text
    assert "3/3" in text
    assert "1/1" in text


def test_members_without_a_loss_are_neither_best_nor_median(capsys):
    """Of a population they are NaN, of a language model's file None."""
    progress = Progress(Console(width=300))
    for row, left in (({"heldout_loss": float("nan")}, "0.500"), ({"heldout_loss": None}, "0.500")):
        rows = [{"train_loss": 0.1, **row}, {"train_loss": 0.5, "heldout_loss": 0.5}]
        progress.epoch(2, 2, rows, 2)
        assert f"median loss {left}, held-out {left}  best loss {left}" in capsys.readouterr().out
        progress.epoch(2, 2, rows[:1], 1)
        assert "median -  best -" in capsys.readouterr().out


def test_what_will_be_stopped_early_is_over_then(capsys):
    """A check of a run's first epochs does not tell the time of all of them."""
    progress = Progress(Console(width=300), until=2)
    progress.plan(3, 300)
    for epoch in (1, 2):
        progress.epoch(epoch, 100, [{"train_loss": 1.0, "heldout_loss": 1.0}], 3)
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert "epoch 2/2" in last
    assert "time left 0:00" in last
