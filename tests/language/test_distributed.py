"""Two processes that share a model, by DDP and by FSDP2, against one: equal losses but for the order of sums."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest
import torch

from semfocus import TopK
from semfocus.cli import main
from semfocus.lab.store import Manifest, Question, Store
from semfocus.lab.study import Arm, arm
from semfocus.language import distributed
from semfocus.language.distributed import Place
from semfocus.language.trainer import LanguageTrainer
from semfocus.studies._sizes import TINY
from semfocus.training.files import write_json
from semfocus.training.strict import ConfigError

#: Losses near 5 in float32: a few units in the last place for each of 20 steps.
TOLERANCE = 2e-5

SCRIPT = """
import json, sys
from semfocus.language import distributed
from semfocus.language.config import LanguageConfig
from semfocus.language.distributed import Place
from semfocus.language.trainer import LanguageTrainer, follow

if Place.here().first:
    for number, data in enumerate(json.loads(sys.argv[1])):
        out, config = f"{sys.argv[2]}/{number}", LanguageConfig.from_dict(data)
        LanguageTrainer(out, checkpoint_seconds=0.0).run([config])
    distributed.dismiss("cpu")
else:
    follow("cpu")
"""


def launch(*arguments, fails=False):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, complained = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert (process.returncode != 0) == fails, said + complained
    return complained if fails else said


def losses(directory):
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [value for row in rows for value in (row["heldout_loss"], row.get("train_loss"), row.get("gradient_norm"))]


def entropy(directory):
    """Of attention before the first step: over how many rows, its mean and every layer's median."""
    found = json.loads((directory / "metrics.jsonl").read_text().splitlines()[0])["diagnostics"]["entropy"]
    return [found["count"], found["mean"], *found["layers"]]


def test_two_processes_give_the_losses_of_one(tiny, tmp_path):
    """By DDP, by FSDP2, by FSDP2 from a checkpoint that one process wrote, and with keys drawn at random."""
    top_k = {"name": "top_k", "k": 3}
    # Attention is measured on more sequences than one process has in a step.
    configs = [tiny(pattern=top_k, train={"parallel": how, "diagnose": 3}) for how in ("ddp", "fsdp")]
    configs.append(tiny(train={"parallel": "fsdp"}))
    configs.append(tiny(pattern={"name": "random_k", "k": 3}))
    with pytest.raises(KeyboardInterrupt):
        LanguageTrainer(tmp_path / "2", stopping=lambda: True).run([configs[2]])
    assert list(tmp_path.glob("2/groups/*/epoch-1.safetensors"))
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    launch(str(tmp_path / "train.py"), json.dumps([config.to_dict() for config in configs]), str(tmp_path))
    for number, config in enumerate(configs):
        (alone,) = LanguageTrainer(tmp_path / "alone").run([config])
        (together,) = tmp_path.glob(f"{number}/runs/*")
        assert json.loads((together / "environment.json").read_text())["processes"] == 2
        assert losses(together) == pytest.approx(losses(alone.path), abs=TOLERANCE)
        assert entropy(together) == pytest.approx(entropy(alone.path), abs=TOLERANCE)
        assert (together / "weights.safetensors").stat().st_size == (alone.path / "weights.safetensors").stat().st_size


def test_patterns_that_look_at_the_whole_batch_are_refused(tiny, tmp_path, monkeypatch):
    for name, value in (("MASTER_ADDR", "localhost"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Place, "join", lambda self, device: None)
    config = tiny(pattern={"name": "swapped_top_k", "k": 3})
    with pytest.raises(ConfigError, match=r"pattern is swapped_top_k\(k=3\); .* each of 2 processes has a part"):
        LanguageTrainer(tmp_path).run([config])


def test_the_whole_study_by_two_processes(tmp_path):
    more = ["--size", "smoke", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path)]
    said = launch("-m", "semfocus", "run", "language_model", *more, "train.tokens=512")
    assert said.count("the page:") == 1  # the first process speaks, the other follows
    (page,) = tmp_path.glob("language_model/pages/*.html")
    assert "preliminary" not in page.read_text()


def test_the_others_wait_for_days_of_other_work(monkeypatch):
    given = {}
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, timeout: given.update(wait=timeout))
    Place(rank=1, world=2).join(torch.device("cpu"))
    assert timedelta(days=14) < given["wait"] < timedelta(milliseconds=2**31)  # longer ones wrap around in a socket


def test_processes_that_were_never_needed_end_too(tmp_path):
    """They wait for the first one, which has no language model to train, or fails before it comes to that."""
    resume = ["-m", "semfocus", "resume", "--device", "cpu", str(tmp_path)]
    store = Store(tmp_path, "convergence")
    question = Question("convergence", "smoke", 1)
    config = arm("even_pairs", TopK(3), TINY).with_seed(0)
    store.write(Manifest(question, (Arm("even_pairs", "top-k(3)", config),)), complete=lambda written: True)
    write_json(store.run(config.hash).path / "summary.json", {"status": "finished"})
    assert "nothing to resume" in launch(*resume)
    store.manifest_path("smoke").write_text("{")
    assert "smoke.json is damaged" in launch(*resume, fails=True)


def test_what_fails_in_the_first_of_several_processes_ends_the_command(tmp_path, monkeypatch, capsys):
    """The others may be in the middle of the run that failed: they would hear neither of the next nor of the end."""
    for name in ("quick", "smoke"):
        write_json(Store(tmp_path, "convergence").manifest_path(name), {})
    for name, value in (("MASTER_ADDR", "localhost"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "dismiss", lambda device: pytest.fail("told the others"))
    assert main(["resume", "--device", "cpu", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("is damaged") == 1
