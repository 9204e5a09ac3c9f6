"""Four tiny runs whose losses a refactor must not move. In float64, so that they hold on every machine.

If a change is *meant* to move them (other initial weights, other random bits), say so in the changelog and run
``python tests/training/test_golden_curves.py`` for the new numbers.
"""

import torch

from semfocus import Banded, Full, TopK
from semfocus.training import RunConfig
from semfocus.training.population import Population

TINY = {
    "task": {"name": "even_pairs", "length": 8},
    "model": {"width": 8, "mlp_width": 8, "blocks": 2, "dropout": 0.1},
    "data": {"train": 60, "heldout": 30},
    "train": {"epochs": 3, "batch": 20},
}
RUNS = {
    "full": RunConfig.from_dict({**TINY, "pattern": Full(), "seed": 1}),
    "top_k": RunConfig.from_dict(
        {**TINY, "pattern": TopK(3), "optimiser": {"name": "adam", "learning_rate": 0.01}, "seed": 2, "preset": "paper"}
    ),
    "banded, global": RunConfig.from_dict({**TINY, "pattern": Banded(3, global_tokens=1), "seed": 3}),
    "tape": RunConfig.from_dict(
        {
            **TINY,
            "task": {"name": "stack_manipulation", "length": 6},
            "model": {**TINY["model"], "read_out": "tape", "norm": "post", "heads": 2, "activation": "mish"},
            "pattern": TopK(4),
            "seed": 4,
        }
    ),
}
#: Mean training loss of each epoch, met while training, then the held-out loss at the end.
GOLDEN = {
    "full": [0.6955755306785637, 0.6735911953463355, 0.6655500751557979, 0.7688489414456046],
    "top_k": [0.6737134713277918, 0.680669267109491, 0.6742878701707196, 0.6825256021484445],
    "banded, global": [0.6909536813946447, 0.6823165029399769, 0.6929749944881576, 0.703455624782034],
    "tape": [1.0523064480308468, 1.007192959509509, 0.988569475574748, 0.9488310788665996],
}


def losses(run):
    population = Population([run], dtype=torch.float64)
    curve = [population.train_epoch(epoch).loss.item() for epoch in range(3)]
    return [*curve, population.evaluate("heldout").loss.item()]


def test_golden_curves():
    assert GOLDEN.keys() == RUNS.keys()
    for name, run in RUNS.items():
        for ours, golden in zip(losses(run), GOLDEN[name], strict=True):
            assert abs(ours - golden) < 1e-9, name


if __name__ == "__main__":
    for name, run in RUNS.items():
        print(f'    "{name}": {losses(run)},')
