"""Text as ids, and the paper's windows."""

import numpy as np
import pytest
import torch

from semfocus.text.corpus import Corpus
from semfocus.text.next_token import NextToken
from semfocus.text.tokens import byte_pairs, tokenised
from semfocus.training.strict import ConfigError

TEXT = "the cat sat on the mat, the dog sat on the log; " * 40


def test_bytes_are_the_text_itself():
    tokens = tokenised(Corpus("né\n" * 10, "é", ""), "bytes", 256)
    assert bytes(tokens.train.tolist()).decode() == "né\n" * 10
    assert tokens.heldout.tolist() == list("é".encode())
    assert tokens.characters_per_token == 0.5


def test_byte_pairs_come_from_the_training_text_alone():
    tokens = tokenised(Corpus(TEXT, "zebra zebra " * 500, ""), "bpe", 270)
    pieces = byte_pairs(TEXT, 270)
    assert pieces.decode(tokens.train.tolist()) == TEXT
    assert len(tokens.train) < len(TEXT) / 2  # "the", "sat" and the like are pieces
    assert len(tokens.heldout) > 0.7 * len("zebra zebra " * 500)  # "zebra" is not
    assert int(tokens.train.max()) < 270
    assert torch.equal(tokenised(Corpus(TEXT, TEXT, ""), "bpe", 270).train, tokens.train)  # the same every time


def test_a_vocabulary_that_the_text_does_not_support():
    with pytest.raises(ConfigError, match=r"text.vocabulary is 5000; this text gives \d+ pieces, so ask for \d+ or"):
        byte_pairs(TEXT, 5000)


def test_byte_pairs_of_a_text_that_has_nothing_to_hold_out():
    tokens = tokenised(Corpus("a", "", ""), "bpe", 256)
    assert (len(tokens.train), len(tokens.heldout)) == (1, 0)
    assert tokens.train.dtype == tokens.heldout.dtype == torch.int32


@pytest.fixture
def three(tmp_path):
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    rng = np.random.default_rng(0)
    for name, lines in (("train", 60), ("valid", 12), ("test", 12)):
        sentences = [" ".join(rng.choice(words, rng.integers(3, 12))) for _ in range(lines)]
        (tmp_path / f"{name}.txt").write_text("\n".join(sentences) + "\n\n")
    return {name: str(tmp_path / f"{name}.txt") for name in ("train", "valid", "test")}


@pytest.mark.parametrize("pieces", ["unigram", "bpe"])
def test_windows_move_by_one_token_inside_a_sentence(three, pieces):
    task = NextToken(**three, pieces=pieces, vocabulary=26)
    text = task.read()
    length = text.mean_length()
    assert length == round(np.mean([len(ids) for ids in text.splits["train"]]))
    windows = text.windows("heldout", length)
    by_hand = [list(ids[i : i + length + 1]) for ids in text.splits["heldout"] for i in range(len(ids) - length)]
    assert windows.tolist() == [list(map(int, row)) for row in by_hand]
    examples = task.split("heldout", np.random.default_rng(0), len(windows), length)
    assert examples.tokens.shape == (len(windows), length)
    assert examples.targets[:, 0].tolist() == [row[-1] for row in by_hand]
    assert int(examples.tokens.max()) < 26


def test_files_that_will_not_do(three, tmp_path):
    with pytest.raises(ConfigError, match=r"task.options.valid is missing; .* task.options.test=FILE"):
        NextToken(train=three["train"]).read()
    with pytest.raises(ConfigError, match=r"task.options.vocabulary is 4096; this text supports at most \d+"):
        NextToken(**three).read()
    with pytest.raises(ConfigError, match=r"task.options.sha256 is 000000000000\.\.\.; the text is another one now"):
        NextToken(**three, vocabulary=26, sha256="0" * 64).split("train", np.random.default_rng(0), 1, 5)
    with pytest.raises(ConfigError, match="no sentence of more than 900 tokens"):
        NextToken(**three, vocabulary=26).read().windows("test", 900)
    with pytest.raises(ValueError, match="cannot be solved"):
        NextToken(**three, vocabulary=26).solve([1, 2])
