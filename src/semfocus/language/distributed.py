"""Several processes that train one model together, as ``torchrun`` starts them.

The first process runs the laboratory. The others follow: they wait for a job, take their part in it, and wait again.
Everything is as with one process but for the order of some sums.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

#: Followers wait while the first process reads text, draws pages, or trains days of runs of another kind. What fails is
#: noticed at once all the same: a connection that closes ends the wait. Sockets count milliseconds in 31 bits.
PATIENCE = timedelta(days=20)


@dataclass(frozen=True)
class Place:
    """This process among all."""

    rank: int = 0
    world: int = 1

    @staticmethod
    def here() -> Place:
        """As ``torchrun`` says in the environment; alone without it."""
        if "MASTER_ADDR" not in os.environ:
            return Place()
        return Place(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.world == 1

    def device(self, name: str) -> torch.device:
        """Every process of a machine has a GPU of its own."""
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", local) if name == "cuda" and not self.alone else torch.device(name)

    def join(self, device: torch.device) -> None:
        """Meets the other processes; later calls do nothing."""
        if not self.alone and not dist.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(device)
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)

    def told(self, message: Any = None) -> Any:
        """What the first process says, in all of them: plain data."""
        if self.alone:
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def mean(self, value: Tensor) -> Tensor:
        """Over the processes."""
        if not self.alone:
            dist.all_reduce(value)
            value /= self.world
        return value

    def rows(self, batch: Tensor) -> Tensor:
        """This process's part of the rows of a batch."""
        return batch.chunk(self.world)[self.rank] if not self.alone else batch

    def shared(self, model: nn.Module, how: str) -> nn.Module:
        """The model as all processes train it together."""
        if self.alone:
            return model
        if how == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        from torch.distributed.fsdp import fully_shard

        for block in model.get_submodule("blocks").children():
            fully_shard(block)
        fully_shard(model, reshard_after_forward=True)  # between steps every parameter is in parts
        return model


def follow(device: str, work: Callable[[Any, Place, torch.device], None]) -> None:
    """What all but the first process do: jobs until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides when to stop
    place = Place.here()
    own = place.device(device)
    place.join(own)
    while (job := place.told()) is not None:
        work(job, place, own)
    _part()


def dismiss(device: str) -> None:
    """The first process lets the others go, whether or not it had work for them: they wait to meet it."""
    place = Place.here()
    if not place.alone:
        place.join(place.device(device))
        place.told(None)
        _part()


def _part() -> None:
    """Models go before the group they communicate through, and nobody goes while another still waits for an answer."""
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be spread over processes, complete; all of them must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def fill(tensor: Tensor, value: Tensor | None, place: Place) -> None:
    """Sets a tensor that may be spread over processes to what the first process has."""
    given = torch.empty(tensor.shape, dtype=tensor.dtype) if value is None else value
    given = given.to(tensor.device)
    if not place.alone:
        dist.broadcast(given, 0)
    if hasattr(tensor, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        given = distribute_tensor(given, tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]
    with torch.no_grad():
        tensor.copy_(given)
