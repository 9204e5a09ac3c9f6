"""The paper's way to put language to its encoder: which token follows this window of a sentence?"""

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..tasks.base import Examples, IntArray, Task, as_tensor
from ..training.strict import ConfigError
from .corpus import read_text, refuse_another

#: A run's splits, and the file behind each.
FILES = {"train": "train", "heldout": "valid", "test": "test"}


@dataclass(frozen=True)
class NextToken(Task):
    """The token that follows a window of text.

    Three UTF-8 files with a sentence on each line, cut into pieces by sentencepiece, which is trained on the first.
    A window of n tokens moves by one token inside its sentence, and the token behind it is the class: of the sentence
    a b c d e and n = 3 there are the windows a b c (class d) and b c d (class e). Sentences that are not longer than a
    window give none.

    It is no task of the registry: text has no rule to solve it by.
    """

    train: str = ""
    valid: str = ""
    test: str = ""
    pieces: str = "unigram"  # or "bpe"
    vocabulary: int = 4096
    sha256: str = ""  # of the three files; filled in before a study trains

    def __post_init__(self) -> None:
        if self.pieces not in ("unigram", "bpe"):
            raise ValueError(f"pieces is {self.pieces!r}; choose unigram or bpe")

    @property
    def num_classes(self) -> int:
        return self.vocabulary

    def split(self, name: str, rng: np.random.Generator, n: int, length: int) -> Examples:
        """All windows of a split's file, in their order."""
        windows = self.read().windows(name, length)
        if len(windows) != n:
            raise ConfigError(f"data.{name} is {n}; the file has {len(windows)} windows of {length} tokens")
        return Examples(as_tensor(windows[:, :-1]), as_tensor(windows[:, -1:]))

    def read(self) -> Sentences:
        """The files' tokens. Refused in one sentence where a file will not do, or is not the one planned with."""
        text = sentences(self.train, self.valid, self.test, self.pieces, self.vocabulary)
        refuse_another("task.options.sha256", self.sha256, text.sha256)
        return text

    def _sample(self, rng: np.random.Generator, n: int, length: int) -> tuple[IntArray, IntArray]:
        windows = self.read().windows("train", length)
        drawn = windows[rng.integers(0, len(windows), n)]
        return drawn[:, :-1], drawn[:, -1]

    def _solve(self, tokens: list[int]) -> list[int]:
        raise ValueError("next_token cannot be solved: what follows in a text is no function of what came before")


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences of the three files as token ids."""

    splits: dict[str, list[IntArray]]
    sha256: str

    def mean_length(self) -> int:
        """Of the training sentences, rounded."""
        return round(float(np.mean([len(ids) for ids in self.splits["train"]])))

    def windows(self, split: str, length: int) -> IntArray:
        """(n, length + 1): windows and the token behind each."""
        long = [ids for ids in self.splits[split] if len(ids) > length]
        if not long:
            raise ConfigError(
                f"task.options.{FILES[split]} has no sentence of more than {length} tokens; give a longer text"
            )
        return np.concatenate([np.lib.stride_tricks.sliding_window_view(ids, length + 1) for ids in long])


@lru_cache(maxsize=4)
def sentences(train: str, valid: str, test: str, pieces: str, vocabulary: int) -> Sentences:
    """The three files, read and cut into pieces once in a process."""
    paths = dict(zip(FILES, (train, valid, test), strict=True))
    for split, path in paths.items():
        if not path:
            every = " ".join(f"task.options.{name}=FILE" for name in FILES.values())
            raise ConfigError(f"task.options.{FILES[split]} is missing; give the three text files: {every}")
    texts = {split: read_text(Path(path), f"task.options.{FILES[split]}") for split, path in paths.items()}
    lines = {split: [line for raw in text.splitlines() if (line := raw.strip())] for split, text in texts.items()}
    model = _sentence_pieces(lines["train"], pieces, vocabulary)
    ids = {split: [np.asarray(one, np.int64) for one in model.encode(found)] for split, found in lines.items()}
    digest = hashlib.sha256("\0".join("\n".join(found) for found in lines.values()).encode()).hexdigest()
    return Sentences(ids, digest)


def _sentence_pieces(lines: list[str], pieces: str, vocabulary: int) -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise ConfigError("next_token needs the package sentencepiece: pip install 'semfocus[text]'") from None
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=written,
            vocab_size=vocabulary,
            model_type=pieces,
            character_coverage=1.0,
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        most = re.search(r"<= (\d+)", str(error))
        says = f"this text supports at most {most[1]}" if most else f"sentencepiece refused it ({error})"
        raise ConfigError(f"task.options.vocabulary is {vocabulary}; {says}") from None
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
