"""Training: losses go down, dropout and gradient checkpointing agree with what they should."""

import pytest
import torch
from tiny_models import MODELS, make, padding, tokens

from semfocus import Banded, TopK
from semfocus.nn import focus


@pytest.mark.parametrize("pattern", [TopK(3), Banded(3)], ids=lambda p: p.label)
@pytest.mark.parametrize("name", MODELS)
def test_the_loss_goes_down(name, pattern):
    model = make(name).train()
    focus(model, pattern)
    ids, mask = tokens(), padding("right")
    labels = ids.masked_fill(mask == 0, -100)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-2)
    torch.manual_seed(0)
    losses = []
    for _ in range(40 if name == "t5" else 20):  # T5 divides its logits, and learns more slowly
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def gradients(model, ids):
    model.zero_grad()
    torch.manual_seed(7)
    model(ids, labels=ids).loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def test_gradient_checkpointing_draws_the_same_dropout():
    model = make("llama", "semfocus_top_k", semfocus={"k": 3}, attention_dropout=0.4).train()
    wanted = gradients(model, tokens())
    model.gradient_checkpointing_enable()
    for a, b in zip(gradients(model, tokens()), wanted, strict=True):
        torch.testing.assert_close(a, b)
    model.eval()
    assert torch.equal(model(tokens()).logits, model(tokens()).logits)  # no dropout in evaluation
