"""A small machine and short ways to move data and run kernels on an engine, without the host runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiled import compiled
from kernbench.common.dtypes import dtype
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Completion, RequestTrace
from kernbench.messages.requests import (
    KernelLaunchMsg,
    KernelRef,
    MappedShard,
    MemoryWriteMsg,
    MmuMapMsg,
    PeCoord,
    PeDmaMsg,
    TensorArg,
    TensorMapping,
)
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.builder import Topology

Array = np.ndarray[Any, Any]
SLICE = 6 << 30


def machine(*overrides: str) -> Topology:
    """The packaged machine with overrides."""
    return compiled(*overrides)


def two_cubes(*overrides: str) -> Topology:
    """The packaged machine with two cubes only, and overrides: an engine of it is made in no time."""
    return machine("system.sips.count=1", "sip.cube_mesh={w: 2, h: 1}", *overrides)


def hbm(sip: int, cube: int, pe: int, offset: int = 0) -> int:
    """An address in the slice of a PE."""
    return PhysAddr.pe_hbm_addr(0, sip, cube, pe, offset, SLICE).encode()


def dma(
    engine: GraphEngine, pa: int, nbytes: int, pe: PeCoord = (0, 0, 0), op: str = "read", **more: int
) -> Completion:
    """One PeDmaMsg, waited for."""
    return engine.wait(engine.submit(PeDmaMsg(pe=pe, pa=pa, nbytes=nbytes, op=op, **more)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Placed:
    """An array that has been written to the slice of one PE and mapped."""

    arg: TensorArg
    pa: int

    @property
    def va(self) -> int:
        return self.arg.va


def place(engine: GraphEngine, array: Array, pe: PeCoord = (0, 0, 0), name: str = "t") -> Placed:
    """Write ``array`` to the PE's slice by a host transfer and tell the PE's SIP where it is."""
    pa = engine.allocators[pe].alloc_hbm(array.nbytes).encode()
    va = engine.va_allocator(pe[0]).alloc(array.nbytes)
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    engine.wait(engine.submit(MemoryWriteMsg(pa=pa, nbytes=array.nbytes, data=raw)))
    shard = MappedShard(sip=pe[0], cube=pe[1], pe=pe[2], offset_bytes=0, nbytes=array.nbytes, pa=pa)
    mapping = TensorMapping(name=name, va_base=va, nbytes=array.nbytes, shards=(shard,))
    engine.wait(engine.submit(MmuMapMsg(sip=pe[0], mapping=mapping)))
    arg = TensorArg(name=name, va=va, shape=array.shape, dtype=dtype(array.dtype.name), owners=(pe,))
    return Placed(arg, pa)


def launch(
    engine: GraphEngine,
    kernel: Callable[..., object],
    *args: Placed | float,
    targets: tuple[PeCoord, ...] = ((0, 0, 0),),
) -> RequestTrace:
    """Run a kernel and wait for it."""
    given = tuple(a.arg if isinstance(a, Placed) else a for a in args)
    msg = KernelLaunchMsg(kernel=KernelRef(name=kernel.__name__, function=kernel), args=given, targets=targets)
    handle = engine.submit(msg)
    engine.wait(handle)
    return engine.get_completion(handle)[1]


def fetch(engine: GraphEngine, placed: Placed) -> Array:
    """What the machine holds of a placed array."""
    arg = placed.arg
    nbytes = int(np.prod(arg.shape)) * arg.dtype.itemsize
    return engine.read_memory(placed.pa, nbytes).view(arg.dtype.numpy).reshape(arg.shape)
