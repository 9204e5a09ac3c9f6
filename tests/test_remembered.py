"""What waits for the backward pass is in autograd's hands."""

import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from semfocus import Banded, TopK, attention

LONG = {"gathered": TopK(3), "windows": Banded(3)}


def test_a_mask_changed_before_the_backward_pass_is_noticed():
    x = torch.randn(1, 1, 80, 4, requires_grad=True)
    mask = torch.ones(1, 1, 1, 80, dtype=torch.bool)
    out = attention(x, x, x, Banded(3), attn_mask=mask, implementation="windows")
    mask[..., 40:] = False
    with pytest.raises(RuntimeError, match="inplace operation"):
        out.sum().backward()


def test_a_mask_may_change_once_the_keys_are_chosen():
    x = torch.randn(1, 1, 80, 4, requires_grad=True)
    mask = torch.ones(1, 1, 1, 80, dtype=torch.bool)
    gradients = []
    for change in (False, True):
        out = attention(x, x, x, TopK(3), attn_mask=mask, implementation="gathered")
        if change:
            mask[..., 40:] = False
        gradients += torch.autograd.grad(out.square().sum(), x)
    assert gradients[0].equal(gradients[1])


@pytest.mark.parametrize("implementation", LONG)
def test_checkpointing_frees_the_inputs(implementation):
    seen = []

    def layer(x):
        q = x * 2
        seen.append(weakref.ref(q))
        return attention(q, q, q, LONG[implementation], implementation=implementation)

    x = torch.randn(1, 1, 80, 4, requires_grad=True)
    out = checkpoint(layer, x, use_reentrant=False)
    assert seen[0]() is None
    out.square().sum().backward()
    plain = torch.autograd.grad(layer(x).square().sum(), x)[0]
    assert x.grad.equal(plain)
