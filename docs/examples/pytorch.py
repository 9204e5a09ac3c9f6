"""Focus in a PyTorch model: an encoder that classifies, trained with full attention and with top-k.

The model is plain ``torch.nn``. One line, ``focus(model, TopK(5))``, changes its attention; everything else, the
optimiser and the saved weights included, stays as it is. The task is Even Pairs: do the first and the last of 24 bits
differ? Both models see the same data and start from the same weights. One seed shows how it is used, not that it is
better: for that there are the studies.

    python docs/examples/pytorch.py        # a few seconds on one core
"""

import numpy as np
import torch
from torch import nn

from semfocus import TopK, tasks
from semfocus.nn import focus, unfocus

LENGTH, WIDTH, EPOCHS = 24, 32, 8


class Classifier(nn.Module):
    """Tokens (b, t) to class scores (b, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(2, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=2, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(tokens) + self.positions).mean(1))


def train(model: nn.Module, data: tasks.Examples, held_out: tasks.Examples) -> list[float]:
    """Trains for some epochs and returns the held-out accuracy after each."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(0)
    accuracies = []
    for _ in range(EPOCHS):
        model.train()
        for batch in torch.randperm(len(data.tokens), generator=order).split(50):
            loss = nn.functional.cross_entropy(model(data.tokens[batch]), data.targets[batch, 0])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        model.eval()
        with torch.no_grad():  # PyTorch would take its fused path here; in a focused model it does not
            right = model(held_out.tokens).argmax(-1) == held_out.targets[:, 0]
        accuracies.append(right.float().mean().item())
    return accuracies


def main() -> None:
    task = tasks.get("even_pairs")
    data = task.sample(np.random.default_rng(0), 1000, LENGTH)
    held_out = task.sample(np.random.default_rng(1), 500, LENGTH)

    for focused in (False, True):
        torch.manual_seed(0)
        model = Classifier()
        if focused:
            print(focus(model, TopK(5)))
        accuracies = train(model, data, held_out)
        name = "top-k" if focused else "full"
        print(f"{name:5} accuracy by epoch: " + " ".join(f"{accuracy:.2f}" for accuracy in accuracies))

    # The weights are the model's own: take the focus away and they go on with full attention.
    restored = unfocus(model)
    print(f"restored {len(restored)} layers: {', '.join(restored)}")


if __name__ == "__main__":
    main()
