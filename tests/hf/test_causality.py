"""Changing later tokens never changes earlier logits: every decoder architecture, every pattern of the registry.

Patterns that look at other examples of the batch (swapped, positional) see only what those may see, and are causal too.
"""

import pytest
import torch
from tiny_models import CAUSAL, logits, make, padding, tokens

from semfocus import patterns
from semfocus.nn import focus

CUT = 6


def example(stem):
    cls = patterns.find(stem)
    knobs = set(cls.__dataclass_fields__) & {"k", "width"}
    return cls(**dict.fromkeys(knobs, 3))


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("stem", patterns.registry.own_names())
@pytest.mark.parametrize("name", CAUSAL)
def test_the_future_does_not_leak(name, stem, side):
    model = make(name, dtype=torch.float64)
    focus(model, example(stem))
    before, later = tokens(), tokens(seed=2)
    after = torch.cat([before[:, :CUT], later[:, CUT:]], 1)

    def run(ids):
        torch.manual_seed(0)  # for patterns that draw
        if name == "t5":  # what the decoder reads changes, what the encoder reads does not
            return logits(name, model, tokens(seed=3), padding(side), decoder_input_ids=ids)
        return logits(name, model, ids, padding(side))

    first, second = run(before), run(after)
    torch.testing.assert_close(second[:, :CUT], first[:, :CUT], atol=1e-10, rtol=0)
    assert (second[:, CUT:] - first[:, CUT:]).abs().max() > 0.01
