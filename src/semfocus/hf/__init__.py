"""Patterns as attention implementations of Hugging Face transformers.

``register()`` makes every pattern an ``attn_implementation`` named ``semfocus_<name>``. Its knobs live in the model's
own config, which ``save_pretrained`` writes: ``LlamaConfig(..., semfocus={"k": 8})`` or ``config.semfocus = {"k": 8}``
before the model is made. So models with different knobs live side by side.

To change a model that exists already, or some of its layers, use ``semfocus.nn.focus``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import patterns

__all__ = ["PREFIX", "register"]

#: What stands before a pattern's name in ``attn_implementation``.
PREFIX = "semfocus_"
#: The implementation of models changed by ``semfocus.nn.focus``: each attention layer carries its own pattern.
FOCUSED = "semfocus"
#: transformers treats implementations specially whose names contain one of these.
RESERVED = ("flash", "sdpa", "flex_attention", "eager", "paged")


def register() -> list[str]:
    """Registers every pattern, ours and those added by ``semfocus.register``, and returns the names.

    Calling it again is harmless and adds what came in between. No existing model changes.
    """
    stems = patterns.names()
    for stem in stems:
        word = next((word for word in RESERVED if word in stem), None)
        if word:
            raise ValueError(
                f"pattern {stem!r} has {word!r} in its name, which transformers takes for its own; rename the class"
            )
    for stem in stems:
        register_name(PREFIX + stem, stem)
    return [PREFIX + stem for stem in stems]


def register_name(name: str, stem: str | None) -> None:
    """Registers one implementation with its mask function; without the latter a model would lose its causality."""
    transformers = require_transformers()
    from .attention import attention
    from .masks import attention_mask

    if stem is not None:
        patterns.find(stem)  # imports its file now: under torch.compile the first call could not
    transformers.AttentionInterface.register(name, partial(attention, stem=stem))
    transformers.AttentionMaskInterface.register(name, attention_mask)


def require_transformers() -> Any:
    """The package, or an error that says how to get it."""
    try:
        import transformers
    except ImportError:
        raise ImportError(
            "semfocus.hf needs transformers 5.17 or newer: pip install 'semfocus[hf]'", name="transformers"
        ) from None
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version < (5, 17):
        raise ImportError(
            f"semfocus.hf needs transformers 5.17 or newer, this is {transformers.__version__}: "
            "pip install 'semfocus[hf]'",
            name="transformers",
        )
    return transformers
