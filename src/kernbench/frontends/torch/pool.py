"""Memory of PyTorch tensors on the machine: storages of deleted tensors are reused, as in PyTorch's allocators."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeAlias

import torch

from kernbench.common.dtypes import DType
from kernbench.common.errors import AllocationError
from kernbench.common.units import format_size
from kernbench.common.values import state, value
from kernbench.frontends.placed import pes_of_tensors
from kernbench.frontends.torch.modules import ProgramPlace, current_module, program_place
from kernbench.frontends.torch.placement import policy_for
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import KnownValues, Tensor

StorageKind: TypeAlias = "tuple[int, DType, int]"
"""Number of elements, their type, and the SIP. A dropped storage is reused for one with the same three values."""
BLOCK_BYTES = 512
"""Allocation granularity of PyTorch's allocators, in bytes."""
_MOST_NAMED = 5


class DeviceOutOfMemoryError(AllocationError, torch.OutOfMemoryError):
    """An allocation exceeds the free HBM of a SIP. The message names the largest tensors."""


@value
class Holder:
    """The kind of a storage in use, and the module and the line that allocated the storage."""

    kind: StorageKind
    module: str
    place: ProgramPlace | None

    def __str__(self) -> str:
        n, item, _ = self.kind
        made = " ".join(filter(None, (self.module, "" if self.place is None else str(self.place))))
        return f"{format_size(n * item.itemsize)} ({n:,} of {item}{', ' if made else ''}{made})"


class _Collector:
    """Tells whether Python's garbage collector is running. The time of a collection must not change simulated time."""

    def __init__(self) -> None:
        self.works = False
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: Mapping[str, Any]) -> None:
        self.works = phase == "start"


_COLLECTOR = _Collector()


@state
class Pool:
    """The storages of a rank: in use (``live``), dropped by the program, or freed by the garbage collector.

    Dropped storages are reused. Storages that the garbage collector freed are reused only when memory is full, so the
    moment of a collection has no effect on simulated time.
    """

    context: RuntimeContext[Any]
    known: KnownValues
    live: dict[Tensor, Holder] = field(default_factory=dict)
    dropped: dict[StorageKind, list[Tensor]] = field(default_factory=dict)
    collected: list[Tensor] = field(default_factory=list)
    made: int = 0
    allocated: dict[int, int] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)

    def take(self, n: int, item: DType, sip: int) -> Tensor:
        """Return a storage of ``n`` elements. Raises DeviceOutOfMemoryError if the tensors in use leave no room."""
        kind = (n, item, sip)
        shelf = self.dropped.get(kind)
        if shelf:
            found = shelf.pop()
            found.renew()
        else:
            found = self._make(kind)
        self.live[found] = Holder(kind, current_module(), program_place())
        total = self.allocated[sip] = self.allocated.get(sip, 0) + _blocks(n * item.itemsize)
        self.peak[sip] = max(self.peak.get(sip, 0), total)
        return found

    def give(self, tensor: Tensor) -> None:
        """Put ``tensor``, which is no longer in use, back into the pool."""
        self.known.forget(tensor)
        n, item, sip = self.live.pop(tensor).kind
        self.allocated[sip] -= _blocks(n * item.itemsize)
        if _COLLECTOR.works:
            self.collected.append(tensor)
        else:
            self.dropped.setdefault((n, item, sip), []).append(tensor)

    def _make(self, kind: StorageKind) -> Tensor:
        try:
            return self._allocate(kind)
        except AllocationError:
            gc.collect()
            self._free_dropped()
        try:
            return self._allocate(kind)
        except AllocationError as error:
            raise self._full(kind) from error

    def _allocate(self, kind: StorageKind) -> Tensor:
        (n, item, sip), context = kind, self.context
        policy = policy_for(context, n * item.itemsize)
        before = context.devices.current
        context.ahbm.set_device(sip)
        try:
            made = context.empty(n, dtype=item, dp=policy, name=f"storage{self.made + 1}")
            # A kernel may load this tensor's address from memory, so all PEs that run kernels get access to it.
            context.map_on(made, pes_of_tensors(context, sip))
        finally:
            context.ahbm.set_device(before)
        self.made += 1
        return made

    def _free_dropped(self) -> None:
        """Free the memory of all dropped and collected tensors."""
        shelves, found = list(self.dropped.values()), self.collected
        self.dropped, self.collected = {}, []
        for tensor in (*[each for shelf in shelves for each in shelf], *found):
            tensor.free()

    def _full(self, kind: StorageKind) -> DeviceOutOfMemoryError:
        n, item, sip = kind
        here = [each for each in self.live.values() if each.kind[2] == sip]
        largest = sorted(here, key=lambda each: -each.kind[0] * each.kind[1].itemsize)[:_MOST_NAMED]
        has = self.context.topology.hbm_bytes_per_sip
        cubes = self.context.frontends.torch.cubes
        return DeviceOutOfMemoryError(
            f"ahbm:{sip} is out of memory: {format_size(n * item.itemsize)} asked for, "
            f"{format_size(self.allocated.get(sip, 0))} in {len(here):,} tensors; its HBM has {format_size(has)}, and "
            f"tensors lie on {cubes} of {self.context.topology.cubes_per_sip} cubes (--set torch.cubes=N). "
            f"The largest: {'; '.join(map(str, largest)) or 'none'}"
        )


def _blocks(nbytes: int) -> int:
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def pool_of(context: RuntimeContext[Any]) -> Pool:
    """Return the pool of the current rank."""
    local = context.rank_local
    found = local.get(Pool)
    if found is None:
        local.put(found := Pool(context, context.known_values))
    return found
