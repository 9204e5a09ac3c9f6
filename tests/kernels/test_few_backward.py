"""The backward kernels for a few kept keys without a GPU: through Triton's interpreter."""

import pytest
from test_short_rows import run_interpreted

from semfocus import kernels


@pytest.mark.skipif(not kernels.INSTALLED, reason="Triton is not installed")
def test_interpreted():
    run_interpreted("interpreted_few_backward.py", "test")
