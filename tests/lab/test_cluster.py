"""A worker that does not see the store sends its runs back whole. No cluster is needed to test that."""

from types import SimpleNamespace

import pytest

from semfocus import TopK
from semfocus.lab.store import Store
from semfocus.lab.study import arm, laid_over
from semfocus.studies._sizes import TINY

pytest.importorskip("ray")

from semfocus.lab.cluster import Driver, Job, train_population


def test_snapshots_come_back_too(tmp_path):
    sections = laid_over(TINY, {"train": {"keep_weights_every": 1}})
    config = arm("even_pairs", TopK(3), sections).with_seed(0)
    board = SimpleNamespace(post=SimpleNamespace(remote=lambda *_: None))
    job = Job((config.to_dict(),), str(tmp_path / "elsewhere"), "a token", "cpu", 1, ())
    files = train_population(job, board)
    assert not (tmp_path / "elsewhere").exists()
    store = Store(tmp_path, "mine")
    Driver._keep(SimpleNamespace(store=store), files)
    run = store.run(config.hash)
    assert run.is_finished()
    assert sorted(run.snapshots()) == [0, 1, 2]
    assert run.weights_after(2).keys() == run.weights_after(0).keys()
