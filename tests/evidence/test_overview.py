"""The figure that stands before all tables."""

import re

import pytest
from made_up import trained

from semfocus import Banded, BlockLocal, Full, TopK
from semfocus.evidence.claims import Place
from semfocus.evidence.cost import Cost
from semfocus.evidence.overview import overview
from semfocus.evidence.speed import races
from semfocus.evidence.summary import Built, Summary
from semfocus.lab.results import Results

ARMS = ((Full(), 1.0), (Full(), 4.0), (Banded(5), 1.0), (BlockLocal(5), 1.0), (TopK(5), 1.0))


def built(made):
    results = Results(*made)
    cost = Cost(30, 30, 60.0, ("GPU",), 0.0, 0, 0, None)
    study = results.question.study
    return Built(f"{study}-paper", results, (), tuple(races(results)), cost, Place((), (), (), ()), ())


def words(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_what_it_shows(tmp_path):
    whole = built(trained(tmp_path, *ARMS, study="convergence", size="paper"))
    svg = overview(Summary([whole]))
    shown = words(svg)
    begin = shown.index("even_pairs")
    labels = shown[begin - 4 : begin]
    assert labels == ["top-k(5)", "full x 4", "banded(5)", "block-local(5)"]
    assert shown[begin + 1].startswith("3.43 (")  # geometric mean of 40/10, 41/11, ... 45/15
    assert shown[begin + 2].startswith("4.10 (")
    assert shown[begin + 3 : begin + 5] == ["cannot see enough"] * 2  # one block, five of eight tokens
    assert overview(Summary([whole])) == svg


def test_what_was_tuned_stands_below_what_was_not(tmp_path):
    plain = built(trained(tmp_path / "a", ARMS[0], ARMS[-1], study="convergence", size="paper"))
    tuned = built(trained(tmp_path / "b", ARMS[0], ARMS[-1], study="fair", size="paper"))
    shown = words(overview(Summary([plain, tuned])))
    assert shown.index("both tuned") == shown.index("top-k(5)") + 1
    assert "both tuned" not in words(overview(Summary([plain])))


@pytest.mark.parametrize(("study", "size"), [("controls", "paper"), ("convergence", "quick")])
def test_no_figure_of_anything_else(tmp_path, study, size):
    assert overview(Summary([built(trained(tmp_path, *ARMS, study=study, size=size))])) is None


def test_a_task_on_which_full_attention_has_not_run_is_left_out(tmp_path):
    assert overview(Summary([built(trained(tmp_path, *ARMS[1:], study="convergence", size="paper"))])) is None


def test_sizes_are_not_mixed(tmp_path):
    """What was tuned at a small size says nothing beside what ran at the paper's."""
    plain = built(trained(tmp_path / "a", ARMS[0], ARMS[-1], study="convergence", size="paper"))
    tuned = built(trained(tmp_path / "b", ARMS[0], ARMS[-1], study="fair", size="quick"))
    summary = Summary([plain, tuned])
    assert "both tuned" not in words(overview(summary))
    assert summary.race("even_pairs", "learning rate and scale tuned") is None
    assert Summary([tuned]).race("even_pairs", "learning rate and scale tuned") is not None
