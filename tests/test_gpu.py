"""What only a CUDA device can show: kernels' results against the CPU's, graphs, and the trainer on a GPU."""

import dataclasses
import json

import pytest
import torch
from torch import func

from semfocus import Banded, BlockLocal, FixedRandom, Full, RandomK, TopK, Transformer, attention, patterns
from semfocus.diagnostics import Probe
from semfocus.diagnostics.loss_surface import LossSurface
from semfocus.model import ModelConfig
from semfocus.training import RunConfig
from semfocus.training.population import Population
from semfocus.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
EXAMPLES = [pattern for name in patterns.registry.own_names() for pattern in patterns.find(name).examples()]
SMALL = {
    "task": {"name": "even_pairs", "length": 12},
    "model": {"width": 16, "mlp_width": 16, "blocks": 2, "dropout": 0.1},
    "data": {"train": 100, "heldout": 50},
    "train": {"epochs": 3, "batch": 25},
}


def config(pattern, seed=0, **sections):
    merged = {**SMALL, **{name: {**SMALL.get(name, {}), **section} for name, section in sections.items()}}
    return RunConfig.from_dict({**merged, "pattern": pattern, "seed": seed})


@pytest.mark.parametrize("pattern", EXAMPLES, ids=lambda p: p.label)
@pytest.mark.parametrize("implementation", ["reference", "chunked"])
def test_attention_as_on_a_cpu(pattern, implementation):
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 2, 2, 33, 8, generator=g, dtype=torch.float64)
    mask = torch.rand(2, 1, 1, 33, generator=g) < 0.7
    mask[..., -2:] = True
    results = []
    for device in ("cpu", "cuda"):
        q, k, v = (x.to(device).requires_grad_() for x in inputs)
        out = attention(
            q,
            k,
            v,
            pattern,
            mask.to(device),
            0.2,
            generator=torch.Generator().manual_seed(1),
            implementation=implementation,
        )
        results.append([x.cpu() for x in (out, *torch.autograd.grad(out.square().sum(), (q, k, v)))])
    for cpu, cuda in zip(*results, strict=True):
        torch.testing.assert_close(cpu, cuda, atol=1e-9, rtol=0)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_population_trains_as_on_a_cpu(compiled):
    members = [Full(), TopK(3), TopK(3), RandomK(3), FixedRandom(3), Banded(3), BlockLocal(3)]
    runs = [config(pattern, seed) for seed, pattern in enumerate(members)]
    runs[2] = dataclasses.replace(
        runs[2], optimiser=dataclasses.replace(runs[2].optimiser, name="adam", learning_rate=1e-3)
    )
    populations = [
        Population(runs, "cpu", dtype=torch.float64),
        Population(runs, "cuda", dtype=torch.float64, compiled=compiled),
    ]
    for epoch in range(3):
        losses = []
        for population in populations:
            running = population.train_epoch(epoch)
            losses.append(
                [
                    x.cpu()
                    for x in (running.loss, population.evaluate("train").loss, population.evaluate("heldout").loss)
                ]
            )
        for cpu, cuda in zip(*losses, strict=True):
            torch.testing.assert_close(cpu, cuda, atol=1e-7, rtol=0)
    torch.testing.assert_close(populations[0].weights.matrix, populations[1].weights.matrix.cpu(), atol=1e-7, rtol=0)


def test_the_trainer_resumes_on_a_gpu(tmp_path, monkeypatch):
    runs = [config(TopK(3), seed, train={"epochs": 6}) for seed in range(3)]
    Trainer(tmp_path / "whole", device="cuda").run(runs)
    original, calls = Population.train_epoch, []

    def dies_in_epoch_4(self, epoch, after_step=None):
        calls.append(epoch)
        if epoch == 4 and len(calls) == 5:
            raise KeyboardInterrupt
        return original(self, epoch, after_step)

    monkeypatch.setattr(Population, "train_epoch", dies_in_epoch_4)
    with pytest.raises(KeyboardInterrupt):
        Trainer(tmp_path / "cut", device="cuda", checkpoint_epochs=2).run(runs)
    Trainer(tmp_path / "cut", device="cuda", checkpoint_epochs=2).run(runs)
    assert calls == [0, 1, 2, 3, 4, 4, 5]
    for run in runs:
        curves = []
        for folder in ("whole", "cut"):
            rows = [
                json.loads(x)
                for x in (tmp_path / folder / "runs" / run.hash / "metrics.jsonl").read_text().splitlines()
            ]
            assert [row["epoch"] for row in rows] == list(range(7))
            curves.append(torch.tensor([row["train_loss"] for row in rows], dtype=torch.float64))
        torch.testing.assert_close(*curves, atol=1e-4, rtol=0)


def test_a_model_alone_under_torch_func():
    """So many rows of so few members that the weights' gradients are cut into parts elsewhere."""
    model = Transformer(ModelConfig(vocabulary=5, classes=2, width=16, mlp_width=16), TopK(2)).cuda().eval()
    tokens = torch.randint(5, (26, 40), generator=torch.Generator().manual_seed(0)).cuda()
    weights = {name: w.detach() for name, w in model.named_parameters()}
    found = func.grad(lambda w: func.functional_call(model, w, (tokens,)).square().sum())(weights)
    model(tokens).square().sum().backward()
    for name, w in model.named_parameters():
        torch.testing.assert_close(found[name], w.grad, atol=1e-4, rtol=1e-3)


def test_memory_estimate_is_on_the_high_side():
    from semfocus.training.groups import bytes_per_member

    runs = [config(TopK(3), seed, task={"length": 64}, model={"width": 64, "mlp_width": 64}) for seed in range(64)]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    population = Population(runs, "cuda", compiled=False)
    population.train_epoch(0)
    used = (torch.cuda.max_memory_allocated() - before) / len(runs)
    assert used < 2 * bytes_per_member(runs[0])


@pytest.mark.parametrize("pattern", [Full(), TopK(5)], ids=lambda p: p.label)
def test_a_loss_surface_is_that_of_the_cpu(pattern):
    """Compiled, or by the kernels of whole halves where they serve, hundreds of grid points at once."""
    run = config(pattern, task={"length": 40}, model={"width": 64, "mlp_width": 64, "dropout": 0.0})
    tokens = torch.randint(2, (150, 40), generator=torch.Generator().manual_seed(0))
    found = []
    for device in ("cpu", "cuda"):
        model = Transformer(run.model_config(), pattern, 0, device=device)
        probe = Probe.of_model(model, tokens.to(device), targets=tokens[:, :1].to(device))
        found.append(torch.tensor(LossSurface(points=7, compiled=device == "cuda").surface(probe)))
    # Another rounding may choose another fifth key in one example of 150 at some point.
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
