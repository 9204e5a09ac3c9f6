"""Finding, changing and restoring the attention of Hugging Face models, for ``semfocus.nn.focus``."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from ..patterns.base import Pattern
from ..patterns.full import Full
from . import FOCUSED, PREFIX, register_name, require_transformers
from . import attention as functions
from .attention import PATTERN, SELF, check_global_tokens, pattern_of
from .reach import is_stranger, uses_interface

#: Where a model remembers its configs and the implementations they had.
WAS = "_semfocus_was"
#: Where it carries what registers our implementation in another process that loads it.
REGISTERED = "_semfocus_registered"
CROSS_NAME = re.compile(r"cross|encdec|enc_dec|encoder_att", re.IGNORECASE)
#: The module around it must say that it is attention: whole parts of models are called cross_modal or cross_encoder.
CROSS_PARENT = re.compile(r"cross_?att|encdec_?att|enc_dec_?att|encoder_att", re.IGNORECASE)
SELF_NAME = re.compile(r"self_?att", re.IGNORECASE)


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules in ``model`` that call transformers' attention interface, by name, in order.

    Refuses models with attention that goes another way: it would not change, and would be given our masks.
    """
    found = {name: module for name, module in model.named_modules() if uses_interface(type(module))}
    inside = {id(m) for top in outermost(model) for m in top.modules()}
    for name, module in found.items():
        if id(module) not in inside:
            raise ValueError(
                f"{name or 'model'} is a {type(module).__name__} without its model, which makes the masks; "
                "give focus the whole model and choose with layers"
            )
    for name, module in model.named_modules():
        if id(module) in inside and is_stranger(module):
            raise ValueError(
                f"{name} is a {type(module).__name__}, whose attention does not go through transformers' "
                "AttentionInterface, so no attn_implementation reaches it; use a model class that does, such as Llama"
            )
    return found


def is_cross(name: str, module: nn.Module) -> bool:
    """Cross attention, by its name in the model or by what the module tells."""
    parent, last = ("", *name.split("."))[-2:]
    if SELF_NAME.search(last):  # some decoders (UMT5's, Informer's) say nothing else of it
        return False
    return bool(CROSS_NAME.search(last) or CROSS_PARENT.search(parent)) or functions.is_cross(module)


def focus(model: nn.Module, modules: dict[str, nn.Module], picked: set[str], pattern: Pattern) -> None:
    """Gives the picked modules the pattern; the others go on as they were, through the same function."""
    check_global_tokens(pattern)
    register_name(FOCUSED, None)
    for name, module in modules.items():
        vars(module)[PATTERN] = pattern if name in picked else _present_pattern(module)
        vars(module)[SELF] = bool(SELF_NAME.search(name.rpartition(".")[2]))
    for top in outermost(model):
        _own_configs(top)
        vars(top)[REGISTERED] = Registered()


class Registered:
    """To load it is to register: a focused model that was pickled works wherever it is loaded."""

    def __reduce__(self) -> tuple[Callable[[], Registered], tuple[()]]:
        return _register, ()


def _register() -> Registered:
    register_name(FOCUSED, None)
    return Registered()


def unfocus(model: nn.Module) -> list[str]:
    """Restores implementations and modules; returns the names of the modules."""
    configs = [pair for m in model.modules() if is_model(m) for pair in vars(m).pop(WAS, ())]
    for config, implementation in configs:
        config._attn_implementation_internal = implementation
    restored = [name for name, m in model.named_modules() if PATTERN in vars(m)]
    if restored and not configs:
        raise ValueError(f"{restored[0]} was focused as a part of a larger model; give unfocus that model")
    for module in model.modules():
        vars(module).pop(PATTERN, None)
        vars(module).pop(SELF, None)
        vars(module).pop(REGISTERED, None)
    return restored


def outermost(model: nn.Module) -> Iterator[nn.Module]:
    """The Hugging Face models in ``model`` that are not inside another one."""
    if is_model(model):
        yield model
        return
    for child in model.children():
        yield from outermost(child)


def _present_pattern(module: nn.Module) -> Pattern:
    if PATTERN in vars(module):
        carried: Pattern = vars(module)[PATTERN]
        return carried
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if isinstance(implementation, str) and implementation.startswith(PREFIX):
        return pattern_of(module, implementation.removeprefix(PREFIX))
    return Full()


def _own_configs(top: nn.Module) -> None:
    """Gives the model configs of its own, with our implementation in them: others may share the old ones."""
    memo: dict[int, Any] = {}
    config_class = require_transformers().PreTrainedConfig
    remembered: list[tuple[Any, str | None]] = []

    def replaced(config: Any) -> Any:
        new = copy.deepcopy(config, memo)
        for part in _with_parts(new):
            if part._attn_implementation_internal != FOCUSED:
                remembered.append((part, part._attn_implementation_internal))
                part._attn_implementation_internal = FOCUSED
        return new

    for module in top.modules():
        for attribute, held in list(vars(module).items()):
            if isinstance(held, config_class) and held._attn_implementation != FOCUSED:
                vars(module)[attribute] = replaced(held)
    if remembered:
        vars(top)[WAS] = [*vars(top).get(WAS, ()), *remembered]


def _with_parts(config: Any) -> Iterator[Any]:
    """A config and the configs inside it."""
    yield config
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            yield from _with_parts(part)


def is_model(module: nn.Module) -> bool:
    """Is it a Hugging Face model? Without transformers' module nobody can have made one."""
    transformers = sys.modules.get("transformers.modeling_utils")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)
