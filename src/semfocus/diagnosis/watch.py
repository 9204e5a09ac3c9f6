"""Every attention call of one forward pass, as a ``Problem``, while the model runs with its own attention patterns."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import functional
from ..diagnostics._recording import of_member
from ..hf import models
from ..model import Transformer
from ..nn import MultiheadAttention
from ..patterns.base import whole_number
from ..patterns.full import Full
from ..reference import Problem
from .unchanged import unchanged

#: From this many scores on, masked attention is computed a few rows at a time: a mask for all of them would not be.
MANY_SCORES = 2**22
#: Attention calls are observed by replacing one function, so two models cannot be watched at once.
_one_at_a_time = threading.RLock()


@dataclass(frozen=True)
class Call:
    """One attention call: where it was made, and whether queries and keys are the same sequence."""

    name: str  # of the module in ``named_modules``
    kind: str  # its class
    own: bool
    problem: Problem


@dataclass
class Watch:
    """What there is to see in a model, beside the calls themselves."""

    found: list[str]  # attention modules that were made visible
    left_out: list[str]  # those that could not be


@contextmanager
def watching(model: nn.Module, see: Callable[[Call], None], member: int = 0) -> Iterator[Watch]:
    """Inside, every forward pass of the model calls ``see`` with its attention calls. Then the model is as before.

    The model is in evaluation mode and runs without gradients and without compilation.
    """
    with _one_at_a_time, unchanged(model), torch.no_grad(), _not_compiled():
        for module in model.modules():
            vars(module)["training"] = False  # eval() may do more: some adapters then merge their weights
        places = _Places(model, see)
        watch = _made_visible(model)
        _watch_transformers(model, places, member)
        with places.observing():
            yield watch


class _Places:
    """Knows in which module the model is at the moment."""

    def __init__(self, model: nn.Module, see: Callable[[Call], None]) -> None:
        self.see = see
        self.stack: list[tuple[str, str, bool | None]] = []  # name, class, own sequence?
        self.calls: Counter[str] = Counter()
        theirs = models.attention_modules(model)
        for name, module in model.named_modules():
            own = not models.is_cross(name, module) if name in theirs else None
            # The hooks go away with everything else that is restored.
            module.register_forward_pre_hook(self._entering(name, own), with_kwargs=True)
            module.register_forward_hook(self._leaving, always_call=True)

    def _entering(self, name: str, own: bool | None) -> Callable[..., None]:
        def enter(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            known = own
            if isinstance(module, nn.MultiheadAttention):
                given = dict(zip(("query", "key"), arguments, strict=False)) | named
                known = _same(given.get("query"), given.get("key"))
            self.stack.append((name or "model", type(module).__name__, known))

        return enter

    def _leaving(self, *_: Any) -> None:
        self.stack.pop()

    def call(self, problem: Problem, place: tuple[str, str, bool | None]) -> None:
        name, kind, own = place
        self.calls[name] += 1
        number = self.calls[name]
        if own is None:
            own = problem.q.shape[-2] == problem.k.shape[-2] or problem.is_causal
        self.see(Call(name if number == 1 else f"{name}, call {number}", kind, own, problem))

    @contextmanager
    def observing(self) -> Iterator[None]:
        attend, thread = functional.attend, threading.get_ident()

        def observed(
            problem: Problem, implementation: str = "auto", with_weights: bool = False
        ) -> tuple[Tensor, Tensor | None]:
            if threading.get_ident() == thread and self.stack:
                self.call(problem, self.stack[-1])
                scores = problem.q.shape[:-1].numel() * problem.k.shape[-2]
                if implementation == "auto" and not with_weights and problem.mask is not None and scores > MANY_SCORES:
                    implementation = "chunked"
            return attend(problem, implementation, with_weights)

        functional.attend = observed
        try:
            yield
        finally:
            functional.attend = attend


def _same(query: Any, key: Any) -> bool:
    if not (isinstance(query, Tensor) and isinstance(key, Tensor)):
        return True
    return query is key or (query.shape == key.shape and torch.equal(query, key))


def _made_visible(model: nn.Module) -> Watch:
    """Lets attention that is not ours go through our function, with full attention or the pattern it has."""
    theirs = models.attention_modules(model)
    if theirs:
        models.focus(model, theirs, set(), Full())
    watch = Watch(list(theirs), [])
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoder):
            vars(module)["use_nested_tensor"] = False  # in evaluation it would pack padded input for its fused layers
        if not isinstance(module, nn.MultiheadAttention):
            continue
        if type(module) not in (nn.MultiheadAttention, MultiheadAttention):
            watch.left_out.append(f"{name or 'model'} ({type(module).__name__})")
            continue
        if type(module) is nn.MultiheadAttention:
            module.__class__ = MultiheadAttention
            vars(module)["pattern"] = Full()
        watch.found.append(name or "model")
    return watch


def _watch_transformers(model: nn.Module, places: _Places, member: int) -> None:
    """Our own models pose their problems for a whole population; one member is looked at."""
    found = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, Transformer)]
    if whole_number("member", member) != 0 and not found:
        raise ValueError(f"member is {member}; {type(model).__name__} is no population (semfocus.Transformer)")
    for prefix, transformer in found:
        if not 0 <= member < len(transformer.patterns):
            raise ValueError(f"member is {member}; the population has members 0 to {len(transformer.patterns) - 1}")
        names = {id(block): f"{prefix}.{name}".lstrip(".") for name, block in transformer.named_modules()}
        vars(transformer)["run_block"] = _recording(transformer.run_block, names, places, member)


def _recording(
    run_block: Callable[..., Tensor], names: dict[int, str], places: _Places, member: int
) -> Callable[..., Tensor]:
    def recording(block: Any, h: Tensor, *rest: Any) -> Tensor:
        problem = of_member(block.problems(h, *rest), member)
        places.call(problem, (names[id(block)], type(block).__name__, True))
        return run_block(block, h, *rest)

    return recording


def _not_compiled() -> AbstractContextManager[Any]:
    """Compiled code would not look again at what was changed. Without dynamo's module nothing is compiled."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
