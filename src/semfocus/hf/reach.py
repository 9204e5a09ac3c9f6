"""Does a model's attention go through transformers' ``AttentionInterface``, so that an implementation reaches it?

transformers accepts any implementation for any model. One whose attention goes another way ignores ours but is given
our masks, and loses its causality without a word. So such models are refused.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import torch
from torch import nn


def uses_interface(cls: type[nn.Module]) -> bool:
    """Does the class's forward look its attention function up?"""
    forward = inspect.unwrap(cls.forward)
    return inspect.isfunction(forward) and "ALL_ATTENTION_FUNCTIONS" in forward.__code__.co_names


def takes_masks(cls: type[nn.Module]) -> bool:
    """Is it attention, or a wrapper of it, by its name and by what it is called with?"""
    named = "Attention" in cls.__name__ and not issubclass(cls, nn.MultiheadAttention)
    return named and any("mask" in parameter for parameter in inspect.signature(cls.forward).parameters)


def is_stranger(module: nn.Module) -> bool:
    """Attention that takes a mask, and neither uses the interface nor holds modules that do."""
    if not takes_masks(type(module)):
        return False
    return not any(uses_interface(type(m)) or isinstance(m, nn.MultiheadAttention) for m in module.modules())


def check_config(config: Any) -> None:
    """Refuses a config whose model has attention of its own and none that uses the interface."""
    if config is not None and _is_unreachable(type(config)):
        raise ValueError(
            f"attn_implementation is {config._attn_implementation!r}, but the attention of {type(config).__name__}'s "
            "model does not go through transformers' AttentionInterface, so nothing would change but its masks: use "
            "'eager', or a model class that does, such as Llama"
        )


_known: dict[type, bool] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch.compile cannot trace such a look
def _is_unreachable(config_class: type) -> bool:
    if config_class not in _known:
        name = config_class.__module__.replace(".configuration_", ".modeling_")
        modeling = sys.modules.get(name)
        classes = _own_modules(modeling) if modeling is not None and name != config_class.__module__ else []
        _known[config_class] = any(map(takes_masks, classes)) and not any(map(uses_interface, classes))
    return _known[config_class]


def _own_modules(modeling: ModuleType) -> list[type[nn.Module]]:
    own = (cls for cls in vars(modeling).values() if inspect.isclass(cls) and cls.__module__ == modeling.__name__)
    return [cls for cls in own if issubclass(cls, nn.Module)]
