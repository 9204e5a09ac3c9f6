"""``semfocus list``, ``show`` and ``check``"""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from ..cli import UserError
from ..registry import Registry
from .common import load_plugins, printable, users_code

#: Tokens of the largest picture, those that a pattern adds included.
MOST_SHOWN = 600


def show_list(options: argparse.Namespace) -> int:
    """Names and summaries, noun by noun."""
    load_plugins(options.plugin)
    for noun in ("patterns", "tasks", "studies", "diagnostics"):
        if options.noun in (None, noun):
            lines = _summaries(noun)
            print(f"{noun}")
            width = max((len(name) for name in lines), default=0)
            for name, summary in lines.items():
                print(f"  {name:{width}}  {summary}")
    return 0


def _summaries(noun: str) -> dict[str, str]:
    from .. import diagnostics, patterns, studies, tasks

    registries: dict[str, Registry[Any]] = {
        "patterns": patterns.registry,
        "tasks": tasks.registry,
        "studies": studies.registry,
        "diagnostics": diagnostics.registry,
    }
    registry = registries[noun]
    found = {name: registry.find(name) for name in registry.names()}
    return {name: (inspect.getdoc(cls) or "").partition("\n")[0] for name, cls in found.items()}


def show_pattern(options: argparse.Namespace) -> int:
    """A picture of the kept keys: a row per query, a column per key."""
    import torch

    from .. import patterns
    from ..patterns.base import View, chosen
    from ..randomness import Noise, key_of

    load_plugins(options.plugin)
    try:
        with users_code():
            pattern = patterns.parse(options.pattern)
        tokens = options.length + pattern.global_tokens
        if tokens > MOST_SHOWN:
            raise UserError(f"{pattern.label} adds {pattern.global_tokens} tokens; show draws at most {MOST_SHOWN}")
        pattern.require(tokens, tokens, options.causal)
    except ValueError as error:
        raise UserError(str(error)) from None
    generator = torch.Generator().manual_seed(options.seed)
    examples = 2 if pattern.batch_dependent else 1
    q, k = torch.randn(2, examples, 1, tokens, 16, generator=generator)  # each (b, 1, t, d)
    visible = torch.ones(1, 1, tokens, tokens, dtype=torch.bool)
    visible = visible.tril() if options.causal else visible
    noise = Noise(key_of(options.seed), key_of(options.seed))
    with users_code():
        kept = chosen(pattern, View(q, k, visible, noise=noise)).expand(examples, 1, tokens, tokens)[0, 0]
    print(f"{pattern.label}: {pattern.summary}")
    if pattern.input_dependent:
        print("It looks at its input: this is its choice for random queries and keys.")
    elif pattern.random:
        print("It draws anew each time: this is one draw.")
    print(f"{tokens} queries (rows), {tokens} keys (columns), {int(kept.sum())} of {tokens * tokens} pairs kept\n")
    full, empty = ("██", " ·") if printable("█·") else ("##", " .")
    for row in kept:
        print("  " + "".join(full if cell else empty for cell in row.tolist()))
    return 0


def check_pattern(options: argparse.Namespace) -> int:
    """The contract, on every pattern a file registers."""
    from .. import contract, patterns

    before = set(patterns.names())
    load_plugins([options.file])
    new = [name for name in patterns.names() if name not in before]
    if not new:
        raise UserError(f"{options.file} registers no pattern to check; a pattern's class needs @semfocus.register")
    broken = 0
    for name in new:
        try:
            examples = patterns.find(name).examples()
        except Exception as error:
            raise UserError(
                f"{name}: no instance to test ({error}); give the knobs defaults or define examples()"
            ) from None
        for pattern in examples:
            failed = contract.failures(pattern)
            broken += len(failed)
            print(f"{pattern.label}: {len(contract.CHECKS) - len(failed)} of {len(contract.CHECKS)} checks passed")
            for check, reason in failed.items():
                print(f"  FAILED {check}: {reason}")
    return 1 if broken else 0
