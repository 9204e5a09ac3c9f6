"""A running study, seen through TensorBoard's own reader."""

import pytest

from semfocus.cli import main
from semfocus.lab.live import Mirror

pytest.importorskip("tensorboard", reason="semfocus[live] is not installed")


def test_metrics_are_mirrored_as_they_grow(made_up, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    store, manifest = made_up({("even_pairs", "full"): [40], ("even_pairs", "top-k(5)"): [10]})
    run = store.run(manifest.configs()[1].hash).path / "metrics.jsonl"
    lines = run.read_text().splitlines(keepends=True)
    run.write_text("".join(lines[:30]))  # it is still training
    summary = run.with_name("summary.json").read_text()
    run.with_name("summary.json").unlink()
    mirror = Mirror(store.path.parent)
    assert mirror.update() == 101 + 30
    assert mirror.update() == 0
    assert len(mirror.writers) == 1  # of what may go on
    run.write_text("".join(lines))
    run.with_name("summary.json").write_text(summary)
    assert mirror.update() == 71
    assert (mirror.update(), mirror.writers) == (0, {})
    (folder,) = (store.path / "tensorboard").glob("*topk*")
    events = EventAccumulator(str(folder))
    events.Reload()
    curve = [(event.step, event.value) for event in events.Scalars("train_accuracy")]
    assert [step for step, _ in curve] == list(range(101))
    assert curve[5][1] == pytest.approx(0.5)
    assert curve[50][1] == pytest.approx(0.96)
    assert main(["live", str(store.path), "--once"]) == 0
    assert "2 runs mirrored" in capsys.readouterr().out
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("train_accuracy")] == list(range(101))  # not twice
