"""What a worker does, and what its driver asks of it. No cluster is needed to test that."""

from functools import partial
from types import SimpleNamespace

import pytest

from semfocus import TopK, patterns, plugins
from semfocus.lab.store import Store
from semfocus.lab.study import arm, laid_over
from semfocus.studies._sizes import TINY
from semfocus.training.groups import Group
from semfocus.training.progress import Progress
from semfocus.training.trainer import TrainingError

pytest.importorskip("ray")

from semfocus.lab import cluster
from semfocus.lab.cluster import Driver, Job, train_population

BOARD = SimpleNamespace(post=SimpleNamespace(remote=lambda *_: None))
OWN = b"""from dataclasses import dataclass\r
import semfocus\r
\r
@semfocus.register\r
@dataclass(frozen=True)\r
class EveryThird(semfocus.Pattern):\r
    input_dependent = False\r
\r
    def keep(self, q, k, visible):\r
        return visible & (visible.cumsum(-1) % 3 == 1)\r
"""


def test_snapshots_come_back_too(tmp_path):
    sections = laid_over(TINY, {"train": {"keep_weights_every": 1}})
    config = arm("even_pairs", TopK(3), sections).with_seed(0)
    job = Job((config.to_dict(),), str(tmp_path / "elsewhere"), "a token", "cpu", 1, ())
    files = train_population(job, BOARD)
    assert not (tmp_path / "elsewhere").exists()
    store = Store(tmp_path, "mine")
    Driver._keep(SimpleNamespace(store=store), files)
    run = store.run(config.hash)
    assert run.is_finished()
    assert sorted(run.snapshots()) == [0, 1, 2]
    assert run.weights_after(2).keys() == run.weights_after(0).keys()


def test_a_worker_names_runs_of_a_user_s_pattern_as_its_driver_does(tmp_path):
    """Though its copy of the file is gone by then, whatever ends its lines, and if ours is edited meanwhile."""
    path = tmp_path / "own.py"
    path.write_bytes(OWN)
    plugins.load(path)
    config = arm("even_pairs", patterns.get("every_third"), TINY).with_seed(0)
    wanted = config.hash
    path.write_bytes(OWN + b"# edited\r\n")
    job = Job((config.to_dict(),), str(tmp_path / "elsewhere"), "", "cpu", 1, (("own.py", plugins.content(path)),))
    assert list(train_population(job, BOARD)) == [wanted]


def test_runs_that_did_not_come_back_are_named(tmp_path, monkeypatch):
    configs = [arm("even_pairs", TopK(3), TINY).with_seed(seed) for seed in range(5)]
    monkeypatch.setattr(cluster, "LATE", 0.0)
    monkeypatch.setattr(Driver, "__init__", lambda self, **facts: vars(self).update(facts))
    monkeypatch.setattr(Driver, "_until_done", lambda self, jobs, wanted: None)
    driver = Driver(
        store=Store(tmp_path, "mine"),
        progress=Progress(None),
        stopping=lambda: False,
        device="cpu",
        slots=1,
        threads=1,
        token="",
        files=(),
    )
    with pytest.raises(TrainingError) as error:
        driver.run(configs)
    said = str(error.value)
    assert said.startswith(f"5 of 5 runs are not in {tmp_path / 'mine' / 'runs'} though their workers ended: ")
    assert f"{configs[1].hash} (top_k(k=3), seed 1), " in said
    assert configs[3].hash not in said
    assert ", 2 more; " in said
    driver.stopping = lambda: True
    with pytest.raises(KeyboardInterrupt):  # nobody waited for them
        driver.run(configs)


def test_of_an_interrupted_population_only_what_is_not_over_is_submitted(tmp_path, monkeypatch):
    """A worker that does not see the store would train, and send back, the others too."""
    over, waiting = (arm("even_pairs", TopK(3), TINY).with_seed(seed) for seed in range(2))
    store = Store(tmp_path, "mine")
    Group((over, waiting)).record(store.path)
    (store.run(over.hash).path).mkdir(parents=True)
    (store.run(over.hash).path / "summary.json").write_text('{"status": "finished"}')
    submitted = []
    driver = SimpleNamespace(
        store=store, progress=Progress(None), stopping=lambda: False, device="cpu", slots=1, threads=1, token="",
        files=(), _members=lambda runs: lambda config: 9, _check=lambda wanted: None,
        _until_done=lambda jobs, wanted: submitted.extend(jobs),
    )  # fmt: skip
    driver._unfinished, driver._job = (partial(getattr(Driver, name), driver) for name in ("_unfinished", "_job"))
    Driver.run(driver, [over, waiting])
    assert [job.configs for job in submitted] == [(waiting.to_dict(),)]
