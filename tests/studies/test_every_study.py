"""Every study runs at size smoke and produces its page; every size of every study can be planned."""

import dataclasses
import re
import textwrap
from collections import Counter
from html import unescape
from pathlib import Path

import pytest

from semfocus import studies
from semfocus.cli import main
from semfocus.lab.claims import NoConsistentBenefit
from semfocus.lab.execute import ask, execute, on_this_machine, plan
from semfocus.lab.results import Results
from semfocus.lab.stats import seeds_needed
from semfocus.lab.store import Store
from semfocus.lab.study import label_of
from semfocus.language.config import LanguageConfig
from semfocus.patterns.full import Full
from semfocus.report.page import answer, build
from semfocus.report.parts import leaves
from semfocus.studies import dispersion
from semfocus.studies.convergence import GENERALISES, TASKS, variants
from semfocus.training.progress import Progress

EVERY = studies.registry.own_names()
#: Without the size that needs three files of the user's, which has tests of its own.
PLANNED = [(name, size) for name in EVERY for size in studies.get(name).sizes if size != "ptb"]


def quietly(study, size, root, **options):
    question = ask(study, size, options.get("seeds"), options.get("overrides", ()))
    results = execute(study, question, root, on_this_machine("cpu", 1, Progress(None)), lambda _: None)
    study.measure(results, "cpu", lambda _: None)
    return results


@pytest.mark.parametrize("name", EVERY)
def test_smoke_ends_with_a_page_and_no_verdict(name, tmp_path):
    study = studies.get(name)
    results = quietly(study, "smoke", tmp_path)
    assert set(results.statuses()) == {"finished"}
    judged = [claim.judge(results) for claim in study.claims(results)]
    assert judged
    assert {j.verdict for j in judged} == {"undecided"}
    assert not any(line.outcome == "missing" for j in judged for line in j.lines)  # every claim finds its arms
    page = build(study, results)
    text = page.read_text()
    assert study.summary.split("?")[0] in unescape(text)
    # What a legend names can be hidden: each of its entries is a class of something drawn.
    for key in re.findall(r"data-arm=[\"']?(k[0-9a-f]{8})", text):
        assert re.search(rf'class="arm {key} ', text), key


@pytest.mark.parametrize("name", EVERY)
def test_every_study_has_the_usual_sizes(name):
    """The paper's own language models have a size that is named after their text."""
    largest = "ptb" if name == "language_model" else "paper"
    assert list(studies.get(name).sizes) == ["smoke", "quick", "small", largest]
    assert studies.get(name).paper_sizes == (largest,)


def what_it_sees(config):
    """What decides the examples of a run, its seed apart."""
    if isinstance(config, LanguageConfig):
        return config.text, config.model.context, config.train
    data = dataclasses.replace(config.data, pad_multiple=1, twin=0)
    return config.task.name, config.task.length, repr(data), config.train.batch


@pytest.mark.parametrize(("name", "size"), PLANNED)
def test_every_size_can_be_planned(name, size):
    study = studies.get(name)
    manifest = plan(study, ask(study, size, None, ()))
    hashes = [config.hash for config in manifest.configs()]
    assert hashes
    shapes = {}
    for arm in manifest.arms:  # seed by seed, all arms of a panel see the same examples (twins: all but one)
        shapes.setdefault(arm.panel, set()).add(what_it_sees(arm.config))
    assert all(len(found) == 1 for found in shapes.values()), shapes


@pytest.mark.parametrize("name", EVERY)
def test_the_docstring_says_what_would_refute_it(name):
    assert "refuted by" in studies.get(name).question.lower()


@pytest.mark.parametrize("name", EVERY)
def test_enough_seeds_for_a_verdict(name, tmp_path):
    """With fewer seeds Holm's correction would leave even the clearest result undecided."""
    study = studies.get(name)
    for size in study.sizes:
        if size == "smoke" or (name, size) not in PLANNED:
            continue
        manifest = plan(study, ask(study, size, None, ()))
        for claim in study.claims(Results(Store(tmp_path, name), manifest)):
            together = Counter(c.b if isinstance(claim, NoConsistentBenefit) else "" for c in corrected(claim))
            assert study.sizes[size].seeds >= seeds_needed(max(together.values(), default=1)), (
                size,
                claim.id,
                together,
            )


def corrected(claim):
    """What Holm's correction of a claim goes over."""
    return getattr(claim, "contrasts", ()) or getattr(claim, "cases", ())


def test_the_paper_s_fifteen_variants():
    labels = [label_of(pattern) for pattern in variants()]
    assert len(labels) == len(set(labels)) == 15
    assert labels[0] == label_of(Full()) == "full"
    assert set(GENERALISES) < set(TASKS)
    assert len(TASKS) == 8


@pytest.mark.parametrize("name", ["controls", "fair"])
def test_what_costs_most_gets_a_smaller_grid(name):
    """ListOps, at the paper's size: every claim about it names arms that it has."""
    study = studies.get(name)
    manifest = plan(study, ask(study, "paper", None, []))
    dear = [arm for arm in manifest.arms if arm.panel.startswith("listops")]
    others = [arm for arm in manifest.arms if arm.panel.startswith("even_pairs")]
    assert 0 < len(dear) < len(others) / 3
    assert sum(len(manifest.seeds_of(arm)) for arm in dear) <= 12
    known = {(arm.panel, arm.label) for arm in manifest.arms}
    # Settings are chosen later, but it is known for which tasks and patterns.
    known |= {(arm.config.task.name, label_of(arm.config.pattern)) for arm in manifest.arms if name == "fair"}
    for claim in study.claims(Results(Store(Path("nowhere"), name), manifest)):
        assert {(one.panel, label) for one in claim.contrasts for label in (one.a, one.b)} <= known


def test_fair_tunes_on_other_seeds_than_it_reports(tmp_path):
    results = quietly(studies.get("fair"), "smoke", tmp_path)
    tuning = {run.seed for arm, run in results.every_run() if arm.panel.endswith("tuning")}
    fresh = {run.seed for arm, run in results.every_run() if not arm.panel.endswith("tuning")}
    assert tuning
    assert fresh == {0, 1}
    assert not tuning & fresh
    chosen = {arm.label: arm.config for arm in results.arms if not arm.panel.endswith("tuning")}
    assert set(chosen) == {"full", "top-k(5)"}
    found = answer(studies.get("fair"), results)
    grids = [part for part in leaves(found.sections) if part.name.startswith("grid-")]
    marked = [(grid.caption, str(row[0])) for grid in grids for row in grid.rows if "chosen" in str(row[1])]
    assert marked == [(f"even_pairs, {label}", f"{c.optimiser.learning_rate:g}") for label, c in chosen.items()]
    assert found.figures
    assert not [part.name for part in found.figures if "tuning" in part.name]
    again = quietly(studies.get("fair"), "smoke", tmp_path)  # nothing is chosen anew
    assert again.manifest == results.manifest


PLUGIN = """
    from dataclasses import dataclass
    import numpy as np
    import semfocus
    from semfocus.lab.claims import Faster, against
    from semfocus.lab.study import Size, Study, arm
    from semfocus.tasks.base import Task

    @semfocus.register
    @dataclass(frozen=True)
    class LastFew(semfocus.Pattern):
        '''The last few visible keys.'''
        input_dependent = False
        width: int = 3

        @property
        def budget(self):
            return self.width

        def keep(self, q, k, visible):
            return visible & (visible.flip(-1).cumsum(-1).flip(-1) <= self.width)

    @semfocus.register
    @dataclass(frozen=True)
    class FirstToken(Task):
        '''What is the first token?'''
        vocabulary = 2
        num_classes = 2

        def _sample(self, rng, n, length):
            bits = rng.integers(0, 2, (n, length))
            return bits, bits[:, 0]

        def _solve(self, tokens):
            return [tokens[0]]

    @semfocus.register
    class Mine(Study):
        '''Is mine faster?

        Refuted by a certain slowdown.
        '''
        sizes = {"smoke": Size("seconds", seeds=2)}

        def runs(self, size):
            tiny = {"model": {"width": 8, "mlp_width": 8, "blocks": 1}, "data": {"train": 50, "heldout": 25},
                    "task": {"length": 8}, "train": {"epochs": 1}}
            return [arm("first_token", pattern, tiny) for pattern in (semfocus.Full(), LastFew())]

        def claims(self, results):
            return [Faster("mine", "mine is faster", against(results.panels, "full", ["last-few(3)"]))]
"""


def test_a_user_s_pattern_task_and_study_join(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(textwrap.dedent(PLUGIN))
    common = [
        "--plugin",
        str(tmp_path / "mine.py"),
        "--out",
        str(tmp_path / "lab"),
        "--device",
        "cpu",
        "--size",
        "smoke",
    ]
    assert main(["run", "mine", *common]) == 0
    assert "mine is faster" in capsys.readouterr().out
    assert main(["run", "convergence", *common, "train.epochs=1"]) == 0
    (page,) = (tmp_path / "lab" / "convergence" / "pages").glob("*.html")
    text = page.read_text()
    assert "last-few" in text
    assert "first_token" in text


def test_half_way_is_half_way_though_the_first_seed_diverged(tmp_path):
    study = studies.get("dispersion")
    asked = ask(study, "smoke", None, ["train.epochs=4"])
    results = execute(study, asked, tmp_path, on_this_machine("cpu", 1, Progress(None)), lambda _: None)
    arm = results.arms[0]
    path = arm.runs[0].directory.path / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    (arm.runs[0].directory.path / "summary.json").write_text('{"status": "diverged", "diverged_epoch": 2}')
    assert dispersion._epochs(Results(results.store, results.manifest).arms[0]) == [0, 1, 2, 3, 4]


def test_what_diverged_has_no_dispersion_after_training(tmp_path):
    study = studies.get("dispersion")
    asked = ask(study, "smoke", None, ["optimiser.learning_rate=1e9"])
    results = execute(study, asked, tmp_path, on_this_machine("cpu", 1, Progress(None)), lambda _: None)
    assert {run.status for _, run in results.every_run()} == {"diverged"}
    lines = [line for claim in study.claims(results) for line in claim.judge(results).lines]
    assert {line.shown for line in lines} == {"-"}
