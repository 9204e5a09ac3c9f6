"""The halves of a block on a device, at the paper's size."""

import pytest
import torch
from halves_oracle import HALF, both, check_attention, check_gathered, check_mlp, population

from semfocus import (
    Banded,
    BlockLocal,
    BottomK,
    FixedRandom,
    Full,
    PositionalTopK,
    RandomK,
    Strided,
    SwappedTopK,
    TopK,
    kernels,
)
from semfocus.training.population import precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not kernels.INSTALLED, reason="Triton is not installed"),
]


@pytest.fixture(autouse=True)
def high():
    with precision("tf32"):
        yield


@pytest.mark.parametrize(
    "patterns",
    [[Full()], [Full(), Banded(5), BlockLocal(5)], [Banded(9, global_tokens=3), BlockLocal(9, global_tokens=3)]],
    ids=["full", "windows", "global"],
)
@pytest.mark.parametrize("length", [48, 600])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_first_half_against_plain(patterns, dropout, length):
    check_attention(patterns, length, width=64, dropout=dropout, examples=25, device="cuda")


@pytest.mark.parametrize("heads", [2, 8])
@pytest.mark.parametrize("masked", [False, True])
def test_several_heads_of_longer_examples(heads, masked):
    patterns = [Full(), Full()] if masked else [Full(), Banded(5), BlockLocal(5)]
    check_attention(patterns, 600, width=64, heads=heads, masked=masked, examples=25, device="cuda")


@pytest.mark.parametrize(("length", "heads"), [(200, 1), (600, 4)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_is_gathered_against_tiles(length, heads, dropout):
    patterns = [TopK(5), Full(), TopK(3), Banded(7), TopK(8)]
    check_gathered(patterns, length, width=64, heads=heads, dropout=dropout, examples=25, device="cuda")


@pytest.mark.parametrize("masked", [False, True])
def test_what_patterns_chose_before(masked):
    patterns = [BottomK(5), RandomK(5), FixedRandom(5), Strided(5), SwappedTopK(5), PositionalTopK(5), TopK(5, sinks=1)]
    check_attention(patterns, 40, width=64, examples=2, masked=masked, device="cuda")


@pytest.mark.parametrize("activations", [["relu"], ["gelu", "relu"], ["mish"], ["relu", "gelu", "mish"]])
@pytest.mark.parametrize(("tokens", "hidden"), [(40, 64), (600, 48)])
def test_second_half(activations, tokens, hidden):
    check_mlp(activations, tokens, width=64, hidden=hidden, device="cuda")


@pytest.mark.parametrize("length", [40, 200])
def test_first_half_under_a_mask(length):
    check_attention([Full(), Full()], length, width=64, masked=True, examples=25, device="cuda")


@pytest.mark.parametrize(("length", "heads"), [(45, 1), (300, 1), (300, 4)])
def test_top_k_keeps_the_keys_of_the_reference_but_for_rounding(length, heads):
    """Rounding of q and k moves scores a little: few keys change places, and outputs hardly move."""
    sizes = {"length": length, "width": 64, "heads": heads}
    model, tokens = population([TopK(5), TopK(9), TopK(20)], device="cuda", dropout=0.0, **sizes)
    with pytest.MonkeyPatch.context() as patch:
        ((_, plain, fused), *_) = both(model, tokens, patch)
    assert (plain - fused).norm() <= 32 * HALF * plain.norm()


@pytest.mark.parametrize(("length", "heads"), [(40, 1), (600, 1), (600, 4)])
def test_whole_model_and_twice_the_same(length, heads):
    model, tokens = population([Full(), Banded(5)], length=length, width=64, heads=heads, device="cuda")
    with pytest.MonkeyPatch.context() as patch:
        first = both(model, tokens, patch)
        second = both(model, tokens, patch)
    for (name, plain, fused), (_, _, again) in zip(first, second, strict=True):
        assert (plain - fused).norm() <= 32 * HALF * plain.norm(), name
        assert torch.equal(fused, again), name
