"""The rules of single tasks: other ways to the same answer, malformed input, and answers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus import tasks

quick = settings(deadline=None, max_examples=60)
TASKS = {name: tasks.get(name) for name in tasks.names()}


def ids(vocabulary, **sizes):
    return st.lists(st.integers(0, vocabulary - 1), **{"min_size": 1, "max_size": 60, **sizes})


def little_endian(bits):
    return sum(bit * 2**place for place, bit in enumerate(bits))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
@quick
@given(st.data())
def test_any_ids_are_solved_or_refused(task, data):
    tokens = data.draw(ids(task.vocabulary))
    try:
        answer = task.solve(tokens)
    except ValueError:
        return
    assert len(answer) == task.output_length(len(tokens))
    assert set(answer) <= set(range(task.num_classes))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
@quick
@given(seed=st.integers(0, 2**32), where=st.floats(0, 1, exclude_max=True), what=st.integers(0, 14))
def test_a_spoilt_example_is_solved_or_refused(task, seed, where, what):
    length = max(task.minimum_length, 12)
    tokens = task.sample(np.random.default_rng(seed), 1, length).tokens[0].tolist()
    tokens[int(where * len(tokens))] = what % task.vocabulary
    try:
        assert len(task.solve(tokens)) == task.output_length(length)
    except ValueError as error:
        assert str(error)  # noqa: PT017


@quick
@given(ids(2))
def test_even_pairs_compares_the_ends(bits):
    assert TASKS["even_pairs"].solve(bits) == [int(bits[0] != bits[-1])]


@quick
@given(ids(2))
def test_parity_is_a_sum(bits):
    assert TASKS["parity_check"].solve(bits) == [sum(bits) % 2]


@quick
@given(ids(3))
def test_a_walk_and_its_mirror_image_cancel(moves):
    task = TASKS["cycle_navigation"]
    assert (task.solve(moves)[0] + task.solve([2 - move for move in moves])[0]) % 5 == 0


@quick
@given(ids(2))
def test_strings(bits):
    assert TASKS["reverse_string"].solve(bits) == bits[::-1]
    assert TASKS["duplicate_string"].solve(bits) == bits * 2
    assert TASKS["odds_first"].solve(bits) == bits[1::2] + bits[::2]


@quick
@given(ids(5))
def test_bucket_sort_sorts(symbols):
    assert TASKS["bucket_sort"].solve(symbols) == sorted(symbols)


@quick
@given(ids(2), ids(2))
def test_sums_and_products_of_binary_numbers(a, b):
    tokens = [*a, 2, *b]
    for name, value in {
        "binary_addition": little_endian(a) + little_endian(b),
        "binary_multiplication": little_endian(a) * little_endian(b),
    }.items():
        answer = TASKS[name].solve(tokens)
        end = answer.index(2)
        assert little_endian(answer[:end]) == value
        assert end == max(value.bit_length(), 1)
        assert not any(answer[end + 1 :])


@quick
@given(ids(2, max_size=200))
def test_the_root_is_the_largest_whose_square_fits(bits):
    root, number = (little_endian(row[::-1]) for row in (TASKS["compute_sqrt"].solve(bits), bits))
    assert root**2 <= number < (root + 1) ** 2


@pytest.mark.parametrize("length", [61, 62, 63, 64, 65, 128])
def test_numbers_around_the_machine_word(length):
    for name in ("compute_sqrt", "binary_addition", "binary_multiplication"):
        examples = TASKS[name].sample(np.random.default_rng(length), 200, length)
        assert [TASKS[name].solve(row) for row in examples.tokens] == examples.targets.tolist()


def test_the_root_of_a_large_square_is_exact():
    root = 2**31 - 1
    for number, expected in [(root**2, root), (root**2 - 1, root - 1), (root**2 + 1, root)]:
        bits = [int(bit) for bit in f"{number:062b}"]
        answer = TASKS["compute_sqrt"].solve(bits)
        assert little_endian(answer[::-1]) == expected == math.isqrt(number)


@quick
@given(st.text("01234+-*()", min_size=1, max_size=12))
def test_bracket_expressions_mean_what_python_means(text):
    try:
        answer = TASKS["modular_arithmetic_brackets"].solve(["01234+-*()".index(character) for character in text])
    except ValueError:
        return
    assert answer == [eval(text) % 5]


@quick
@given(seed=st.integers(0, 2**32), length=st.integers(1, 60))
def test_sampled_bracket_expressions_mean_what_python_means(seed, length):
    examples = TASKS["modular_arithmetic_brackets"].sample(np.random.default_rng(seed), 3, length)
    values = [eval("".join("01234+-*()"[token] for token in row)) % 5 for row in examples.tokens]
    assert examples.targets[:, 0].tolist() == values


@quick
@given(seed=st.integers(0, 2**32), length=st.integers(1, 60))
def test_sampled_sums_of_products_mean_what_python_means(seed, length):
    examples = TASKS["modular_arithmetic"].sample(np.random.default_rng(seed), 3, length)
    values = [eval("".join("01234+-*"[token] for token in row)) % 5 for row in examples.tokens]
    assert examples.targets[:, 0].tolist() == values


@quick
@given(seed=st.integers(0, 2**32), length=st.integers(3, 60))
def test_solutions_solve_their_equation(seed, length):
    examples = TASKS["solve_equation"].sample(np.random.default_rng(seed), 3, length)
    for row, (x,) in zip(examples.tokens, examples.targets.tolist(), strict=True):
        left, right = "".join("01234+-()x="[token] for token in row).split("=")
        assert eval(left, {"x": x}) % 5 == int(right)


def test_hidden_bits_follow_from_the_parity_of_the_others():
    for length in (2, 3, 13, 40):
        examples = TASKS["missing_duplicate_string"].sample(np.random.default_rng(0), 100, length)
        assert ((examples.tokens == 1).sum(dim=1) % 2).tolist() == examples.targets[:, 0].tolist()


@pytest.mark.parametrize(
    ("name", "tokens", "answer"),
    [
        ("cycle_navigation", [0, 0], [3]),
        ("modular_arithmetic", [2, 5, 3, 7, 4], [4]),  # 2 + 3 * 4
        ("modular_arithmetic", [1, 6, 2, 6, 3], [1]),  # 1 - 2 - 3
        ("modular_arithmetic_brackets", [6, 4], [1]),
        ("modular_arithmetic_brackets", [8, 8, 2, 7, 6, 3, 9, 5, 4, 9], [3]),  # ((2*-3)+4)
        ("solve_equation", [0], [0]),
        ("solve_equation", [0, 0], [0]),
        ("solve_equation", [9, 10, 4], [4]),
        ("solve_equation", [6, 9, 10, 1], [4]),
        ("stack_manipulation", [1, 2, 2, 3], [0, 2, 0, 0, 0]),  # Popping an empty stack does nothing.
        ("stack_manipulation", [1, 2], [2, 0, 0]),
        ("stack_manipulation", [1], [1, 2]),
        ("missing_duplicate_string", [1], [1]),
        ("missing_duplicate_string", [0, 1, 0, 2, 3], [1]),
        ("binary_addition", [0, 1], [0, 1, 2]),  # Too short for two numbers: the number itself.
        ("binary_addition", [0, 2, 0], [0, 2, 0, 0]),
        ("binary_multiplication", [1], [2]),
        ("binary_multiplication", [0, 1], [0, 2]),
        ("compute_sqrt", [0, 0, 0], [0, 0]),
        ("listops", [7], [7]),
        ("listops", [12, 3, 4, 14], [3]),
        ("listops", [12, 9, 1, 4, 14], [4]),
        ("listops", [13, 9, 8, 14, 15, 15], [7]),
    ],
)
def test_answers_worked_out_by_hand(name, tokens, answer):
    assert TASKS[name].solve(tokens) == answer


@pytest.mark.parametrize(
    ("name", "tokens", "complaint"),
    [
        ("modular_arithmetic", [1, 5], "ends with the operator 5"),
        ("modular_arithmetic", [1, 2], r"tokens\[1\] is 2"),
        ("modular_arithmetic", [8], r"tokens\[0\] is 8"),
        ("modular_arithmetic", [1, 8, 1], r"tokens\[1\] is 8"),
        ("modular_arithmetic_brackets", [8, 1], "leaves 1 brackets open"),
        ("modular_arithmetic_brackets", [1, 9], "at position 1 that was never opened"),
        ("modular_arithmetic_brackets", [8, 9], "operand is missing"),
        ("modular_arithmetic_brackets", [8, 1, 5, 2, 6, 3, 9], "between two operands"),
        ("modular_arithmetic_brackets", [1, 2], "operand is missing"),
        ("modular_arithmetic_brackets", [10], "operand is missing"),
        ("solve_equation", [9, 10], "no equation"),
        ("solve_equation", [7, 9, 5, 9, 8, 10, 1], "no equation"),
        ("solve_equation", [1, 10, 1], "no equation"),
        ("solve_equation", [9, 10, 1, 10, 1], "no equation"),
        ("solve_equation", [9, 8, 10, 1], "never opened"),
        ("stack_manipulation", [0, 2, 1], r"tokens\[2\] is 1"),
        ("missing_duplicate_string", [0], "needs one 2"),
        ("missing_duplicate_string", [0, 1, 0, 1], "needs one 2"),
        ("missing_duplicate_string", [2, 1, 1, 2], "needs one 2"),
        ("missing_duplicate_string", [2, 3], "a 3 at its end"),
        ("missing_duplicate_string", [2, 0, 1], "a 3 at its end"),
        ("missing_duplicate_string", [0, 2, 1, 0], "same string"),
        ("binary_addition", [1, 1, 1], "one operator"),
        ("binary_addition", [2, 1], "one operator"),
        ("binary_multiplication", [1, 2, 2, 1], "one operator"),
        ("binary_multiplication", [1, 1, 2], "one operator"),
        ("listops", [10, 1], "leaves 1 lists open"),
        ("listops", [1, 14], r"tokens\[1\] closes a list never opened"),
        ("listops", [10, 14], r"tokens\[1\] closes an empty list"),
        ("listops", [1, 2], "2 values"),
        ("listops", [15, 1], r"tokens\[0\] is 15"),
        ("listops", [15, 15], "empty"),
    ],
)
def test_malformed_input_is_explained(name, tokens, complaint):
    with pytest.raises(ValueError, match=complaint):
        TASKS[name].solve(tokens)


def test_without_multiplication_a_product_is_refused():
    with pytest.raises(ValueError, match=r"tokens\[2\] is 7"):
        tasks.get("modular_arithmetic_brackets", multiplication=False).solve([8, 1, 7, 2, 9])


@pytest.mark.parametrize(
    ("name", "opening", "closing", "digit"), [("modular_arithmetic_brackets", 8, 9, 3), ("listops", 10, 14, 3)]
)
def test_nesting_may_be_deep(name, opening, closing, digit):
    depth = 5000
    assert TASKS[name].solve([opening] * depth + [digit] + [closing] * depth) == [digit]
    with pytest.raises(ValueError, match="open"):
        TASKS[name].solve([opening] * depth + [digit])
