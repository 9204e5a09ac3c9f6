"""Text as token ids: its bytes, or pieces found by byte-pair encoding on the training text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..training.strict import ConfigError
from .corpus import MEGABYTE, Corpus, load

BYTES = 256
#: Pieces are learnt on so many evenly spread characters of the training text: more would find the same ones.
LEARN_FROM = 10 * MEGABYTE
#: Characters that are encoded in one go.
BLOCK = 100_000


@dataclass(frozen=True, eq=False)
class Tokens:
    """Both texts as ids, on the CPU."""

    train: Tensor  # (n,) int32
    heldout: Tensor  # (n,) int32
    vocabulary: int
    characters_per_token: float  # of the held-out text
    corpus: Corpus


@lru_cache(maxsize=2)
def prepared(corpus: str, megabytes: float, tokenizer: str, vocabulary: int) -> Tokens:
    """A corpus's tokens, made once in a process."""
    return tokenised(load(corpus, megabytes), tokenizer, vocabulary)


def tokenised(corpus: Corpus, tokenizer: str, vocabulary: int) -> Tokens:
    """
    >>> tokens = tokenised(Corpus("abba", "ab", "an example"), "bytes", 256)
    >>> tokens.train.tolist(), tokens.heldout.tolist()
    ([97, 98, 98, 97], [97, 98])
    """
    texts = (corpus.train, corpus.heldout)
    if tokenizer == "bytes":
        ids = [torch.from_numpy(np.frombuffer(text.encode(), np.uint8).astype(np.int32)) for text in texts]
    else:
        pieces = byte_pairs(corpus.train, vocabulary)
        ids = [_encoded(pieces, text) for text in texts]
    return Tokens(ids[0], ids[1], vocabulary, len(corpus.heldout) / max(len(ids[1]), 1), corpus)


def byte_pairs(text: str, vocabulary: int) -> Any:
    """A byte-level BPE tokenizer with exactly so many pieces, learnt from the text."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise ConfigError(
            "text.tokenizer is 'bpe'; it needs the package tokenizers: pip install 'semfocus[text]' (or use 'bytes')"
        ) from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_sample(text), trainer)
    found = tokenizer.get_vocab_size()
    if found != vocabulary:
        raise ConfigError(
            f"text.vocabulary is {vocabulary}; this text gives {found} pieces, so ask for {found} or fewer"
        )
    return tokenizer


def _sample(text: str) -> Iterator[str]:
    """Blocks of the text, evenly spread where it is long."""
    every = max(1, len(text) // LEARN_FROM)
    return (text[i : i + BLOCK] for i in range(0, len(text), every * BLOCK))


def _encoded(tokenizer: Any, text: str) -> Tensor:
    blocks = [text[i : i + BLOCK] for i in range(0, len(text), BLOCK)]
    ids = [np.asarray(found.ids, np.int32) for found in tokenizer.encode_batch_fast(blocks)]
    return torch.from_numpy(np.concatenate([*ids, np.empty(0, np.int32)]))  # of an empty text there are none
