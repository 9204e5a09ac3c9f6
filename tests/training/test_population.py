"""Training a population equals training its members alone, and equals a plain loop."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from semfocus import (
    Banded,
    BlockLocal,
    FixedRandom,
    Full,
    Pattern,
    PositionalTopK,
    RandomK,
    SwappedTopK,
    TopK,
    Transformer,
)
from semfocus.training.data import batch_order, make_split, resident
from semfocus.training.population import Population

MEMBERS = [Full(), TopK(3), TopK(3), RandomK(3), FixedRandom(3), Banded(3), BlockLocal(3)]


def with_optimiser(run, **changes):
    return dataclasses.replace(run, optimiser=dataclasses.replace(run.optimiser, **changes))


def members(tiny):
    runs = [tiny(pattern, seed=i // 2) for i, pattern in enumerate(MEMBERS)]
    runs[1] = with_optimiser(runs[1], learning_rate=0.3, decay=0.9)
    runs[2] = with_optimiser(runs[2], name="adam", learning_rate=1e-2)
    runs[3] = with_optimiser(runs[3], clip=0.01)
    runs[4] = dataclasses.replace(runs[4], model=dataclasses.replace(runs[4].model, activation="gelu"))
    runs[5] = dataclasses.replace(runs[5], model=dataclasses.replace(runs[5].model, attention_scale=4.0))
    return runs


def test_a_member_equals_the_same_run_alone(tiny):
    runs = members(tiny)
    together = Population(runs, dtype=torch.float64)
    alone = [Population([run], dtype=torch.float64) for run in runs]
    for epoch in range(3):
        whole = together.train_epoch(epoch)
        evaluated = [together.evaluate(split) for split in ("train", "heldout")]
        for i, population in enumerate(alone):
            single = population.train_epoch(epoch)
            assert abs(single.loss[0] - whole.loss[i]) < 1e-9
            for split, measured in zip(("train", "heldout"), evaluated, strict=True):
                again = population.evaluate(split)
                assert abs(again.loss[0] - measured.loss[i]) < 1e-9
                assert again.accuracy[0] == measured.accuracy[i]
            torch.testing.assert_close(population.weights.matrix[0], together.weights.matrix[i], atol=1e-9, rtol=0)


def test_float32_losses_stay_within_rounding(tiny):
    """Over the first 50 steps float32 parts from float64 by no more than rounding can make of it.

    The bound is taken from the data: perturbing the initial weights by one rounding (2^-24 of each) and training in
    float64 shows how far the same steps spread an error of that size; float32 rounds some hundred times per step.
    """
    runs = [tiny(pattern, train={"epochs": 1, "batch": 1}) for pattern in (Full(), TopK(3))]
    populations = [Population(runs, dtype=dtype) for dtype in (torch.float64, torch.float64, torch.float32)]
    generator = torch.Generator().manual_seed(0)
    matrix = populations[1].weights.matrix
    matrix.mul_(1 + 2.0**-24 * (2 * torch.rand(matrix.shape, generator=generator, dtype=torch.float64) - 1))
    alone = [Population([run]) for run in runs]
    exact, perturbed, together = (_losses(population, 50) for population in populations)
    single = torch.cat([_losses(population, 50) for population in alone], 1)
    spread = (perturbed - exact).abs().amax().item()
    bound = 100 * max(spread, 2.0**-24)
    assert (together - exact).abs().max() < bound
    assert (single - together).abs().max() < bound


def _losses(population, steps):
    """(steps, m) losses of single steps."""
    population.start_epoch(0)
    losses = []
    for _ in range(steps):
        before = population.running[0].clone()
        population.train_step()
        losses.append(population.running[0] - before)
    return torch.stack(losses)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_plain_pytorch_loop_gives_the_same(tiny, name):
    """torch.optim, clip_grad_norm_ and a learning-rate schedule, without our trainer."""
    run = with_optimiser(tiny(TopK(3), seed=5), name=name, learning_rate=0.05, decay=0.9, clip=0.3)
    population = Population([run], dtype=torch.float64)
    model = Transformer(run.model_config(), run.pattern, run.seed, dtype=torch.float64).train()
    optimiser = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name](model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
    tokens, targets, _ = make_split(run, "train")
    step = 0
    for epoch in range(3):
        order = batch_order(torch.tensor([5]), epoch, 60)[0]
        for start in range(0, 60, 20):
            here = order[start : start + 20]
            optimiser.zero_grad()
            F.cross_entropy(model(tokens[None, here], step)[0, :, 0], targets[here, 0]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimiser.step()
            step += 1
        schedule.step()
        population.train_epoch(epoch)
    for ours, theirs in zip(population.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)
    model.eval()
    logits = model(tokens[None])[0, :, 0]
    measured = population.evaluate("train")
    assert abs(measured.loss[0] - F.cross_entropy(logits, targets[:, 0])) < 1e-9
    assert measured.accuracy[0] == (logits.argmax(-1) == targets[:, 0]).double().mean()


def test_patterns_of_one_seed_see_the_same_data_and_start_from_the_same_weights(tiny):
    population = Population([tiny(Full(), 1), tiny(TopK(3), 1), tiny(TopK(3), 2)])
    assert population.splits["train"].owner.tolist() == [0, 0, 1]
    weights = population.weights.matrix
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    population.start_epoch(4)
    assert torch.equal(population.order[0], population.order[1])
    assert not torch.equal(population.order[0], population.order[2])


def test_batch_order_is_a_fair_permutation():
    order = batch_order(torch.arange(200), 3, 10)
    assert (order.sort(-1).values == torch.arange(10)).all()
    first = torch.bincount(order[:, 0], minlength=10)
    assert first.min() > 5  # 20 expected of each
    assert not torch.equal(order, batch_order(torch.arange(200), 4, 10))


def test_splits_are_distinct_and_labels_can_be_random(tiny):
    run = tiny(Full(), data={"train": 200, "heldout": 200, "test": 50}, task={"length": 30})
    splits = resident([run], torch.device("cpu"))
    rows = [{tuple(row) for row in split.tokens[0].tolist()} for split in splits.values()]
    assert not rows[0] & rows[1]
    assert not (rows[0] | rows[1]) & rows[2]
    shuffled = dataclasses.replace(run, data=dataclasses.replace(run.data, random_labels=True))
    tokens, targets, _ = make_split(run, "train")
    same_tokens, other, _ = make_split(shuffled, "train")
    assert torch.equal(tokens, same_tokens)
    assert torch.equal(targets.sort(0).values, other.sort(0).values)  # the classes keep their shares
    assert 0.35 < (targets == other).double().mean() < 0.65


def test_more_examples_leave_the_other_splits_alone(tiny):
    small, large = tiny(Full()), tiny(Full(), data={"train": 80})
    assert torch.equal(make_split(small, "heldout")[0], make_split(large, "heldout")[0])


def test_sequence_tasks_train_on_the_tape(tiny):
    run = tiny(TopK(5), task={"name": "stack_manipulation", "length": 6}, model={"read_out": "tape"})
    population = Population([run], dtype=torch.float64)
    assert population.splits["train"].targets.shape == (1, 60, 7)
    before = population.evaluate("train")
    for epoch in range(15):
        population.train_epoch(epoch)
    after = population.evaluate("train")
    assert after.loss < before.loss
    # Token accuracy is over counted tokens only, as a loop would count it.
    population.model.eval()
    tokens, targets, counted = make_split(run, "train")
    right = population.model(tokens[None])[0].argmax(-1) == targets
    assert after.accuracy[0] == right[counted].double().mean()
    assert after.sequence_accuracy[0] == (right | ~counted).all(1).double().mean()
    assert not counted.all()


def test_the_class_of_stack_manipulation_is_the_top_of_the_stack(tiny):
    run = tiny(Full(), task={"name": "stack_manipulation", "length": 6})
    tokens, targets, _ = make_split(run, "train")
    task = run.task.make()
    assert targets.shape == (60, 1)
    assert all(task.solve(row)[0] == target for row, target in zip(tokens, targets[:, 0].tolist(), strict=True))


def test_evaluation_leaves_the_training_as_it_was(tiny):
    runs = [tiny(RandomK(3)), tiny(TopK(3))]
    plain, watched = Population(runs), Population(runs)
    for epoch in range(2):
        plain.train_epoch(epoch)
        watched.train_epoch(epoch, lambda _: watched.evaluate("train", 7))
        watched.evaluate("heldout")
    assert torch.equal(plain.weights.matrix, watched.weights.matrix)


@pytest.mark.parametrize("pattern", [RandomK(3), SwappedTopK(3), PositionalTopK(3)], ids=lambda p: p.label)
def test_evaluation_does_not_depend_on_the_size_of_the_population(tiny, pattern):
    big = {"data": {"train": 60, "heldout": 47}, "task": {"length": 40}, "model": {"width": 64}}
    alone = Population([tiny(pattern, **big)], dtype=torch.float64).evaluate("heldout")
    together = Population([tiny(pattern, seed, **big) for seed in range(40)], dtype=torch.float64).evaluate("heldout")
    assert abs(alone.loss[0] - together.loss[0]) < 1e-12


@pytest.mark.parametrize(("name", "expected"), [("tf32", "high"), ("ieee", "highest")])
def test_steps_and_evaluations_bring_their_precision_along(tiny, monkeypatch, name, expected):
    """The clock times single steps: outside an epoch they are to be what they are inside."""
    population = Population([dataclasses.replace(tiny(Full()), precision=name)])
    seen, forward = [], population.model.forward

    def watched(*inputs):
        seen.append(torch.get_float32_matmul_precision())
        return forward(*inputs)

    monkeypatch.setattr(population.model, "forward", watched)
    before = torch.get_float32_matmul_precision()
    population.start_epoch(0)
    population.train_step()
    population.evaluate("heldout")
    assert len(seen) >= 2
    assert set(seen) == {expected}
    assert torch.get_float32_matmul_precision() == before


def test_a_member_that_diverges_is_frozen_and_the_others_go_on(tiny):
    runs = [tiny(Full()), with_optimiser(tiny(Full(), 1), learning_rate=1e30, clip=0.0), tiny(TopK(3))]
    population, healthy = Population(runs), Population([runs[0], runs[2]])
    for epoch in range(3):
        population.train_epoch(epoch)
        healthy.train_epoch(epoch)
    assert population.alive.tolist() == [True, False, True]
    assert population.weights.matrix.isfinite().all()
    torch.testing.assert_close(population.weights.matrix[[0, 2]], healthy.weights.matrix, atol=1e-6, rtol=0)


def test_a_user_s_pattern_is_tried_before_it_is_compiled(tiny):
    @dataclasses.dataclass(frozen=True)
    class Wrong(Pattern):
        input_dependent = True

        def keep(self, q, k, visible):
            return q @ k > 0

    with pytest.raises(RuntimeError, match="Expected size") as caught:  # not what a compiler makes of it
        Population([tiny(Wrong(), task={"length": 9})], compiled=True)
    assert type(caught.value) is RuntimeError
