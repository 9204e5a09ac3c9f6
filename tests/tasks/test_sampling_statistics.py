"""Samples follow the stated rule: frequencies within four standard errors of exact ones, and what always holds.

The probabilities are worked out below by dynamic programming over the sampling rule, and agree to all given digits with
values published along with the rows of the original generators.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest

from semfocus import tasks

LENGTH = 40
N = 20_000
BITS = ["parity_check", "even_pairs", "reverse_string", "duplicate_string", "odds_first"]


@cache
def drawn(name, length=LENGTH, n=N, **options):
    examples = tasks.get(name, **options).sample(np.random.default_rng(20), n, length)
    return examples.tokens.numpy(), examples.targets.numpy()


@cache
def drawn_brackets(multiplication):
    examples = tasks.get("modular_arithmetic_brackets", multiplication=multiplication)
    examples = examples.sample(np.random.default_rng(21), N, LENGTH)
    return examples.tokens.numpy(), examples.targets.numpy()


def assert_frequencies(values, probabilities):
    """``probabilities`` maps each value that can occur to its probability."""
    assert set(np.unique(values).tolist()) <= set(probabilities)
    n = np.size(values)
    # A standard error says little about a value expected a few times, so those are counted together.
    rare = [value for value, p in probabilities.items() if n * p < 10]
    groups = [[value] for value in probabilities if value not in rare]
    for group in [*groups, rare]:
        p = sum(probabilities[value] for value in group)
        error = np.sqrt(p * (1 - p) / n) if p < 1 else 0
        assert np.isin(values, group).mean() == pytest.approx(p, abs=4 * error + 1 / n), group


def assert_mean(values, mean):
    assert np.mean(values) == pytest.approx(mean, abs=4 * np.std(values) / np.sqrt(len(values)))


def uniform(values):
    return dict.fromkeys(values, 1 / len(values))


# Exact probabilities for bracket expressions of a given size.


@cache
def values_of_size(size, operators):
    """Probabilities of the five values."""
    if size <= 4:
        return np.full(5, 0.2)
    apply = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
    result = np.zeros(5)
    for left in range(1, size - 3):
        a, b = values_of_size(left, operators), values_of_size(size - 3 - left, operators)
        for x, y, operator in product(range(5), range(5), operators):
            result[apply[operator](x, y) % 5] += a[x] * b[y] / len(operators) / (size - 4)
    return result


@cache
def operands_of_size(size):
    """Expected numbers of digits and of unary minuses."""
    if size <= 4:
        return np.array([1.0, float(size in (2, 4))])
    return np.mean([operands_of_size(left) + operands_of_size(size - 3 - left) for left in range(1, size - 3)], axis=0)


@cache
def shallow(size, depth):
    """The probability that brackets nest at most ``depth`` deep."""
    if size <= 4:
        return float(depth >= (size > 2))
    if depth == 0:
        return 0.0
    return np.mean([shallow(left, depth - 1) * shallow(size - 3 - left, depth - 1) for left in range(1, size - 3)])


def test_the_exact_values_are_those_published():
    for size, class_zero in {5: 0.253333, 8: 0.253333, 13: 0.269631, 20: 0.279421, 38: 0.290813, 40: 0.291594}.items():
        assert values_of_size(size, "+-*")[0] == pytest.approx(class_zero, abs=6e-7)
    assert values_of_size(40, "+-") == pytest.approx(np.full(5, 0.2))
    assert operands_of_size(40) == pytest.approx([8.641855, 3.272357], abs=6e-7)
    assert operands_of_size(38) == pytest.approx([8.239908, 3.120155], abs=6e-7)
    published = {
        40: {4: 0.148444, 5: 0.520508, 6: 0.274240, 7: 0.052965, 8: 0.003773, 9: 0.000069},
        38: {4: 0.206463, 5: 0.525743, 6: 0.230347, 7: 0.035676, 8: 0.001757, 9: 0.000015},
    }
    for size, depths in published.items():
        for depth, p in depths.items():
            assert shallow(size, depth) - shallow(size, depth - 1) == pytest.approx(p, abs=6e-7)


def assert_expressions(tokens, opening, closing, operators):
    """Balanced, of the right mix, with brackets as deep and digits as many as they should be."""
    size = tokens.shape[1]
    depth = np.cumsum((tokens == opening).astype(int) - (tokens == closing), axis=1)
    assert (depth[:, :-1] > 0).all()  # The outer pair spans the whole expression.
    assert (depth[:, -1] == 0).all()
    assert_frequencies(depth.max(axis=1), {d: shallow(size, d) - shallow(size, d - 1) for d in range(1, size)})
    digits, minuses = operands_of_size(size)
    is_digit = tokens < 5
    assert_mean(is_digit.sum(axis=1), digits)
    # A minus is unary unless an operand ends just before it.
    unary = (tokens[:, 1:] == 6) & ~(is_digit[:, :-1] | (tokens[:, :-1] == closing))
    assert_mean(unary.sum(axis=1), minuses)
    binary = np.isin(tokens[:, 1:], operators) & ~unary
    assert (binary.sum(axis=1) == is_digit.sum(axis=1) - 1).all()
    assert_frequencies(tokens[:, 1:][binary], uniform(operators))
    # The left operand of the outermost operator ends where the depth is 1 and a binary operator follows.
    split = ((depth[:, 1:] == 1) & binary).argmax(axis=1)
    assert_frequencies(split, uniform(range(1, size - 3)))


@pytest.mark.parametrize("multiplication", [True, False])
def test_modular_arithmetic_brackets(multiplication):
    tokens, targets = drawn_brackets(multiplication)
    operators = "+-*" if multiplication else "+-"
    assert_frequencies(targets, dict(enumerate(values_of_size(LENGTH, operators))))
    assert_expressions(tokens, opening=8, closing=9, operators=[5, 6, 7][: len(operators)])
    assert_frequencies(tokens[tokens < 5], uniform(range(5)))


def test_solve_equation():
    tokens, targets = drawn("solve_equation")
    assert ((tokens == 9).sum(axis=1) == 1).all()
    assert ((tokens == 10).sum(axis=1) == 1).all()
    assert (tokens[:, -2] == 10).all()
    assert (tokens[:, -1] < 5).all()
    left = np.where(tokens[:, :-2] == 9, 0, tokens[:, :-2])
    assert_expressions(left, opening=7, closing=8, operators=[5, 6])
    # Solution and right side are uniform and independent of one another.
    assert_frequencies(targets[:, 0] * 5 + tokens[:, -1], uniform(range(25)))


def test_the_unknown_is_the_next_digit_after_a_uniform_position():
    # In (d+d)=v, positions 4, 0 and 1 lead to the first digit, 2 and 3 to the second.
    tokens, _ = drawn("solve_equation", length=7)
    assert_frequencies((tokens == 9).argmax(axis=1), {1: 3 / 5, 3: 2 / 5})


@pytest.mark.parametrize("name", BITS)
def test_bits_are_fair(name):
    tokens, targets = drawn(name)
    for column in tokens.T:
        assert_frequencies(column, uniform(range(2)))
    assert_frequencies(targets[:, 0], uniform(range(2)))


@pytest.mark.parametrize(("length", "probabilities"), [
    (5, [0.21811, 0.20576, 0.18519, 0.18519, 0.20576]),
    (8, [0.20287, 0.20088, 0.19768, 0.19768, 0.20088]),
    (40, [0.2] * 5),
])  # fmt: skip
def test_cycle_navigation(length, probabilities):
    tokens, targets = drawn("cycle_navigation", length=length)
    walk = np.eye(5)[0]
    for _ in range(length):
        walk = (np.roll(walk, 1) + walk + np.roll(walk, -1)) / 3
    assert walk == pytest.approx(probabilities, abs=6e-6)
    assert_frequencies(targets, dict(enumerate(walk)))
    assert_frequencies(tokens, uniform(range(3)))


def test_modular_arithmetic():
    tokens, targets = drawn("modular_arithmetic")
    assert tokens.shape[1] == LENGTH - 1
    assert_frequencies(tokens[:, ::2], uniform(range(5)))
    assert_frequencies(tokens[:, 1::2], uniform([5, 6, 7]))
    assert_frequencies(targets, uniform(range(5)))


def stack_sizes(length):
    """The exact distributions of the final size: rows with no pop ignored, then rows with some."""
    result = np.zeros((2, length + 1))
    for height in range(1, length):
        sizes = np.zeros((2, length + 1))
        sizes[0, height] = 1 / (length - 1)
        for _ in range(length - height):
            pushed, popped = np.roll(sizes, 1, axis=1), np.roll(sizes, -1, axis=1)
            pushed[:, 0] = popped[:, -1] = 0
            moved = pushed * 2 / 3 + popped / 3
            moved[1, 0] += sizes[:, 0].sum() / 3
            sizes = moved
        result += sizes
    return result


def test_stack_manipulation():
    tokens, targets = drawn("stack_manipulation")
    exact = stack_sizes(LENGTH)
    by_size = exact.sum(axis=0)
    assert by_size @ np.arange(LENGTH + 1) == pytest.approx(26.691257, abs=6e-7)
    assert (by_size[0], by_size[40]) == pytest.approx((0.000271, 0.051282), abs=6e-7)
    assert (exact[1].sum(), by_size[1::2].sum()) == pytest.approx((0.012520, 0.008346), abs=6e-7)
    size = (targets == 2).argmax(axis=1)
    assert_frequencies(size, dict(enumerate(by_size)))
    assert_frequencies(targets[:, 0], {0: (1 - by_size[0]) / 2, 1: (1 - by_size[0]) / 2, 2: by_size[0]})
    actions = tokens >= 2
    assert (np.diff(actions.astype(int), axis=1) >= 0).all()  # A stack, then actions,
    assert not actions[:, 0].any()  # and neither is empty.
    assert actions[:, -1].all()
    assert_frequencies(actions.argmax(axis=1), uniform(range(1, LENGTH)))
    assert_frequencies(tokens[~actions], uniform(range(2)))
    assert_frequencies(tokens[actions], uniform([2, 3, 4]))


@pytest.mark.parametrize("length", [40, 41])
def test_missing_duplicate_string(length):
    tokens, targets = drawn("missing_duplicate_string", length=length)
    hidden = tokens == 2
    assert (hidden.sum(axis=1) == 1).all()
    assert ((tokens == 3).sum(axis=1) == length % 2).all()
    assert (tokens[:, 40:] == 3).all()
    assert_frequencies(hidden.argmax(axis=1), uniform(range(40)))
    assert_frequencies(targets, uniform(range(2)))


def test_bucket_sort():
    tokens, targets = drawn("bucket_sort")
    assert_frequencies(tokens, uniform(range(5)))
    assert (np.diff(targets, axis=1) >= 0).all()


@pytest.mark.parametrize("name", ["binary_addition", "binary_multiplication"])
def test_operands_are_uniform_and_positive(name):
    # Five tokens: 1 + 3, 2 + 2 or 3 + 1 bits, and every pair of positive numbers of these sizes is equally likely.
    tokens, _ = drawn(name, length=5)
    probabilities = {}
    for place in (1, 2, 3):
        numbers = [bits for bits in product((0, 1), repeat=4) if any(bits[:place]) and any(bits[place:])]
        for bits in numbers:
            row = [*bits[:place], 2, *bits[place:]]
            probabilities[int("".join(map(str, row)))] = 1 / 3 / len(numbers)
    assert_frequencies(tokens @ [10_000, 1000, 100, 10, 1], probabilities)


@pytest.mark.parametrize("name", ["binary_addition", "binary_multiplication"])
def test_the_place_of_the_operator_is_uniform(name):
    tokens, targets = drawn(name)
    assert ((tokens == 2).sum(axis=1) == 1).all()
    assert ((targets == 2).sum(axis=1) == 1).all()
    assert_frequencies((tokens == 2).argmax(axis=1), uniform(range(1, LENGTH - 1)))


def test_radicands_are_uniform_and_positive():
    tokens, _ = drawn("compute_sqrt", length=4)
    assert_frequencies(tokens @ [8, 4, 2, 1], uniform(range(1, 16)))
    wide, _ = drawn("compute_sqrt", length=70)
    for column in wide.T:
        assert_frequencies(column, uniform(range(2)))
