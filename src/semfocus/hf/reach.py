"""Does a model's attention go through transformers' ``AttentionInterface``, so that an implementation reaches it?

transformers accepts any implementation for any model. One whose attention goes another way ignores ours but is given
our masks, and loses its causality without a word. So such models are refused.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType, ModuleType
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

#: From a mask function to the module that asked for the mask there are two calls or three.
CALLS_BACK = 6


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


def attends_alone(module: nn.Module) -> bool:
    """Attention that takes no mask and computes its scores itself (SAM's vision layers): nothing reaches it."""
    cls = type(module)
    if "Attention" not in cls.__name__ or isinstance(module, nn.MultiheadAttention) or takes_masks(cls):
        return False
    return not uses_interface(cls) and scores_itself(cls)


def scores_itself(cls: type[nn.Module]) -> bool:
    """Does one of its methods take a softmax? Linear attention and wrappers do not."""
    methods = (inspect.unwrap(method) for method in vars(cls).values() if inspect.isfunction(method))
    scoring = {"softmax", "Softmax", "scaled_dot_product_attention"}
    return any(scoring.intersection(method.__code__.co_names) for method in methods)


def check_reach(config: Any) -> None:
    """Refuses a model that asks for a mask and has attention of its own, which would be given it.

    transformers gives the config alone. By it models are known all of whose attention goes another way; those with both
    kinds are found by looking at the model that asks, which a compiled call cannot do.
    """
    if config is None:
        return
    if _is_unreachable(type(config)):
        _refuse(config, f"the attention of {type(config).__name__}'s model does")
    if not torch.compiler.is_compiling() and (stranger := _stranger_behind(sys._getframe(1))) is not None:
        _refuse(config, f"{stranger} does")


def _refuse(config: Any, what: str) -> None:
    raise ValueError(
        f"attn_implementation is {config._attn_implementation!r}, but {what} not go through transformers' "
        "AttentionInterface, so nothing would change but its masks: use 'eager', or a model class that does, such as "
        "Llama"
    )


#: Models that were looked at and have no such attention.
_sound: WeakSet[nn.Module] = WeakSet()


def _stranger_behind(frame: FrameType | None) -> str | None:
    """The name of a class with attention of its own inside the module that asks for a mask, a few calls back."""
    for _ in range(CALLS_BACK):
        if frame is None:
            break
        asking = frame.f_locals.get("self")
        if isinstance(asking, nn.Module):
            if asking in _sound:
                return None
            found = (type(m) for m in asking.modules() if is_stranger(m))
            name = next((cls.__name__ for cls in found if scores_itself(cls)), None)
            if name is None:
                _sound.add(asking)
            return name
        frame = frame.f_back
    return None


_known: dict[type, bool] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch.compile cannot trace such a look
def _is_unreachable(config_class: type) -> bool:
    """Does a file beside the config's make masks for attention of its own, without any that uses the interface?"""
    if config_class not in _known:
        classes = [_own_modules(file) for file in _modeling_files(config_class) if _makes_masks(file)]
        _known[config_class] = any(any(map(takes_masks, c)) and not any(map(uses_interface, c)) for c in classes)
    return _known[config_class]


_masked: dict[type, bool] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def makes_masks(config_class: type) -> bool:
    """Does attention beside this config look into the masks it is given, to make its own of them (Doge)?"""
    if config_class not in _masked:
        classes = [cls for file in _modeling_files(config_class) for cls in _own_modules(file) if uses_interface(cls)]
        _masked[config_class] = any(name.endswith("_mask") for cls in classes for name in vars(cls))
    return _masked[config_class]


def _modeling_files(config_class: type) -> list[ModuleType]:
    package, _, name = config_class.__module__.rpartition(".")
    start = f"{package}.modeling_" if name.startswith("configuration_") else None
    return [module for key, module in list(sys.modules.items()) if start and key.startswith(start)]


def _makes_masks(modeling: ModuleType) -> bool:
    return any(name.startswith("create_") and name.endswith("_mask") for name in vars(modeling))


def _own_modules(modeling: ModuleType) -> list[type[nn.Module]]:
    own = (cls for cls in vars(modeling).values() if inspect.isclass(cls) and cls.__module__ == modeling.__name__)
    return [cls for cls in own if issubclass(cls, nn.Module)]
