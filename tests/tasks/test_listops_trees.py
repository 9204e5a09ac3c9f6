"""ListOps: trees are drawn with exactly the probability the benchmark's rejection sampler gives them."""

import random
from collections import Counter, defaultdict
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus.tasks.listops import ListOps

DIGIT, CLOSE, PAD = 9, 14, 15
OPERATORS = range(10, 14)


def shape(tokens):
    """A tree without its digits and operator names, e.g. ``(d(dd))``."""
    return "".join("d" if t <= DIGIT else ")" if t == CLOSE else "(" for t in tokens if t != PAD)


def argument_counts(tokens):
    """The number of arguments of every operator, root last."""
    counts, open_lists = [], [0]
    for token in tokens:
        if token in OPERATORS:
            open_lists[-1] += 1
            open_lists.append(0)
        elif token == CLOSE:
            counts.append(open_lists.pop())
        elif token <= DIGIT:
            open_lists[-1] += 1
    assert open_lists == [1]
    return counts


class Trees:
    """A sample and what is known of each of its trees."""

    def __init__(self, n, seed=3, **options):
        task = ListOps(**options)
        examples = task.sample(np.random.default_rng(seed), n, task.minimum_length)
        self.n, self.tokens, self.targets = n, examples.tokens.numpy(), examples.targets[:, 0].numpy()
        self.is_digit = self.tokens <= DIGIT
        self.is_operator = np.isin(self.tokens, OPERATORS)
        self.length = (self.tokens != PAD).sum(axis=1)
        # Operators have the depth of their own list, arguments one more.
        self.depth = np.cumsum(self.is_operator.astype(int) - (self.tokens == CLOSE), axis=1) + self.is_digit
        self.arguments = [argument_counts(row) for row in self.tokens.tolist()]
        self.root_arguments = np.array([counts[-1] if counts else 0 for counts in self.arguments])

    def per_tree(self, hits):
        return hits.sum(axis=1)


@cache
def default_trees():
    return Trees(3000)


# Means and shares over 20,000 trees of the original generator with 501 to 599 tokens.
REFERENCE = 20_000


def assert_mean(values, mean, reference=REFERENCE, sd=None):
    sd = np.std(values) if sd is None else sd
    assert np.mean(values) == pytest.approx(mean, abs=4 * sd * np.sqrt(1 / len(values) + 1 / reference) + 0.005)


def assert_share(part, whole, share, reference=REFERENCE):
    """``part`` and ``whole`` are counts per tree: nodes of one tree are not independent, but trees are."""
    spread = np.std(part - share * whole) / np.mean(whole)
    error = 4 * spread * np.sqrt(1 / len(part) + 1 / reference) + 0.0001
    assert part.sum() / whole.sum() == pytest.approx(share, abs=error)


def assert_shares(hits, shares, reference=REFERENCE):
    """``hits`` holds one value per tree, ``shares`` how often each occurs in the reference."""
    for value, share in shares.items():
        assert_share((hits == value).astype(int), np.ones(len(hits)), share, reference)


def test_structure():
    trees = default_trees()
    assert trees.length.min() > 500
    assert trees.length.max() < 600
    column, last = np.arange(trees.tokens.shape[1]), trees.length[:, None] - 1
    assert ((trees.tokens == PAD) == (column > last)).all()  # Padding is at the end only.
    assert ((trees.depth > 0) == (column < last)).all()  # The root spans the tree and closes with it.
    assert trees.depth[trees.is_operator].max() == 9
    assert trees.depth[trees.is_digit].max() == 10
    counts = np.concatenate(trees.arguments)
    assert (counts.min(), counts.max()) == (2, 10)


def test_sizes_match_the_reference():
    trees = default_trees()
    assert_mean(trees.length, 549.27)
    assert_mean(trees.per_tree(trees.is_operator), 78.61)
    assert_mean(trees.per_tree(trees.is_digit), 392.06)
    tenths = [2075, 2138, 2028, 2053, 1815, 2020, 1945, 2018, 1956, 1952]
    hits = np.digitize(trees.length, np.linspace(501, 599, 11)[1:-1])
    assert_shares(hits, {i: count / REFERENCE for i, count in enumerate(tenths)})


def test_classes_match_the_reference():
    shares = [0.1594, 0.0940, 0.0791, 0.0862, 0.0909, 0.0888, 0.0755, 0.0736, 0.0888, 0.1636]
    assert_shares(default_trees().targets, dict(enumerate(shares)))


def test_roots_match_the_reference():
    trees = default_trees()
    shares = [0.0578, 0.0841, 0.1006, 0.1112, 0.1201, 0.1336, 0.1330, 0.1336, 0.1261]
    assert_shares(trees.root_arguments, dict(enumerate(shares, start=2)))
    assert_shares(trees.tokens[:, 0], dict.fromkeys(OPERATORS, 0.25), reference=10**9)
    nested = trees.per_tree(trees.is_operator & (trees.depth == 2))
    assert_shares(nested, {1: 0.3951, 2: 0.3761, 3: 0.1701, 4: 0.0475, 5: 0.0101, 6: 0.0010})


def test_nodes_match_the_reference():
    trees = default_trees()
    operators, digits = trees.per_tree(trees.is_operator), trees.per_tree(trees.is_digit)
    operator_depth = [0.0127, 0.0242, 0.0364, 0.0516, 0.0728, 0.1035, 0.1502, 0.2206, 0.3280]
    for depth, share in enumerate(operator_depth, start=1):
        assert_share(trees.per_tree(trees.is_operator & (trees.depth == depth)), operators, share)
    leaf_depth = [0.0117, 0.0220, 0.0328, 0.0464, 0.0656, 0.0933, 0.1353, 0.1988, 0.3940]
    for depth, share in enumerate(leaf_depth, start=2):
        assert_share(trees.per_tree(trees.is_digit & (trees.depth == depth)), digits, share)
    arguments = [0.1123, 0.1124, 0.1119, 0.1119, 0.1112, 0.1110, 0.1105, 0.1100, 0.1088]
    for count, share in enumerate(arguments, start=2):
        assert_share(np.array([counts.count(count) for counts in trees.arguments]), operators, share)


def test_operators_and_digits_are_uniform():
    trees = default_trees()
    for token in range(10):
        assert_share(trees.per_tree(trees.tokens == token), trees.per_tree(trees.is_digit), 0.1, reference=10**9)
    for token in OPERATORS:
        assert_share(trees.per_tree(trees.tokens == token), trees.per_tree(trees.is_operator), 0.25, reference=10**9)


def test_the_benchmarks_own_lengths_match_the_reference():
    trees = Trees(1500, min_length=500, max_length=2000)
    assert_mean(trees.length, 1031.96, reference=5000)
    assert_mean(trees.per_tree(trees.is_operator), 146.86, reference=5000)
    deepest = trees.per_tree(trees.is_digit & (trees.depth == 10))
    assert_share(deepest, trees.per_tree(trees.is_digit), 0.4181, reference=5000)


def test_short_trees_match_the_reference():
    trees = Trees(8000, min_length=2, max_length=60)
    assert_mean(trees.length, 12.88, reference=5000)
    assert_mean(trees.per_tree(trees.is_operator), 2.04, reference=5000)
    shares = [0.2032, 0.1656, 0.1422, 0.1210, 0.0918, 0.0908, 0.0720, 0.0636, 0.0498]
    assert_shares(trees.root_arguments, dict(enumerate(shares, start=2)), reference=5000)
    shares = [0.1338, 0.0952, 0.0926, 0.0964, 0.0952, 0.0964, 0.0866, 0.0900, 0.0954, 0.1184]
    assert_shares(trees.targets, dict(enumerate(shares)), reference=5000)


def all_shapes(depth, max_depth, max_args):
    """Every shape below a node of that depth, with its probability before any length is refused."""
    if depth == max_depth:
        return {"d": 1.0}
    shapes = {"d": 0.75}
    below = all_shapes(depth + 1, max_depth, max_args)
    for count in range(2, max_args + 1):
        for children in product(below, repeat=count):
            p = np.prod([below[child] for child in children])
            shapes[f"({''.join(children)})"] = 0.25 / (max_args - 1) * p
    return shapes


@pytest.mark.parametrize(
    ("max_depth", "max_args", "min_length", "max_length"),
    [(3, 3, 0, 30), (3, 3, 5, 12), (4, 2, 4, 20), (2, 5, 3, 8), (1, 2, 0, 2)],
)
def test_every_shape_has_its_exact_probability(max_depth, max_args, min_length, max_length):
    n = 20_000
    trees = Trees(n, min_length=min_length, max_length=max_length, max_depth=max_depth, max_args=max_args)
    expected = {s: p for s, p in all_shapes(1, max_depth, max_args).items() if min_length < len(s) < max_length}
    total = sum(expected.values())
    observed = Counter(shape(row) for row in trees.tokens.tolist())
    assert set(observed) <= set(expected)
    squares = sum((observed[s] - n * p / total) ** 2 / (n * p / total) for s, p in expected.items())
    freedom = len(expected) - 1
    assert squares <= freedom + 4 * np.sqrt(2 * freedom)


def reject(rng, max_depth, max_args, min_length, max_length):
    """Length and number of arguments of a tree as the benchmark draws it: again and again until its length will do."""

    def length(depth):
        if depth == max_depth or rng.random() >= 0.25:
            return 1, 0
        arguments = rng.randint(2, max_args)
        return 2 + sum(length(depth + 1)[0] for _ in range(arguments)), arguments

    while True:
        drawn = length(1)
        if min_length < drawn[0] < max_length:
            return drawn


def test_the_same_as_rejection():
    options = {"max_depth": 4, "max_args": 4, "min_length": 5, "max_length": 20}
    n, rng = 5000, random.Random(5)
    trees = Trees(n, **options)
    table = defaultdict(lambda: [0, 0])
    for key in zip(trees.length.tolist(), trees.root_arguments.tolist(), strict=True):
        table[key][0] += 1
    for _ in range(n):
        table[reject(rng, **options)][1] += 1
    cells = [(a, b) for a, b in table.values() if a + b >= 10]
    assert sum(a + b for a, b in cells) > 1.95 * n
    squares, freedom = sum((a - b) ** 2 / (a + b) for a, b in cells), len(cells) - 1
    assert freedom > 20
    assert squares <= freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "options",
    [
        {"min_length": 599},
        {"min_length": 700},
        {"min_length": 500, "max_length": 501},
        {"min_length": 1, "max_length": 4},  # The least operator has four tokens.
        {"max_depth": 3},  # Too shallow for so many tokens.
    ],
)
def test_impossible_lengths_are_refused(options):
    with pytest.raises(ValueError, match=r"min_length is .* and max_length is .* no tree"):
        ListOps(**options)


def test_rows_may_be_wider_than_trees():
    task = ListOps(min_length=3, max_length=20)
    narrow = task.sample(np.random.default_rng(0), 5, 19)
    wide = task.sample(np.random.default_rng(0), 5, 30)
    assert narrow.tokens.shape == (5, 19)
    assert (wide.tokens[:, 19:] == PAD).all()
    with pytest.raises(ValueError, match="length is 18; listops needs at least 19"):
        task.sample(np.random.default_rng(0), 5, 18)


def test_unknown_words_are_named():
    with pytest.raises(ValueError, match=r"source contains '\[FIRST'"):
        ListOps.encode("[MAX 1 [FIRST 2 3 ] ]")


def bracketed(tokens):
    """The benchmark's text, where each argument and the closing bracket end a pair of round brackets."""
    words = {**{d: str(d) for d in range(10)}, 10: "[MIN", 11: "[MAX", 12: "[MED", 13: "[SM"}
    lists = []
    for token in tokens:
        if token in OPERATORS:
            lists.append([words[token]])
            continue
        word = words[token] if token != CLOSE else _nested(*lists.pop())
        if not lists:
            return word
        lists[-1].append(word)
    raise AssertionError("the tree is not closed")


def _nested(operator, *arguments):
    return f"{'( ' * (len(arguments) + 1)}{operator} {' ) '.join([*arguments, ']'])} )"


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_round_brackets_change_nothing(seed):
    task = ListOps(min_length=3, max_length=60)
    examples = task.sample(np.random.default_rng(seed), 1, 59)
    tokens = [token for token in examples.tokens[0].tolist() if token != PAD]
    source = bracketed(tokens)
    assert len(source.split()) == 3 * len(tokens) - 2
    assert task.encode(source) == tokens
    assert task.encode(source.replace("( ", "").replace(" )", "")) == tokens
    assert task.solve(task.encode(source)) == examples.targets[0].tolist()
