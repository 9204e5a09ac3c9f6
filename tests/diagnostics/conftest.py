import pytest
import torch

from semfocus import Full, ModelConfig, TopK, Transformer


@pytest.fixture(scope="module")
def model():
    config = ModelConfig(vocabulary=2, classes=2, width=8, mlp_width=12, blocks=2, heads=2, attention_scale=2.0)
    torch.manual_seed(0)
    return Transformer([config, config], [Full(), TopK(3)], seeds=[0, 1])


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, 2, (6, 10), generator=torch.Generator().manual_seed(0))
