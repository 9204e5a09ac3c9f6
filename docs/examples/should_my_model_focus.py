"""Should my model focus? A small encoder is trained briefly, then ``semfocus.diagnose`` looks at its attention.

It measures what every layer and head does on a batch: how much weight the k best keys hold, how sharp the weights are,
which keys are popular. It says in words which layers would lose least under top-k, and for which k; and it predicts
learning speed only as far as such predictions have beaten a constant on tasks that were left out. The model is not
changed. The task is Even Pairs: do the first and the last bit differ?

    python docs/examples/should_my_model_focus.py        # about ten seconds on one core, with the page
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import semfocus
from semfocus import tasks

LENGTH, WIDTH, EPOCHS = 24, 32, 4


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


def train(model: nn.Module, data: tasks.Examples) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(data.tokens), generator=order).split(50):
            loss = nn.functional.cross_entropy(model(data.tokens[batch]), data.targets[batch, 0])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def main(folder: Path) -> None:
    task = tasks.get("even_pairs")
    data = task.sample(np.random.default_rng(0), 1000, LENGTH)
    held_out = task.sample(np.random.default_rng(1), 64, LENGTH)
    torch.manual_seed(0)
    model = Classifier()
    train(model, data)

    found = semfocus.diagnose(model, held_out.tokens, ks=(2, 4, 8, 16))
    print(found)
    print()
    print(found.table())
    print()
    print(f"the page: {found.to_html(folder / 'diagnosis.html')}")
    print(f"every number: {found.to_csv(folder / 'diagnosis.csv')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="keep the page and the numbers in this folder")
    out = parser.parse_args().out
    if out is not None:
        main(out)
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
