"""The batches of a run: sequences of the training text, each at most once, in an order that the seed alone decides."""

from __future__ import annotations

import torch
from torch import Tensor

from ..text import corpus
from ..text.corpus import Corpus
from ..text.tokens import Tokens, prepared
from ..training.data import batch_order
from ..training.strict import ConfigError
from .config import FALL, LanguageConfig


def corpus_of(config: LanguageConfig) -> Corpus:
    """A run's corpus; refused where it is not the one the run was planned with."""
    found = corpus.load(config.corpus, config.text.megabytes)
    corpus.refuse_another("text.sha256", config.text.sha256, found.sha256)
    return found


def text_of(config: LanguageConfig) -> Tokens:
    """The tokens of a run's corpus; refused where they are too few, or not those the run was planned with."""
    corpus_of(config)
    tokens = prepared(config.corpus, config.text.megabytes, config.text.tokenizer, config.text.vocabulary)
    most = max(len(tokens.train) - 1, 0) // config.model.context * config.model.context
    if most < config.steps * config.step_tokens:
        raise ConfigError(
            f"train.tokens is {config.train.tokens}; the training text is too short for one pass over so many: it has "
            f"{most} tokens in sequences of {config.model.context} (raise text.megabytes, give a longer corpus or ask "
            "for fewer)"
        )
    most = heldout_sequences(config, tokens) * config.model.context
    if most < config.step_tokens:
        raise ConfigError(
            f"train.batch is {config.train.batch}; the validation text is too short for one such batch of "
            f"{config.step_tokens} tokens: it has {most} in sequences of {config.model.context} (raise text.megabytes, "
            "give a longer corpus, or lower train.batch or model.context)"
        )
    return tokens


def refuse_to_plan(config: LanguageConfig, tokens: Tokens | None) -> None:
    """What is no longer planned; a run of before is trained and read all the same. Tokens None: more than enough."""
    if config.warm_up_steps and config.steps - config.warm_up_steps < FALL:
        raise ConfigError(
            f"optimiser.warm_up is {config.optimiser.warm_up}; of {config.steps} steps it leaves "
            f"{config.steps - config.warm_up_steps}, and the rate needs {FALL} to fall in: "
            f"it must be at most {max(config.steps - FALL, 0) / config.steps:g}"
        )
    asked = config.train.heldout // config.model.context
    sequences = evaluated(config, asked if tokens is None else heldout_sequences(config, tokens))
    if config.train.diagnose > sequences:
        longer = tokens is None or asked < heldout_sequences(config, tokens)
        helps = "raise train.heldout" if longer else "raise text.megabytes or give a longer corpus"
        raise ConfigError(
            f"train.diagnose is {config.train.diagnose}; {sequences} validation sequences are evaluated, so ask for "
            f"{sequences} or fewer, or {helps}"
        )


def heldout_sequences(config: LanguageConfig, tokens: Tokens) -> int:
    """Sequences that the validation text has."""
    return max(len(tokens.heldout) - 1, 0) // config.model.context


def evaluated(config: LanguageConfig, sequences: int) -> int:
    """Of so many validation sequences those of an evaluation: whole batches of them."""
    return min(config.train.heldout // config.model.context, sequences) // config.train.batch * config.train.batch


class Batches:
    """Both texts on a device, cut into sequences of ``context`` tokens and the one that follows."""

    def __init__(self, config: LanguageConfig, tokens: Tokens, device: torch.device) -> None:
        context, batch = config.model.context, config.train.batch
        self.batch = batch
        self.train, self.heldout = tokens.train.to(device), tokens.heldout.to(device)
        self.places = torch.arange(context + 1, device=device)
        sequences = (len(self.train) - 1) // context
        order = batch_order(torch.tensor([config.seed]), 0, sequences)[0]
        self.order = (order[: config.steps * batch] * context).to(device)  # where each sequence begins
        sequences = heldout_sequences(config, tokens)
        places = torch.linspace(0, sequences - 1, evaluated(config, sequences))
        self.evaluated = (places.long() * context).to(device)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (b, t) of a step."""
        return self._cut(self.train, self.order[step * self.batch : (step + 1) * self.batch])

    @property
    def evaluations(self) -> int:
        """Batches of the validation text; all are full, so that every process has as many rows."""
        return len(self.evaluated) // self.batch

    def heldout_at(self, number: int, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets (b, t) of an evaluation batch: the same in every run, whatever its seed.

        With ``rows``, of one of so many: a part of the batch.
        """
        size = rows or self.batch
        return self._cut(self.heldout, self.evaluated[number * size : (number + 1) * size])

    def _cut(self, text: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        ids = text[begins[:, None] + self.places].long()  # (b, t + 1)
        return ids[:, :-1], ids[:, 1:]
