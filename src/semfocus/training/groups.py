"""Which runs train together: those that share their shapes, as many as fit into memory.

A group is recorded in ``DIR/groups/<id>/group.json`` before it starts, so that after a crash it is formed again as it
was and goes on from its checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from .. import kernels
from ..kernels.halves import serve_pattern
from . import checkpoint
from .files import explained, write_json
from .protocol import RunConfig
from .run_directory import RunDirectory

#: Larger populations gain nothing on a CPU: the caches are full long before.
CPU_MEMBERS = 24
#: Share of the free memory that a population may plan with.
MEMORY_SHARE = 0.6


@dataclass(frozen=True)
class Group:
    """Runs that train in lock step."""

    configs: tuple[RunConfig, ...]
    threads: int | None = None  # CPU threads it was started with

    @property
    def runs(self) -> list[str]:
        return [config.hash for config in self.configs]

    @property
    def id(self) -> str:
        return hashlib.sha256(" ".join(self.runs).encode()).hexdigest()[:16]

    def folder(self, out: Path) -> Path:
        return out / "groups" / self.id

    def record(self, out: Path) -> None:
        configs = [config.to_dict() for config in self.configs]
        write_json(self.folder(out) / "group.json", {"threads": self.threads, "runs": self.runs, "configs": configs})

    def of(self, members: Iterable[int]) -> Group:
        """Some of its members by themselves."""
        return replace(self, configs=tuple(self.configs[i] for i in members))

    def left(self, out: Path) -> list[int]:
        """The members that are not over. The others may have come from elsewhere, finished."""
        return [i for i, run in enumerate(self.runs) if not RunDirectory(out, run).is_finished()]


def shape_key(config: RunConfig) -> str:
    """Runs with equal keys can share a population."""
    sizes = (config.data.train, config.data.heldout, config.data.test)
    shapes = asdict(config.model_config().shared())
    parts = [shapes, config.length, config.pattern.global_tokens, asdict(config.train), sizes, config.precision]
    return json.dumps(parts, sort_keys=True)


def plan(configs: Sequence[RunConfig], members: Callable[[RunConfig], int], on_gpu: bool = False) -> list[Group]:
    """Groups of at most ``members(config)`` runs, with equal activations and patterns side by side.

    On a GPU, patterns that the fastest kernels do not know train apart: a single one would slow all the others down.
    """
    by_shape: dict[tuple[str, bool], list[RunConfig]] = {}
    for config in configs:
        apart = on_gpu and not serve_pattern(config.pattern, config.model.mask_padding)
        by_shape.setdefault((shape_key(config), apart), []).append(config)
    groups = []
    for runs in by_shape.values():
        runs.sort(key=lambda c: (c.model.activation, c.pattern.label, c.model.attention_scale, c.seed, c.hash))
        # The most demanding pattern decides: whoever needs the scores in memory needs the most.
        most = max(min(members(one) for one in {run.pattern: run for run in runs}.values()), 1)
        pieces = -(-len(runs) // most)
        size = -(-len(runs) // pieces)  # pieces of nearly equal size
        groups += [Group(tuple(runs[i : i + size])) for i in range(0, len(runs), size)]
    return groups


def recorded(out: Path, wanted: set[str]) -> list[Group]:
    """Groups of an earlier, interrupted call that hold a wanted run, formed again as they were."""
    groups: list[Group] = []
    for path in sorted((out / "groups").glob("[!.]*/group.json")):
        with explained(path, "read"):  # what may not be read is not damaged
            try:
                data = path.read_bytes()
            except FileNotFoundError:  # by now another process has finished it
                continue
        try:
            record = json.loads(data)
            if wanted & set(record["runs"]):
                groups.append(Group(tuple(map(RunConfig.from_dict, record["configs"])), record["threads"]))
        except (ValueError, KeyError, TypeError):
            checkpoint.remove(path.parent)
    taken: set[str] = set()
    sound = []
    # Halves before the group they came from: a crash between the two leaves both behind.
    for group in sorted(groups, key=lambda group: len(group.configs)):
        if taken & set(group.runs):
            checkpoint.remove(group.folder(out))
        else:
            taken |= set(group.runs)
            sound.append(group)
    return sound


def remove_ended(out: Path) -> None:
    """Groups whose runs are all over, but whose process died before it could remove them, or while it did."""
    checkpoint.remove_rest(out / "groups")
    for path in (out / "groups").glob("[!.]*/group.json"):
        try:
            runs = json.loads(path.read_bytes())["runs"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if all(RunDirectory(out, run).is_finished() for run in runs):
            checkpoint.remove(path.parent)


def members_that_fit(config: RunConfig, device: torch.device) -> int:
    """How many members a population of such runs may have, by an estimate of what one step keeps in memory."""
    if device.type != "cuda":
        return CPU_MEMBERS
    torch.cuda.empty_cache()  # what populations before have left counts as taken
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, int(MEMORY_SHARE * free / bytes_per_member(config, keeps_scores(config))))


def keeps_scores(config: RunConfig) -> bool:
    """Will a GPU hold the matrix of scores, for want of a fused kernel?"""
    fused = serve_pattern(config.pattern, masked=False) and not config.model.soft_cap
    long_enough = kernels.PAYS_FROM_KEYS <= config.attended <= kernels.LONGEST_ROW
    return not (kernels.INSTALLED and fused and long_enough and config.precision == "tf32")


def bytes_per_member(config: RunConfig, keeps_scores: bool = True) -> int:
    """Activations kept for the backward pass, in float32, and the resident examples. Rough, and on the high side."""
    model = config.model_config()
    length = config.attended
    tokens = config.train.batch * length
    per_token = 8 * model.width + (3 + 2) * model.heads * model.width + 4 * model.mlp_width
    scores = 6 * config.train.batch * model.heads * length * length if keeps_scores else 0
    examples = (config.data.train + config.data.heldout + config.data.test) * (length + 2 * model.outputs)
    return 4 * model.blocks * (tokens * per_token + scores) + examples
