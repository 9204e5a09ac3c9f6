"""``focus`` puts a pattern into the attention of an existing model, in place; ``unfocus`` takes it out again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import SupportsIndex

from torch import nn

from .._checks import check_pattern
from ..hf import models
from ..hf.reach import attends_alone
from ..patterns.base import Pattern
from .attention import MultiheadAttention, check_fit
from .layers import Focused, chosen, described

#: Where a changed module remembers what it was. Plain attributes travel with deepcopy and never enter a state dict.
WAS = "_semfocus_was"


def focus(model: nn.Module, pattern: Pattern, layers: Iterable[SupportsIndex | str] | None = None) -> Focused:
    """Gives the model's attention layers a pattern, in place; the weights stay the very same parameters.

    Knows ``torch.nn.MultiheadAttention`` anywhere in a model (so ``nn.TransformerEncoder`` and ``nn.Transformer`` too)
    and Hugging Face models whose attention goes through transformers' ``AttentionInterface``. A second call changes the
    layers it names and no others; ``unfocus`` restores all of them to what they were before the first.

    Args:
        model: any module. It is changed.
        pattern: which keys each query keeps.
        layers: indices of attention layers, counted in the order of ``model.named_modules()``, or their names. None:
            all of them, cross attention included where the pattern follows scores. A pattern over positions
            leaves cross attention alone, since queries and keys are different sequences there.

    Returns:
        What was changed and what was left, with reasons; ``print`` it.
    """
    _check_model(model)
    check_pattern(pattern)
    theirs = models.attention_modules(model)
    cross = {name for name, m in theirs.items() if models.is_cross(name, m)} | _cross_attention(model)
    modules = {n: m for n, m in model.named_modules() if n in theirs or isinstance(m, nn.MultiheadAttention)}
    if not modules:
        raise ValueError(
            f"{type(model).__name__} has no attention that focus knows: torch.nn.MultiheadAttention, or a Hugging Face "
            "model that uses AttentionInterface; in your own attention call semfocus.attention"
        )
    result = chosen(described(modules, cross), layers, pattern)
    picked = {layer.name: modules[layer.name] for layer in result.changed}
    ours = [m for m in picked.values() if isinstance(m, nn.MultiheadAttention)]
    for name, module in picked.items():  # first everything that may refuse, then the changes
        if isinstance(module, nn.MultiheadAttention):
            _check(name, module, pattern)
    if len(ours) < len(picked):
        models.focus(model, theirs, set(picked) & set(theirs), pattern)
    for module in ours:
        _swap(module, pattern)
    _stop_nested_tensors(model)
    alone = [(name, type(m).__name__) for name, m in model.named_modules() if attends_alone(m)]
    return dataclasses.replace(result, unreached=tuple(alone))


def unfocus(model: nn.Module) -> tuple[str, ...]:
    """Undoes every ``focus``: outputs are bitwise what they were. Returns the names of the layers it restored."""
    _check_model(model)
    for name, module in model.named_modules():  # first everything that may refuse
        if WAS in vars(module) and isinstance(module, nn.MultiheadAttention) and type(module) is not MultiheadAttention:
            raise ValueError(
                f"{name or 'model'} became a {type(module).__name__} after it was focused, which unfocus would lose; "
                "take that off first (torch.nn.utils.parametrize.remove_parametrizations)"
            )
    restored = []
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and WAS in vars(module):
            cls, before = module.__dict__.pop(WAS)
            module.__class__ = cls
            vars(module).pop("pattern")
            vars(module).update(before)
            restored.append(name)
        elif isinstance(module, nn.TransformerEncoder) and WAS in vars(module):
            module.use_nested_tensor = module.__dict__.pop(WAS)
    return (*restored, *models.unfocus(model))


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")


def _swap(module: nn.MultiheadAttention, pattern: Pattern) -> None:
    """Changes the class and not the object: parameters, hooks and references to the module stay what they are."""
    if WAS not in vars(module):
        before = {"pattern": vars(module)["pattern"]} if "pattern" in vars(module) else {}
        vars(module)[WAS] = (type(module), before)
    module.__class__ = MultiheadAttention
    vars(module)["pattern"] = pattern


def _check(name: str, module: nn.MultiheadAttention, pattern: Pattern) -> None:
    if type(module) not in (nn.MultiheadAttention, MultiheadAttention):
        raise ValueError(
            f"{name or 'model'} is a {type(module).__name__}, which changes nn.MultiheadAttention in ways focus would "
            "lose; leave it out of layers, or focus before it is wrapped or parametrised"
        )
    if "forward" in vars(module):
        raise ValueError(
            f"{name or 'model'} has a forward of its own, which would be called instead; leave it out of layers, or "
            "focus before it is wrapped"
        )
    check_fit(module, pattern)


def _cross_attention(model: nn.Module) -> set[str]:
    """The names of the cross attention of PyTorch's decoder layers, and of attention that pools (SigLIP's head)."""
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerDecoderLayer):
            found.add(f"{name}.multihead_attn".lstrip("."))
        if "Pooling" in type(module).__name__:  # queries of its own look at the whole sequence
            inside = (n for n, child in module.named_children() if isinstance(child, nn.MultiheadAttention))
            found.update(f"{name}.{n}".lstrip(".") for n in inside)
    return found


def _stop_nested_tensors(model: nn.Module) -> None:
    """An encoder in evaluation turns padded input into nested tensors, for its fused layers alone."""
    encoders = [module for module in model.modules() if isinstance(module, nn.TransformerEncoder)]
    for encoder in encoders:
        if any(isinstance(module, MultiheadAttention) for module in encoder.modules()):
            vars(encoder).setdefault(WAS, encoder.use_nested_tensor)
            encoder.use_nested_tensor = False
