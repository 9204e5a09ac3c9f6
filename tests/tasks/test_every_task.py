"""What every task must do, whichever it is: these tests run over the whole registry."""

import doctest
import importlib
import pkgutil
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from semfocus import tasks
from semfocus.registry import Registry
from semfocus.tasks.base import Task, TaskError

TASKS = {name: tasks.get(name) for name in tasks.names()}
TASKS["modular_arithmetic_brackets without products"] = tasks.get("modular_arithmetic_brackets", multiplication=False)
TASKS["short listops"] = tasks.get("listops", min_length=0, max_length=41)

every_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())


def lengths(task):
    """The minimum, even and odd, small and usual, and one at which numbers no longer fit 64 bits."""
    extra = [0, 1, 2, 3, 4, 9]
    return [*(task.minimum_length + more for more in extra), *(n for n in (40, 41, 100) if n > task.minimum_length + 9)]


def draw(task, seed=0, n=50, length=None):
    return task.sample(np.random.default_rng(seed), n, length or max(task.minimum_length, 40))


def test_the_fifteen_tasks_of_the_benchmark_and_listops():
    assert tasks.names() == [
        "binary_addition", "binary_multiplication", "bucket_sort", "compute_sqrt", "cycle_navigation",
        "duplicate_string", "even_pairs", "listops", "missing_duplicate_string", "modular_arithmetic",
        "modular_arithmetic_brackets", "odds_first", "parity_check", "reverse_string", "solve_equation",
        "stack_manipulation",
    ]  # fmt: skip


@pytest.mark.parametrize("name", tasks.names())
def test_file_stem_is_the_name(name):
    task = tasks.get(name)
    assert task.name == name
    assert type(task).__module__ == f"semfocus.tasks.{name}"
    assert type(task).__name__.lower() == name.replace("_", "")


def test_unknown_names_and_options_get_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'parity_check'"):
        tasks.get("parity")
    with pytest.raises(ValueError, match="did you mean 'multiplication'"):
        tasks.get("modular_arithmetic_brackets", multiplications=False)


def test_names_are_listed_without_importing_torch():
    code = "import sys, semfocus.tasks as t; t.names(); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_exports_the_base_classes():
    assert isinstance(tasks.registry, Registry)
    assert isinstance(TASKS["parity_check"], tasks.Task)
    assert isinstance(draw(TASKS["parity_check"]), tasks.Examples)
    with pytest.raises(AttributeError, match="no attribute 'Tusk'"):
        _ = tasks.Tusk


@pytest.mark.parametrize("name", tasks.names())
def test_the_docstring_has_a_summary_and_a_worked_example(name):
    task = tasks.get(name)
    assert 10 < len(task.summary) < 100
    assert any("solve" in example.source for example in doctest.DocTestParser().get_examples(type(task).__doc__))


@pytest.mark.parametrize("module", ["", *(f".{module.name}" for module in pkgutil.iter_modules(tasks.__path__))])
def test_worked_examples_are_right(module):
    assert doctest.testmod(importlib.import_module(f"semfocus.tasks{module}")).failed == 0


@every_task
def test_sample_agrees_with_solve(task):
    for length in lengths(task):
        examples = draw(task, seed=length, length=length)
        assert [task.solve(row) for row in examples.tokens] == examples.targets.tolist()


@every_task
def test_shapes_types_and_ranges(task):
    for length in lengths(task):
        examples = draw(task, n=20, length=length)
        assert len(examples) == 20
        assert examples.tokens.shape == (20, task.input_length(length))
        assert examples.targets.shape == (20, task.output_length(length))
        assert examples.tokens.dtype == examples.targets.dtype == torch.int64
        assert examples.tokens.min() >= 0
        assert examples.targets.min() >= 0
        assert examples.tokens[examples.tokens != task.pad].max() < task.vocabulary
        assert examples.targets.max() < task.num_classes


@every_task
def test_only_listops_pads(task):
    assert task.pad == task.vocabulary
    assert (draw(task).tokens == task.pad).any() == (task.name == "listops")


@every_task
def test_no_examples_is_a_valid_request(task):
    examples = draw(task, n=0)
    assert len(examples) == 0
    assert examples.targets.shape == (0, task.output_length(max(task.minimum_length, 40)))
    assert task.answer_mask(examples.targets).shape == examples.targets.shape


@every_task
def test_the_generator_alone_decides(task):
    np.random.seed(1)
    torch.manual_seed(1)
    random.seed(1)
    first = draw(task, seed=7)
    np.random.seed(2)
    torch.manual_seed(2)
    random.seed(2)
    second = draw(task, seed=7)
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.targets, second.targets)
    assert not torch.equal(first.tokens, draw(task, seed=8).tokens)


@every_task
def test_global_generators_are_left_alone(task):
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), random.getstate()
    draw(task)
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), random.getstate()) == before


@every_task
def test_a_generator_moves_on(task):
    rng = np.random.default_rng(0)
    length = max(task.minimum_length, 40)
    assert not torch.equal(task.sample(rng, 20, length).tokens, task.sample(rng, 20, length).tokens)


@every_task
def test_numpy_integers_are_integers(task):
    length = np.int32(max(task.minimum_length, 40))
    assert torch.equal(task.sample(np.random.default_rng(0), np.int64(3), length).tokens, draw(task, n=3).tokens)


@every_task
def test_options_are_frozen_and_compared_by_value(task):
    assert type(task)(**vars(task)) == task
    assert hash(type(task)(**vars(task))) == hash(task)
    with pytest.raises(AttributeError):
        task.anything = 1


@every_task
def test_bad_lengths_are_named(task):
    least = task.minimum_length
    with pytest.raises(ValueError, match=f"length is {least - 1}; {task.name} needs at least {least}"):
        task.sample(np.random.default_rng(0), 1, least - 1)
    for length in (-3, 40.0, "40", None, True):
        with pytest.raises(ValueError, match=f"length is {length!r}; .* at least {least}"):
            task.sample(np.random.default_rng(0), 1, length)


@every_task
def test_bad_numbers_of_examples_are_named(task):
    for n in (-1, 1.0, "1", None, True):
        with pytest.raises(ValueError, match=f"n is {n!r}; .* at least 0"):
            draw(task, n=n)


@every_task
def test_bad_generators_are_named(task):
    for rng in (None, 0, np.random, np.random.RandomState(0), torch.Generator()):
        with pytest.raises(ValueError, match=r"rng is .* numpy Generator"):
            task.sample(rng, 1, max(task.minimum_length, 40))


@every_task
def test_bad_tokens_are_named(task):
    for bad in (-1, task.vocabulary + 1, 1.0, "1", None, True, [0]):
        with pytest.raises(ValueError) as error:
            task.solve([0, 0, bad, 0])
        assert str(error.value).startswith(f"tokens[2] is {bad!r}; {task.name} has the ids 0..{task.vocabulary - 1}")


@every_task
def test_what_is_no_sequence_is_refused(task):
    for tokens in ([], (), torch.tensor([], dtype=torch.int64), 0, None, "01", np.int64(0), torch.tensor(0)):
        with pytest.raises(ValueError, match="tokens is"):
            task.solve(tokens)
    with pytest.raises(ValueError, match=r"tokens\[0\] is \[0"):
        task.solve(torch.zeros(2, 3, dtype=torch.int64))


@every_task
def test_solve_takes_lists_tuples_arrays_and_tensors(task):
    row = draw(task, n=1).tokens[0]
    answer = task.solve(row)
    for tokens in (row.tolist(), tuple(row.tolist()), row.numpy(), list(row.numpy()), row.to(torch.uint8)):
        assert task.solve(tokens) == answer
    assert all(type(token) is int for token in answer)


@every_task
def test_the_answer_ends_with_its_terminator(task):
    targets = draw(task).targets
    mask = task.answer_mask(targets)
    assert mask.dtype == torch.bool
    if task.name in ("stack_manipulation", "binary_addition", "binary_multiplication"):
        expected = [[j <= row.index(2) for j in range(len(row))] for row in targets.tolist()]
        assert mask.tolist() == expected
        assert not targets[~mask].any()
    else:
        assert mask.all()


def test_options_are_checked():
    with pytest.raises(ValueError, match="multiplication is 1; it must be True or False"):
        tasks.get("modular_arithmetic_brackets", multiplication=1)
    for option, value in [("max_args", 1), ("max_depth", 0), ("min_length", -1), ("max_length", 1)]:
        with pytest.raises(ValueError, match=f"{option} is {value}; listops needs at least"):
            tasks.get("listops", **{option: value})


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        (lambda n, t: (np.full((n, t), 0.5), np.zeros(n, int)), "tokens is an array of float64"),
        (lambda n, t: ([[0] * t] * n, np.zeros(n, int)), "tokens is of type list"),
        (lambda n, t: (np.full((n, t), -256), np.zeros(n, int)), r"tokens holds -256; it must lie in 0\.\.2"),
        (lambda n, t: (np.full((n, t), 3), np.zeros(n, int)), r"tokens holds 3; it must lie in 0\.\.2"),
        (lambda n, t: (np.zeros((n, t), int), np.full(n, 3)), r"targets holds 3; it must lie in 0\.\.2"),
        (lambda n, t: (np.zeros((n, t + 1), int), np.zeros(n, int)), r"tokens has shape \(4, 6\); it must be \(4, 5\)"),
        (lambda n, t: np.zeros(3)[n], "_sample: index 4 is out of bounds"),
    ],
)
def test_a_task_that_draws_nonsense_is_named(drawn, words):
    class Own(Task):
        vocabulary, num_classes = 2, 3

        def _sample(self, rng, n, length):
            return drawn(n, length)

        def _solve(self, tokens):
            return [0]

    with pytest.raises(TaskError, match=rf"^own\._sample.*{words.removeprefix('_sample: ')}"):
        Own().sample(np.random.default_rng(0), 4, 5)
