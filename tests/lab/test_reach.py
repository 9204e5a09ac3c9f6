"""Receptive fields against a plain simulation, and what cannot be solved."""

import pytest
import torch

from semfocus import Banded, BlockLocal, BottomK, FixedRandom, Full, RandomK, Strided, TopK
from semfocus.lab.baselines import baselines
from semfocus.lab.cost import flops_per_step
from semfocus.lab.reach import reach, visible_after
from semfocus.lab.study import arm


def influence(pattern, length, blocks):
    """Which inputs change which outputs of repeated averaging over the kept keys."""
    x = torch.eye(length + pattern.global_tokens, dtype=torch.float64)
    q = torch.zeros(1, len(x), 1)
    kept = pattern.keep(q, q, torch.ones(1, len(x), len(x), dtype=torch.bool)).expand(1, len(x), len(x))[0].double()
    for _ in range(blocks):
        x = x + kept @ x
    return x > 0


@pytest.mark.parametrize(
    "pattern",
    [
        Banded(5),
        Banded(4),
        BlockLocal(5),
        Banded(5, global_tokens=1),
        BlockLocal(3, global_tokens=2),
        Strided(4),
        Full(),
    ],
)
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_reach_is_what_can_influence(pattern, blocks):
    assert visible_after(pattern, 23, blocks).equal(influence(pattern, 23, blocks))


@pytest.mark.parametrize("pattern", [TopK(1), BottomK(3), RandomK(3)])
def test_what_chooses_may_reach_everything(pattern):
    assert visible_after(pattern, 30, 1).all()


def test_a_fixed_draw_grows_with_depth():
    sizes = [int(visible_after(FixedRandom(3), 40, blocks).sum()) for blocks in (1, 2, 5)]
    assert sizes == sorted(sizes)
    assert sizes[0] <= 40 * 4


@pytest.mark.parametrize(
    ("task", "pattern", "impossible"),
    [
        ("even_pairs", Banded(5), True),
        ("even_pairs", Banded(9), False),  # 20 positions to each side: position 20 sees both ends
        ("even_pairs", Banded(5, global_tokens=1), False),
        ("even_pairs", BlockLocal(9), True),
        ("even_pairs", TopK(5), False),
        ("parity_check", BlockLocal(5), False),  # memorised, for which no tokens must meet
        ("missing_duplicate_string", Banded(5), False),  # twins are half a row apart
        ("missing_duplicate_string", BlockLocal(5), True),
        ("stack_manipulation", BlockLocal(5), False),  # not certain, so not claimed
    ],
)
def test_impossible(task, pattern, impossible):
    found = reach(arm(task, pattern, {}).config)
    assert found.impossible == impossible
    assert ("impossible" in found.shown()) == impossible


def test_nothing_is_impossible_with_random_labels():
    assert reach(arm("even_pairs", Banded(5), {}).config).impossible
    assert not reach(arm("even_pairs", Banded(5), {"data": {"random_labels": True}}).config).impossible


def test_shortcuts():
    def known(task, **data):
        return baselines(arm(task, Full(), {"data": data}).config)

    assert max(known("stack_manipulation").values()) == 0.963
    assert set(known("stack_manipulation", random_labels=True)) == {"majority class"}
    short = arm("stack_manipulation", Full(), {"task": {"length": 12}}).config
    assert set(baselines(short)) == {"majority class"}  # they were counted at length 40
    other = arm("listops", Full(), {"task": {"options": {"min_length": 5, "max_length": 20}, "length": 60}}).config
    assert set(baselines(other)) == {"majority class"}
    assert max(known("listops").values()) == 0.494


def test_flops_by_hand():
    config = arm(
        "even_pairs",
        Full(),
        {"model": {"width": 8, "mlp_width": 8, "blocks": 1}, "train": {"batch": 1}, "task": {"length": 4}},
    ).config
    per_token = 2 * 8 * 24 + 2 * 8 * (4 + 4) + 2 * 8 * 8 + 4 * 8 * 8
    assert flops_per_step(config) == 3 * 4 * per_token
    banded = arm("even_pairs", Banded(5), {}).config
    assert flops_per_step(banded) < flops_per_step(arm("even_pairs", TopK(5), {}).config)
    assert flops_per_step(arm("even_pairs", TopK(5), {}).config) < flops_per_step(arm("even_pairs", Full(), {}).config)
