import pytest
import torch

from semfocus.training import RunConfig

TINY = {
    "task": {"name": "even_pairs", "length": 8},
    "model": {"width": 8, "mlp_width": 8, "blocks": 2, "dropout": 0.1},
    "data": {"train": 60, "heldout": 30},
    "train": {"epochs": 3, "batch": 20},
}


@pytest.fixture
def tiny():
    """Makes run configs small enough to train in a test."""

    def make(pattern, seed=0, **sections):
        merged = dict(TINY)
        for name, section in sections.items():
            merged[name] = {**TINY.get(name, {}), **section} if isinstance(section, dict) else section
        return RunConfig.from_dict({**merged, "pattern": pattern, "seed": seed})

    return make


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
