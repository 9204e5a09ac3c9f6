"""The keyword arguments that models pass to their attention function: honoured, harmless, or refused by name."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

#: These do not change what attention computes, or the mask and the rotated queries and keys hold it already.
HARMLESS = frozenset(
    {
        "cache_position",
        "deterministic",
        "labels",
        "layer_idx",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "sliding_window",  # without a mask to hold it, see attention()
        "use_cache",
    }
)
#: These change it in ways we do not compute.
REFUSED = {
    "s_aux": "learned attention sinks",
    "cu_seq_lens_q": "packed sequences of flash attention; pass position_ids and no attention_mask instead",
    "cu_seq_lens_k": "packed sequences of flash attention; pass position_ids and no attention_mask instead",
    "max_length_q": "packed sequences of flash attention; pass position_ids and no attention_mask instead",
    "max_length_k": "packed sequences of flash attention; pass position_ids and no attention_mask instead",
    "seq_idx": "packed sequences; pass position_ids and no attention_mask instead",
    "indices": "a sparse choice of the model's own",
    "block_indices": "a sparse choice of the model's own",
    "head_mask": "weights for whole heads",
}


class Arguments(NamedTuple):
    """What is honoured."""

    position_bias: Tensor | None = None
    softcap: float | None = None
    sliding_window: int | None = None
    output_attentions: bool = False


def checked(module: Any, given: dict[str, Any]) -> Arguments:
    """Sorts the keyword arguments; what is not known is refused, never ignored.

    >>> checked(None, {"softcap": 50.0, "use_cache": True}).softcap
    50.0
    """
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name in HARMLESS or name in Arguments._fields:
            continue
        meaning = REFUSED.get(name, "an argument semfocus does not know")
        raise ValueError(
            f"{type(module).__name__} passes {name} to its attention ({meaning}); semfocus does not support it: "
            "use another attn_implementation for this model"
        )
    return Arguments(**{name: given[name] for name in Arguments._fields if name in given})


def weights_wanted(module: nn.Module, arguments: Arguments) -> bool:
    """Was the model called with ``output_attentions=True``? Some models (GPT-2) do not pass that on."""
    if arguments.output_attentions:
        return True
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    if collector is None:
        return False
    if torch.compiler.is_compiling() and not collector.compiling and not module._forward_hooks:
        return False  # layers compiled one by one: to look further would break the graph, and nobody collects here
    return any(name.endswith("attentions") for name in collector.get() or ())
