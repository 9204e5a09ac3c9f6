"""``kill -9`` and Ctrl-C in the middle of a study; then it goes on, and every run is there once, with a whole curve."""

import os
import signal
import subprocess
import sys
import time

import pytest

from semfocus.cli import main
from semfocus.lab.results import Results
from semfocus.lab.store import Store

STUDY = ["convergence", "--size", "smoke", "--device", "cpu", "--no-clock"]
OVERRIDES = ["train.epochs=40", "data.train=400"]


def start(out, *more):
    command = [sys.executable, "-m", "semfocus", "run", *STUDY, "--out", str(out), *more, *OVERRIDES]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for(condition, process, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def lines(out):
    return sum(path.read_text().count("\n") for path in out.glob("convergence/runs/*/metrics.jsonl"))


def whole(out):
    """All runs of the question, each once, each with its whole curve."""
    store = Store(out, "convergence")
    (name,) = store.names()
    results = Results(store, store.manifest(name))
    runs = [run for _, run in results.every_run()]
    assert {run.status for run in runs} == {"finished"}
    assert all([row["epoch"] for row in run.rows] == list(range(41)) for run in runs)
    assert len({run.directory.run for run in runs}) == len(runs) == len(list((store.path / "runs").iterdir())) == 10
    assert not list(store.path.glob("groups/*"))
    return {run.directory.run: [(r["train_loss"], r["heldout_accuracy"]) for r in run.rows] for run in runs}


def test_kill_dash_nine_and_resume(tmp_path, capsys):
    process = start(tmp_path / "a", "--threads", "1")
    wait_for(lambda: lines(tmp_path / "a") > 20, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert main(["status", str(tmp_path / "a")]) == 0
    assert "10 runs" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "a")]) == 0  # a page of what is there
    assert main(["resume", str(tmp_path / "a"), "--device", "cpu", "--threads", "1", "--no-clock"]) == 0
    killed = whole(tmp_path / "a")
    assert main(["run", *STUDY, "--out", str(tmp_path / "b"), "--threads", "1", *OVERRIDES]) == 0
    assert killed == whole(tmp_path / "b")  # bitwise
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "a"), "--device", "cpu"]) == 0
    assert "nothing to resume" in capsys.readouterr().out


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path):
    process = start(tmp_path, "--threads", "1")
    wait_for(lambda: lines(tmp_path) > 10, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "stopping after this epoch" in output
    assert "semfocus resume" in output
    assert "Traceback" not in output
    assert main(["resume", str(tmp_path), "--device", "cpu", "--threads", "1", "--no-clock"]) == 0
    whole(tmp_path)


def test_two_processes_share_the_work_and_do_nothing_twice(tmp_path):
    both = [start(tmp_path, "--threads", "1") for _ in range(2)]
    outputs = [process.communicate(timeout=150)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    whole(tmp_path)


@pytest.mark.ray
def test_ray_survives_the_death_of_a_worker_and_of_the_driver(tmp_path):
    pytest.importorskip("ray")
    process = start(tmp_path, "--on", "ray")
    try:
        wait_for(lambda: lines(tmp_path) > 20, process)
        victim = next(iter(workers(process.pid)))
        os.kill(victim, signal.SIGKILL)
        seen = lines(tmp_path)
        wait_for(lambda: lines(tmp_path) > seen + 20, process)  # it goes on
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    again = start(tmp_path, "--on", "ray")
    output, _ = again.communicate(timeout=170)
    assert again.returncode == 0, output
    whole(tmp_path)


def workers(driver):
    """Processes that train a population for this driver."""
    listed = subprocess.run(["ps", "-eo", "pid,sid,args"], capture_output=True, text=True, check=True).stdout
    found = []
    for line in listed.splitlines()[1:]:
        pid, session, arguments = line.split(None, 2)
        if int(session) == driver and arguments.startswith("ray::train_population"):
            found.append(int(pid))
    return found
