"""Attention under top-k and windows beside full attention: time, memory, and the length from which on top-k is faster.

    python benchmarks/attention.py --out results/attention          # writes .json and .png
    python benchmarks/attention.py --lengths 2048 8192 --budgets 8

Every cell has the same number of query rows, cut into sequences of a length. A ratio above 1 means faster than
PyTorch's fastest full attention in the same run. Times are those of a CUDA graph, as a compiled model or our trainer
runs it; "no graph" is forward and backward launched from Python, which takes longer than the GPU needs for a small
cell. A cell that does not fit is said not to fit.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from semfocus import Banded, Pattern, TopK, attention
from semfocus.training.environment import describe

LENGTHS = (40, 128, 512, 600, 2048, 8192, 32768, 131072)
BUDGETS = (5, 8, 32, 64)
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
#: Longest sequences for the slow ones.
EAGER_UP_TO, CHUNKED_UP_TO, FLEX_LENGTHS = 8192, 2048, (8192,)
WINDOW = 256
#: Milliseconds; what takes longer on the GPU does not wait for Python.
HOST_BOUND_BELOW = 10
#: What was asked for: time of cuDNN over ours, forward and backward.
GOALS = {
    (512, 8): 0.8, (512, 32): 0.7, (512, 64): 0.7, (2048, 8): 1.2, (2048, 32): 0.7, (2048, 64): 0.6,
    (8192, 8): 2.2, (8192, 32): 1.2, (8192, 64): 0.8, (32768, 8): 3.0, (32768, 32): 2.4, (32768, 64): 1.7,
}  # fmt: skip


@dataclass
class Row:
    """One measurement; milliseconds and bytes. ``None``: it does not fit or cannot serve.

    ``no_graph`` is ``both``, launched call by call, for small cells.
    """

    name: str
    length: int
    budget: int | None
    causal: bool
    dtype: str
    forward: float | None = None
    both: float | None = None
    no_graph: float | None = None
    peak: int | None = None
    why: str = ""


Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def eager(pattern: TopK, causal: bool) -> Call:
    """Top-k as one would write it: a matrix product, ``topk``, a mask."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
        if causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        chosen = torch.zeros_like(scores, dtype=torch.bool)
        chosen.scatter_(-1, scores.topk(min(pattern.k, scores.shape[-1]), dim=-1).indices, True)
        return scores.masked_fill(~chosen, -torch.inf).softmax(-1).to(v.dtype) @ v

    return call


def ours(pattern: Pattern, causal: bool, implementation: str = "auto") -> Call:
    return lambda q, k, v: attention(q, k, v, pattern, is_causal=causal, implementation=implementation)


def full(name: str, causal: bool) -> Call:
    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def flex(width: int, causal: bool) -> Call:
    """Compiled FlexAttention over the same band, with a block mask made from its shape."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    masks: dict[int, object] = {}

    def inside(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if causal:
            return (j <= i) & (i - j < width)
        return (i - j <= (width - 1) // 2) & (j - i <= width // 2)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[-2]
        if length not in masks:
            masks[length] = create_block_mask(inside, None, None, length, length, device=q.device.type, _compile=True)
        result: Tensor = compiled(q, k, v, block_mask=masks[length])
        return result

    return call


def cells(options: argparse.Namespace, length: int, causal: bool) -> Iterator[tuple[Row, Call]]:
    def row(name: str, budget: int | None = None) -> Row:
        return Row(name, length, budget, causal, options.dtype)

    for name in BACKENDS:
        if name == "efficient" or options.dtype != "float32":
            yield row(name), full(name, causal)
    for k in options.budgets:
        if k >= length:
            continue
        yield row("ours", k), ours(TopK(k), causal)
        if length <= EAGER_UP_TO and k == 8:
            yield row("eager", k), eager(TopK(k), causal)
        if length <= CHUNKED_UP_TO and k == 8 and not causal:
            yield row("chunked", k), ours(TopK(k), causal, "chunked")
    if length > 2 * WINDOW:
        yield row("ours, window", WINDOW), ours(Banded(WINDOW), causal)
        if length in FLEX_LENGTHS and options.flex:
            yield row("flex, window", WINDOW), flex(WINDOW, causal)


def milliseconds(function: Callable[[], object], seconds: float) -> float:
    """Median time of a call on the device, the cache cleared between calls."""
    import triton

    function()
    torch.cuda.synchronize()
    budget = seconds * 1000
    found: float = triton.testing.do_bench(function, warmup=budget / 4, rep=budget, return_mode="median")
    return found


def recorded(function: Callable[[], object]) -> Callable[[], object]:
    """The same as a CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # compiles, and fills the caches of PyTorch's libraries
        function()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def measure(row: Row, call: Call, inputs: tuple[Tensor, ...], d_out: Tensor, seconds: float) -> Row:
    try:
        with torch.no_grad():
            row.forward = milliseconds(recorded(lambda: call(*inputs)), seconds)
        both = lambda: torch.autograd.grad(call(*inputs), inputs, d_out)  # noqa: E731
        row.both = milliseconds(recorded(both), seconds)
        torch.cuda.empty_cache()
        if row.both < HOST_BOUND_BELOW:
            row.no_graph = milliseconds(both, seconds)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        both()
        row.peak = torch.cuda.max_memory_allocated() - before
    except torch.OutOfMemoryError:
        row.why = "out of memory"
    except (RuntimeError, ValueError) as error:
        row.why = str(error).splitlines()[0][:120]
    torch.cuda.empty_cache()
    return row


@contextmanager
def products(dtype: str) -> Iterator[None]:
    """Float32 is measured with exact products."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if dtype == "float32" else "high")
    yield
    torch.set_float32_matmul_precision(before)


def draw(options: argparse.Namespace, length: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Query rows in sequences of a length; at most 16 heads, the rest is the batch."""
    sequences = max(1, options.rows // length)
    heads = math.gcd(sequences, 16)
    shape = (sequences // heads, heads, length, options.width)
    q, k, v, d_out = (torch.randn(shape, device="cuda", dtype=getattr(torch, options.dtype)) for _ in range(4))
    return tuple(x.requires_grad_() for x in (q, k, v)), d_out


def best_peer(rows: list[Row], row: Row, field: str, names: tuple[str, ...] = tuple(BACKENDS)) -> float | None:
    same = [r for r in rows if r.length == row.length and r.causal == row.causal and r.name in names]
    times = [getattr(r, field) for r in same if getattr(r, field) is not None]
    return min(times) if times else None


def ratio(rows: list[Row], row: Row, field: str = "both") -> float | None:
    """How many times faster than the fastest full attention."""
    own, peer = getattr(row, field), best_peer(rows, row, field)
    return None if own is None or peer is None else peer / own


def crossover(rows: list[Row], budget: int, causal: bool) -> float | None:
    """The length from which on top-k is faster than full attention, by interpolation of the logarithms."""
    points = [
        (r.length, ratio(rows, r)) for r in rows if r.name == "ours" and r.budget == budget and r.causal == causal
    ]
    known = sorted((length, value) for length, value in points if value is not None)
    if not known or known[-1][1] < 1:
        return None
    found = float(known[0][0])
    for (a, x), (b, y) in pairwise(known):
        if x < 1 <= y:
            share = math.log(x) / (math.log(x) - math.log(y))
            found = math.exp(math.log(a) + share * (math.log(b) - math.log(a)))
    return found


def line(rows: list[Row], row: Row) -> str:
    def number(value: float | None, unit: str = "") -> str:
        return "-" if value is None else f"{value:.3f}{unit}" if value < 10 else f"{value:.1f}{unit}"

    label = row.name if row.budget is None else f"{row.name} {row.budget}"
    faster, by_calls = ratio(rows, row), ratio(rows, row, "no_graph")
    peak = "-" if row.peak is None else f"{row.peak / 2**20:.0f}"
    goal = GOALS.get((row.length, row.budget or 0)) if row.name == "ours" and not row.causal else None
    judged = "" if goal is None or faster is None else f"goal {goal}: {'met' if faster >= goal else 'missed'}"
    return (
        f"{row.length:7} {'causal' if row.causal else '':6} {label:17} {number(row.forward):>8} {number(row.both):>8} "
        f"{number(faster):>7} {number(row.no_graph):>9} {number(by_calls):>7} {peak:>9}  {row.why or judged}"
    )


def plot(rows: list[Row], path: Path, title: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5), sharey=True)
    names = list(dict.fromkeys((r.name, r.budget) for r in rows))
    for axis, causal in zip(axes, (False, True), strict=True):
        for i, (name, budget) in enumerate(names):
            points = sorted(
                (r.length, r.both) for r in rows if (r.name, r.budget, r.causal) == (name, budget, causal) and r.both
            )
            style = "-" if name == "ours" else "--" if name in BACKENDS else ":"
            label = name if budget is None else f"{name} {budget}"
            x, y = [p[0] for p in points], [p[1] for p in points]
            axis.loglog(x, y, style, marker=".", color=plt.get_cmap("tab20")(i), label=label)
        axis.set(xlabel="length", title="causal" if causal else "not causal")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms, forward and backward")
    axes[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--rows", type=int, default=524288, help="query rows of a cell")
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--causal", choices=("no", "yes", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=0.1, help="time to spend on each measurement")
    parser.add_argument(
        "--no-flex", dest="flex", action="store_false", help="leave FlexAttention out: it compiles long"
    )
    parser.add_argument("--out", type=Path, help="write the results as OUT.json and a plot as OUT.png")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    rows: list[Row] = []
    began = time.monotonic()
    print(
        f"{'length':>7} {'':6} {'attention':17} {'forward':>8} {'both':>8} {'ratio':>7} {'no graph':>9} {'ratio':>7} "
        f"{'peak MiB':>9}"
    )
    with products(options.dtype):
        for length in options.lengths:
            inputs, d_out = draw(options, length)
            for causal in {"no": (False,), "yes": (True,), "both": (False, True)}[options.causal]:
                for row, call in cells(options, length, causal):
                    rows.append(measure(row, call, inputs, d_out, options.seconds))
                    print(line(rows, rows[-1]), flush=True)
            facts, crossings = write(options, rows, time.monotonic() - began)  # what is measured is not lost
    print(", ".join(str(facts.get(name)) for name in ("device", "torch", "triton", "cudnn", "date", "commit")))
    for name, value in crossings.items():
        print(f"{name}: {'not faster than full attention' if value is None else f'faster from about {value:,.0f}'}")


def write(
    options: argparse.Namespace, rows: list[Row], seconds: float
) -> tuple[dict[str, object], dict[str, float | None]]:
    """Facts and crossovers; also into files, if asked for."""
    import triton

    versions = {"triton": triton.__version__, "cudnn": torch.backends.cudnn.version(), "seconds": round(seconds)}
    facts = describe(torch.device("cuda")) | versions
    crossings = {
        f"k = {k}{', causal' if causal else ''}": crossover(rows, k, causal)
        for k in options.budgets
        for causal in (False, True)
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        found = {"environment": facts, "options": vars(options) | {"out": None}, "crossover": crossings}
        found |= {"rows": [asdict(r) | {"ratio": ratio(rows, r)} for r in rows]}
        options.out.with_suffix(".json").write_text(json.dumps(found, indent=1, default=str) + "\n")
        where = f"{facts['device']}, {facts['date']}, {facts['commit']}"
        title = f"{options.rows:,} query rows, width {options.width}, {options.dtype}, {where}"
        plot(rows, options.out.with_suffix(".png"), title)
    return facts, crossings


if __name__ == "__main__":
    main()
