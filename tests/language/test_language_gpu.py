"""A language model on a GPU: half precision, compiled parts, fused attention; near the CPU's float32."""

import json

import pytest
import torch

from semfocus import Banded, Full, RandomK, TopK
from semfocus.language.trainer import LanguageTrainer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("pattern", [Full(), TopK(16), Banded(16)], ids=lambda pattern: pattern.label)
@pytest.mark.parametrize("compiled", [True, False])
def test_half_precision_follows_the_cpu_s_curve(tiny, tmp_path, pattern, compiled):
    sections = {"pattern": pattern, "model": {"width": 64, "heads": 1, "context": 64}}
    train = {"tokens": 20_480, "heldout": 2048, "batch": 16, "compiled": compiled}
    (exact,) = LanguageTrainer(tmp_path / "cpu").run([tiny(**sections, train=train)])
    (half,) = LanguageTrainer(tmp_path / "gpu", device="cuda").run(
        [tiny(**sections, train=train, precision="bfloat16")]
    )
    ours, theirs = ([row["heldout_loss"] for row in run.metrics()] for run in (half, exact))
    # bfloat16 has 8 bits: one part in 256 of a loss near 5 at each of a few places where it is rounded.
    assert ours == pytest.approx(theirs, abs=0.05)
    environment = json.loads((half.path / "environment.json").read_text())
    assert ("compiled" in environment["implementation"]) == compiled
    if isinstance(pattern, Full | TopK):
        assert environment["implementation"].split(",")[0] in ("sdpa", "fused")


@pytest.mark.parametrize("pattern", [TopK(16), RandomK(16)], ids=lambda pattern: pattern.label)
def test_a_captured_run_goes_on_as_if_nothing_had_happened(tiny, tmp_path, pattern):
    """Warming up and capturing leave weights and moments as they were, in a new run and in one that goes on."""
    config = tiny(pattern=pattern, precision="bfloat16", train={"tokens": 20_480, "heldout": 2048, "batch": 16})
    (whole,) = LanguageTrainer(tmp_path / "whole", device="cuda").run([config])
    stops = iter([False, True])
    stopped = LanguageTrainer(tmp_path / "parts", device="cuda", stopping=lambda: next(stops, False))
    with pytest.raises(KeyboardInterrupt):
        stopped.run([config])
    (parts,) = LanguageTrainer(tmp_path / "parts", device="cuda").run([config])
    ours, theirs = ([row["heldout_loss"] for row in run.metrics()] for run in (parts, whole))
    assert ours == theirs
