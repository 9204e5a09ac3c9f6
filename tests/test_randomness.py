import shutil

import pytest
import torch

from semfocus.randomness import Noise, absorb, bits, dropout, dropout_numbers, key_of, mix, spread


def test_mix_is_the_published_function():
    def lowbias32(x):
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    values = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 123456789, 3141592653]
    signed = torch.tensor([v - 2**32 if v >= 2**31 else v for v in values], dtype=torch.int32)
    wanted = [lowbias32(v) for v in values]
    assert [int(x) % 2**32 for x in mix(signed)] == wanted
    assert [int(mix(x)) % 2**32 for x in signed] == wanted  # scalars too
    compiling = torch.compiler.is_compiling
    torch.compiler.is_compiling = lambda: True  # the path for GPUs and compilers
    try:
        assert [int(x) % 2**32 for x in mix(signed)] == wanted
    finally:
        torch.compiler.is_compiling = compiling


def test_absorbing_a_number_and_a_tensor_agree():
    key = key_of(5)
    for index in (0, 1, 7, 2**31 - 2, 100_000):
        assert torch.equal(absorb(key, index), absorb(key, torch.tensor(index)))


def test_bits_are_uniform_and_uncorrelated():
    drawn = bits(key_of(torch.arange(4)), (300, 300)).double() / 2**31  # 360,000 values in [-1, 1)
    n = drawn[0].numel()
    for member in drawn:
        assert abs(member.mean()) < 4 / (3 * n) ** 0.5
        assert abs(member.square().mean() - 1 / 3) < 4 * (4 / 45 / n) ** 0.5
        for shifted in (member.roll(1, 0), member.roll(1, 1), member.T):
            pairs = (member * shifted).mean() if shifted is not member.T else (member * shifted).triu(1).sum() / n
            assert abs(pairs) < 4.5 / (3 * n**0.5)
    assert abs((drawn[0] * drawn[1]).mean()) < 4.5 / (3 * n**0.5)


def test_every_bit_of_the_word_is_fair():
    words = bits(key_of(11), (500, 500))
    for place in range(32):
        share = ((words >> place) & 1).double().mean()
        assert abs(share - 0.5) < 4.5 * 0.5 / 500


def test_seeds_steps_and_sites_give_other_bits():
    keys = {
        int(absorb(absorb(key_of(seed), step), site)) for seed in range(20) for step in range(50) for site in range(20)
    }
    assert len(keys) > 20_000 - 5  # collisions among 20,000 draws of 32 bits: 0.05 expected
    assert key_of(1) != key_of(1 + 2**32)
    assert key_of(-1) != key_of(2**32 - 1)


def test_bits_do_not_depend_on_shape_or_company():
    alone = spread(key_of(torch.tensor([7])), (1, 5, 6))
    together = spread(key_of(torch.tensor([3, 7, 9])), (3, 8, 9))
    assert torch.equal(alone[0], together[1, :5, :6])


def test_dropout_keeps_the_mean_and_drops_its_share():
    x = torch.ones(2, 200, 200)
    dropped = dropout(x, 0.1, key_of(torch.tensor([1, 2])))
    share = (dropped == 0).double().mean((1, 2))
    assert ((share - 0.1).abs() < 4 * (0.09 / 40_000) ** 0.5).all()
    assert set(dropped.unique().tolist()) == {0.0, x.new_tensor(1 / 0.9).item()}
    assert dropout(x, 0.0, key_of(1)) is x


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_dropout_of_nearly_everything():
    p = 1 - 1e-10  # rounds to one more than the largest draw
    assert dropout(torch.ones(100), p, key_of(0)).eq(0).all()
    assert dropout_numbers(p)[0] == 2**31 - 1
    assert dropout_numbers(0.75)[0] == 2**30


def test_compiled_code_draws_the_same_bits():
    """C++ compilers may do anything when int32 overflows; the bits must not depend on what they choose."""
    key = key_of(torch.tensor([1, 2]))
    compiled = torch.compile(lambda k: bits(k, (7, 5)), dynamic=False)
    assert torch.equal(compiled(key), bits(key, (7, 5)))


def test_a_generator_is_drawn_from_once():
    a, b = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    first = Noise.from_generator(a, torch.device("cpu"))
    assert torch.equal(first.fresh, Noise.from_generator(b, torch.device("cpu")).fresh)
    assert not torch.equal(first.fresh, Noise.from_generator(a, torch.device("cpu")).fresh)
