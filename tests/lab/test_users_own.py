"""A user's own study, pattern and task: what is wrong with them is said before anything is trained."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from semfocus import Full, Pattern, TopK, load_run, patterns, plugins
from semfocus.cli import main
from semfocus.lab.claims import Contrast, Faster, against
from semfocus.lab.execute import ask, plan
from semfocus.lab.reach import reach, visible_after
from semfocus.lab.study import Arm, Size, Study, arm, joined_patterns
from semfocus.tasks import Task
from semfocus.tasks.base import TaskError
from semfocus.training.files import StorageError
from semfocus.training.protocol import RunConfig, read_pattern, run_name
from semfocus.training.strict import ConfigError
from semfocus.training.trainer import Trainer

SMALL = {"task": {"length": 8}, "model": {"width": 8, "blocks": 1}, "train": {"epochs": 2}}
PAIR = (arm("even_pairs", Full(), SMALL), arm("even_pairs", TopK(3), SMALL))


class Own(Study):
    """Is it?"""

    sizes: ClassVar = {"quick": Size("seconds", seeds=6)}

    def __init__(self, arms=PAIR, contrasts=()):
        self.arms, self.contrasts = arms, contrasts

    def runs(self, size):
        return list(self.arms)

    def claims(self, results):
        return [Faster("C", "it is", tuple(self.contrasts))]


class Following(Own):
    def follow_up(self, size, results):
        return []


PATTERN = """
from dataclasses import dataclass
import semfocus

@semfocus.register
@dataclass(frozen=True)
class NearKeys(semfocus.Pattern):
    "Those near the front."
    input_dependent = False

    def keep(self, q, k, visible):
        return visible & (visible.cumsum(-1) {rule})
"""


def test_runs_of_a_file_that_has_changed_are_not_judged_by_the_new_one(tmp_path, capsys):
    """Neither called impossible by a rule they were not trained with, nor published, nor loaded under it."""
    file, lab = tmp_path / "own.py", tmp_path / "lab"
    file.write_text(PATTERN.format(rule="<= 6"))
    joined = ["--plugin", str(file)]
    small = ["task.length=8", "model.width=8", "model.blocks=1", "train.epochs=1", "data.train=50", "data.heldout=25"]
    run = ["run", "convergence", "--size", "smoke", "--device", "cpu", "--no-clock", "--out", str(lab)]
    assert main([*run, *small, *joined]) == 0
    (page,) = (lab / "convergence" / "pages").glob("*.html")
    assert "has changed since" not in page.read_text()
    file.write_text(PATTERN.format(rule="== 5"))
    assert main(["report", str(lab), *joined]) == 0
    text = page.read_text()
    assert "near-keys: its pattern or task has changed since these runs were trained" in text
    capsys.readouterr()
    assert main(["results", "add", str(lab), "--into", str(tmp_path / "results"), *joined]) == 2
    assert "near-keys: its pattern or task has changed since" in capsys.readouterr().err
    (own,) = (
        path.parent for path in lab.glob("convergence/runs/*/config.json") if "near_keys" in path.read_text()
        and json.loads(path.read_text())["seed"] == 0
    )  # fmt: skip
    with pytest.raises(StorageError, match="changed since it was trained"):
        load_run(own)
    file.write_text(PATTERN.format(rule="<= 6"))
    assert main(["report", str(lab), *joined]) == 0
    assert "has changed since" not in page.read_text()
    assert load_run(own)


def test_a_run_knows_its_code_under_another_version_and_as_a_module(tmp_path, monkeypatch):
    """Named by the config as it was then, and by the file; a script that imports the file has the same code."""
    file = tmp_path / "own_module.py"
    file.write_text(PATTERN.format(rule="<= 7").replace("NearKeys", "OftenKnown"))
    plugins.load(file)
    config = replace(PAIR[0].config, pattern=patterns.get("often_known"), train=replace(PAIR[0].config.train, epochs=1))
    Trainer(tmp_path, device="cpu").run([config])
    run = tmp_path / "runs" / config.hash
    assert load_run(run)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("own_module")  # registers its class in the plugin's place
    again = RunConfig.load(run / "config.json")
    assert again.hash != config.hash
    assert load_run(run)
    # A field that came later, or went: the name is that of what is written.
    older = {**json.loads((run / "config.json").read_text()), "precision": "ieee"}
    older["model"].pop("soft_cap")
    name = run_name(older, config.code)
    run.rename(run.with_name(name))
    run = run.with_name(name)
    (run / "config.json").write_text(json.dumps(older))
    assert load_run(run)
    file.write_text(PATTERN.format(rule="== 3").replace("NearKeys", "OftenKnown"))
    plugins.load(file)
    with pytest.raises(StorageError, match="changed since it was trained"):
        load_run(run)


def test_two_files_with_one_name(tmp_path, capsys):
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(PATTERN.format(rule="<= 6").replace("NearKeys", "TwiceThere"))
    files = ["--plugin", str(tmp_path / "a.py"), "--plugin", str(tmp_path / "b.py")]
    assert main(["list", "patterns", *files]) == 2
    assert "pattern 'twice_there' is in" in capsys.readouterr().err
    assert main(["list", "patterns", *files[:2], *files[:2]]) == 0


def test_a_knob_that_no_file_can_hold_is_named():
    @dataclass(frozen=True)
    class InHalf(Pattern):
        """As many as there are, in another dtype."""

        input_dependent = False
        dtype: torch.dtype = torch.float16

        def keep(self, q, k, visible):
            return visible

    with pytest.raises(ConfigError, match=r"'in_half' cannot be kept .*dtype.*; a knob must be a number"):
        _ = replace(PAIR[0].config, pattern=InHalf()).hash


def planned(study):
    return plan(study, ask(study, "quick", None, ()))


def test_claims_name_arms_that_are_there():
    assert planned(Own(contrasts=against(["even_pairs"], "full", ["top-k(3)"]))).arms == PAIR
    with pytest.raises(
        ConfigError, match=r"'C' names arm 'top-k\(5\)' of panel 'even_pairs'; did you mean 'top-k\(3\)'"
    ):
        planned(Own(contrasts=against(["even_pairs"], "full", ["top-k(5)"])))
    with pytest.raises(ConfigError, match="names panel 'even_pears'; did you mean 'even_pairs'"):
        planned(Own(contrasts=against(["even_pears"], "full", ["top-k(3)"])))
    with pytest.raises(ConfigError, match=r"must be Contrast\(panel, a, b\)"):
        planned(Own(contrasts=[("even_pairs", "full", "top-k(3)")]))
    planned(Following(contrasts=against(["even_pairs"], "full", ["top-k(5)"])))  # it may be chosen later


def test_a_split_that_is_none():
    with pytest.raises(ConfigError, match="split is 'validation'; choose one of heldout, train"):
        Contrast("even_pairs", "full", "top-k(3)", "validation")


@pytest.mark.parametrize(
    ("second", "word"),
    [
        (arm("even_pairs", TopK(3), {**SMALL, "train": {"epochs": 3}}), "epochs 2 and 3"),
        (arm("even_pairs", TopK(3), {**SMALL, "train": {"epochs": 2, "eval_every": 2}}), "eval_every 1 and 2"),
        (arm("parity_check", TopK(3), SMALL, panel="even_pairs"), "task even_pairs and parity_check"),
        (replace(PAIR[1], panel=3), "panel is 3"),
        (replace(PAIR[1], label=""), "label is ''"),
        (replace(PAIR[1], seeds=3), "seeds of arm"),
        (Arm("even_pairs", "b", {"task": {}}), "is a dict"),
        (PAIR[0], "two arms 'full'"),
    ],
)
def test_arms_that_cannot_be_compared(second, word):
    with pytest.raises(ConfigError, match=word):
        planned(Own((PAIR[0], second)))


@dataclass(frozen=True)
class Offsets(Pattern):
    """Keys at some distances, and the first."""

    offsets: tuple[int, ...] = (0, 2)
    input_dependent = False

    def keep(self, q, k, visible):
        rank = visible.cumsum(-1) - 1
        own = torch.arange(visible.shape[-2])[:, None]
        return visible & torch.stack([rank == own - offset for offset in self.offsets]).any(0)


@dataclass(frozen=True)
class EvenOnly(Pattern):
    """As many keys as an even number says."""

    k: int = 4
    input_dependent = True

    def __post_init__(self):
        if self.k % 2:
            raise ValueError(f"k is {self.k}; it must be even")

    def keep(self, q, k, visible):
        return visible


def test_a_knob_that_is_a_tuple_comes_back_from_json():
    patterns.register(Offsets)
    again = read_pattern({"name": "offsets", "offsets": [0, 2]})
    assert again == Offsets()
    assert hash(again) == hash(Offsets())


def test_the_reach_of_a_user_s_fixed_pattern():
    assert visible_after(Offsets((0, 2)), 8, 1).sum(1).tolist() == [1, 1, 2, 2, 2, 2, 2, 2]
    assert reach(replace(arm("even_pairs", Full(), SMALL).config, pattern=Offsets((0, 2)))).impossible


def test_a_budget_that_a_user_s_pattern_refuses():
    patterns.register(EvenOnly)
    assert EvenOnly(4) in joined_patterns(5)
    assert EvenOnly(6) in joined_patterns(6)


@dataclass(frozen=True)
class Turned(Task):
    """The first token."""

    vocabulary = 2
    num_classes = 2
    axes: tuple[int, ...] = (0, 1)

    def _sample(self, rng, n, length):
        tokens = rng.integers(0, 2, (n, length))
        return tokens.transpose(self.axes), tokens[:, 0]

    def _solve(self, tokens):
        return [tokens[0]]


def test_a_task_that_swaps_its_axes_is_refused():
    assert Turned().sample(np.random.default_rng(0), 5, 8).tokens.shape == (5, 8)
    with pytest.raises(TaskError, match=r"tokens has shape \(8, 5\); it must be \(5, 8\)"):
        Turned((1, 0)).sample(np.random.default_rng(0), 5, 8)
