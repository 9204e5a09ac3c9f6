"""Time per model and training step: populations of several sizes beside a plain one-model PyTorch loop.

    python benchmarks/trainer.py                     # what this machine has: a GPU if there is one
    python benchmarks/trainer.py --device cpu --out results.json
    python benchmarks/trainer.py --tasks ListOps --sizes 6 --kernels 12    # and what takes a step's time

Every time is printed beside its peer of the same run; on a shared machine only the ratios mean anything.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semfocus import Full, TopK
from semfocus.patterns import Pattern
from semfocus.training import RunConfig, paper
from semfocus.training.data import make_split
from semfocus.training.environment import describe
from semfocus.training.groups import members_that_fit
from semfocus.training.population import Population, precision
from semfocus.training.threads import choose_threads

TASKS = {"L = 40": "even_pairs", "ListOps": "listops"}
#: Population sizes at which the evaluation after an epoch is timed too.
EVALUATED_SIZES = range(8, 200)
PATTERNS: dict[str, Pattern] = {"full": Full(), "top_k(5)": TopK(5)}


class PlainBlock(nn.Module):
    """The same block as one would write it for one model."""

    def __init__(self, width: int, heads: int, mlp_width: int, dropout: float, eps: float, k: int | None) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.q, self.k, self.v = (nn.Linear(width, heads * width) for _ in range(3))  # each head has the whole width
        self.out = nn.Linear(heads * width, width)
        self.up, self.down = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.drop = nn.Dropout(dropout)
        self.heads, self.kept = heads, k

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm1(h)
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.mT / math.sqrt(x.shape[-1])  # (b, h, t, t)
        if self.kept is not None:
            chosen = torch.zeros_like(scores, dtype=torch.bool)
            chosen.scatter_(-1, scores.topk(self.kept, dim=-1).indices, True)
            scores = scores.masked_fill(~chosen, -torch.inf)
        mixed = self.drop(scores.softmax(-1)) @ v
        h = h + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return h + self.drop(self.down(torch.relu(self.drop(self.up(self.norm2(h))))))


class PlainModel(nn.Module):
    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        c = config.model_config()
        k = getattr(config.pattern, "k", None)
        self.embedding = nn.Embedding(c.vocabulary + 1, c.width)
        position = torch.arange(config.length)[:, None] / 10000 ** (torch.arange(0, c.width, 2) / c.width)
        self.register_buffer("position", torch.stack((position.sin(), position.cos()), -1).flatten(1))
        self.drop = nn.Dropout(c.dropout)
        self.blocks = nn.Sequential(
            *(PlainBlock(c.width, c.heads, c.mlp_width, c.dropout, 1e-5 if i else 0.0, k) for i in range(c.blocks))
        )
        self.read = nn.Linear(c.width, c.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.drop(self.embedding(tokens) * self.embedding.embedding_dim**0.5 + self.position)
        return self.read(self.blocks(h).mean(1))


def plain_step(config: RunConfig, device: torch.device) -> Callable[[], None]:
    """One training step of one model, written plainly."""
    tokens, targets, _ = (x.to(device) for x in make_split(config, "train"))
    model = PlainModel(config).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=config.optimiser.learning_rate)
    order, place = torch.randperm(len(tokens), device=device), 0
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        nonlocal place
        here = order[place : place + config.train.batch]
        place = (place + config.train.batch) % (len(tokens) - config.train.batch)
        optimiser.zero_grad()
        loss(model(tokens[here]), targets[here, 0]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.optimiser.clip)
        optimiser.step()

    return step


def milliseconds(step: Callable[[], None], device: torch.device, seconds: float) -> float:
    """Median over repeated timings, after a warm-up."""

    def once(repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / repeats

    once(3)
    repeats = max(1, int(0.1 * seconds / once(2)))
    times = sorted(once(repeats) for _ in range(7))
    return 1e3 * times[len(times) // 2]


def shares(step: Callable[[], None], device: torch.device, most: int) -> list[dict[str, Any]]:
    """The kernels (on a CPU: operators) that take most of a step's time; calls and milliseconds are those of one step.

    Kernels that run beside one another count in full, so the milliseconds of all may exceed the step's.
    """
    steps, on_gpu = 5, device.type == "cuda"
    activity = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profile:
        for _ in range(steps):
            step()
        if on_gpu:
            torch.cuda.synchronize()
    field = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    times = {event.key: (event.count / steps, getattr(event, field) / 1e3 / steps) for event in profile.key_averages()}
    total = sum(time for _, time in times.values())
    longest = sorted(times, key=lambda name: -times[name][1])[:most]
    return [
        {"kernel": name, "calls": times[name][0], "ms": times[name][1], "share": times[name][1] / total}
        for name in longest
    ]


def measure_population(
    configs: list[RunConfig], device: torch.device, seconds: float, kernels: int = 0
) -> dict[str, Any]:
    population = Population(configs, device)
    if device.type == "cpu":
        choose_threads(population)
    with precision(configs[0].precision):
        population.start_epoch(0)

        def step() -> None:
            population.cursor.remainder_(population.steps_per_epoch - 1)
            population.train_step()

        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        first = time.perf_counter() - start
        train = milliseconds(step, device, seconds)
        found = shares(step, device, kernels) if kernels else []
    evaluated = len(configs) in EVALUATED_SIZES
    evaluate = evaluation_ms(population, device) if evaluated else float("nan")
    return {
        "step_ms": train,
        "evaluation_share": evaluate / (train * population.steps_per_epoch) if evaluated else None,
        "first_step_s": first,
        "alive": int(population.alive.sum()),
        **({"kernels": found} if kernels else {}),
    }


def evaluation_ms(population: Population, device: torch.device) -> float:
    """The evaluation after an epoch, over the training and the held-out examples: the faster of two."""
    times = []
    for _ in range(2 if device.type == "cpu" else 3):  # the first captures and compiles
        start = time.perf_counter()
        population.evaluate("train")
        population.evaluate("heldout").loss.sum().item()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def sizes(config: RunConfig, device: torch.device, wanted: list[int] | None) -> list[int]:
    """Sizes asked for are tried even if they seem not to fit."""
    most = members_that_fit(config, device)
    usual = [1, 15, 150, 0] if device.type == "cuda" else [1, 15]
    fitting = {size for size in wanted or usual if size > 0 and (wanted or size <= most)}
    return sorted(fitting | ({most} if 0 in (wanted or usual) else set()))


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=int, nargs="+", help="population sizes; 0: the largest that fits")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--precision", choices=("ieee", "tf32"), default="tf32")
    parser.add_argument(
        "--kernels", type=int, default=0, metavar="N", help="list the N kernels that take most of a step"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time to spend on each measurement")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    recipe = {"precision": options.precision, "model": {"heads": options.heads}}
    rows = []
    header = f"{'task':8} {'pattern':9} {'models':>6} {'ms / model / step':>18} {'plain / ours':>13} {'evaluation':>11}"
    print(header)
    for task in options.tasks:
        for name in options.patterns:
            config = paper(TASKS[task], PATTERNS[name], 0, **recipe)
            with precision(options.precision):
                plain = milliseconds(plain_step(config, device), device, options.seconds)
            free(device)
            print(f"{task:8} {name:9} {'plain':>6} {plain:18.4f} {1:13.2f}", flush=True)
            for size in sizes(config, device, options.sizes):
                runs = [paper(TASKS[task], PATTERNS[name], seed, **recipe) for seed in range(size)]
                row = {"task": task, "pattern": name, "heads": options.heads, "models": size, "plain_ms": plain}
                try:
                    row |= measure_population(runs, device, options.seconds, options.kernels)
                except torch.OutOfMemoryError:
                    row |= {"error": "out of memory"}
                    print(f"{task:8} {name:9} {size:6} out of memory", flush=True)
                else:
                    each = row["step_ms"] / size
                    share = "" if row["evaluation_share"] is None else f"{row['evaluation_share']:.0%}"
                    print(f"{task:8} {name:9} {size:6} {each:18.4f} {plain / each:13.2f} {share:>11}", flush=True)
                    for k in row.get("kernels", ()):
                        print(f"    {k['share']:5.1%} {k['ms'] / size:9.4f} ms {k['calls']:5.0f} x {k['kernel']:.70}")
                rows.append(row)
                free(device)
    facts = describe(device) | {"precision": options.precision}
    print(", ".join(str(facts[name]) for name in ("device", "torch", "precision", "date", "commit")))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"environment": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
