"""A cluster of two nodes, one of which dies in the middle of a study. Minutes: ``make test-slow`` runs it."""

import threading
import time

import pytest

from semfocus.lab.execute import ask, execute
from semfocus.studies.convergence import Convergence
from semfocus.training.progress import Progress

pytestmark = [pytest.mark.slow, pytest.mark.ray]
ray = pytest.importorskip("ray", reason="semfocus[ray] is not installed")


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False)
    yield made, nodes
    ray.shutdown()
    made.shutdown()


def test_the_death_of_a_node_costs_nothing_but_time(cluster, tmp_path):
    from semfocus.lab.cluster import on_ray

    made, nodes = cluster

    def kill() -> None:
        while sum(path.read_text().count("\n") for path in tmp_path.glob("*/runs/*/metrics.jsonl")) < 60:
            time.sleep(0.2)
        made.remove_node(nodes[1], allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    study = Convergence()
    train = on_ray(None, "cpu", 1, Progress(None), lambda: False, [])
    question = ask(study, "smoke", None, ["train.epochs=40", "data.train=400"])
    results = execute(study, question, tmp_path, train, lambda _: None)
    assert not killer.is_alive()  # it did die
    assert results.statuses() == {"finished": 10}
    assert {len(run.rows) for _, run in results.every_run()} == {41}
