"""The halves of a block in one kernel each, without a GPU: through Triton's interpreter."""

import pytest
from test_short_rows import run_interpreted

from semfocus import kernels


@pytest.mark.skipif(not kernels.INSTALLED, reason="Triton is not installed")
def test_interpreted():
    run_interpreted("interpreted_halves.py", "test")


@pytest.mark.skipif(not kernels.INSTALLED, reason="Triton is not installed")
@pytest.mark.parametrize("members", [1, 7, 20, 150, 1000])
@pytest.mark.parametrize("tokens", [1, 31, 1000, 15000])
def test_parts_cover_all_tokens(members, tokens):
    from semfocus.kernels.mlp_half import parts_of

    parts, size = parts_of(members, tokens)
    assert (parts - 1) * size < tokens <= parts * size
