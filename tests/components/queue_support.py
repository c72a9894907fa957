"""Queue pairs on an engine without ccl.yaml: edges in, installed queues out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from kernbench.common.dtypes import dtype
from kernbench.engine.engine import GraphEngine
from kernbench.engine.queues import QueuePair, queue_part
from kernbench.engine.requests import RequestTrace
from kernbench.messages.requests import (
    BufferKind,
    IpcqInitMsg,
    KernelLaunchMsg,
    KernelRef,
    MappedShard,
    MemoryWriteMsg,
    MmuMapMsg,
    PeCoord,
    QueuePeer,
    QueueSetup,
    TensorArg,
    TensorMapping,
)

End = tuple[PeCoord, str]
Array = np.ndarray[Any, Any]


def line_of(*pes: PeCoord) -> list[tuple[End, End]]:
    """E of each PE to W of the next."""
    return [((a, "E"), (b, "W")) for a, b in pairwise(pes)]


def ring_of(*pes: PeCoord) -> list[tuple[End, End]]:
    """A line whose ends are joined."""
    return [*line_of(*pes), ((pes[-1], "E"), (pes[0], "W"))]


def _reserve(engine: GraphEngine, pe: PeCoord, kind: BufferKind, nbytes: int) -> int:
    if kind == "tcm":
        return engine.allocators[pe].reserve_ipcq_tcm(nbytes).encode()
    if kind == "hbm":
        return engine.allocators[pe].reserve_ipcq_hbm(nbytes).encode()
    return engine.cube_allocator(pe[0], pe[1]).reserve_ipcq_sram(nbytes).encode()


def install(
    engine: GraphEngine,
    edges: Iterable[tuple[End, End]],
    *,
    n_slots: int = 4,
    slot_size: int = 4096,
    kind: BufferKind = "tcm",
    **more: Any,
) -> None:
    """Install a queue pair at both ends of every edge and wait until that is done."""
    both = list(edges)
    ends = [end for edge in both for end in edge]
    rings = {end: _reserve(engine, end[0], kind, n_slots * slot_size) for end in ends}
    setups: dict[PeCoord, list[QueueSetup]] = {}
    for one, other in [*both, *((b, a) for a, b in both)]:
        (pe, direction), (peer, back) = one, other
        setups.setdefault(pe, []).append(
            QueueSetup(
                direction=direction,
                peer=QueuePeer(pe=peer, direction=back, rx_base_pa=rings[other]),
                rx_base_pa=rings[one],
                n_slots=n_slots,
                slot_size=slot_size,
                via_port=direction.removeprefix("global_") if direction.startswith("global_") else None,
            )
        )
    messages = [IpcqInitMsg(pe=pe, queues=tuple(q), buffer_kind=kind, **more) for pe, q in setups.items()]
    for handle in [engine.submit(message) for message in messages]:
        engine.wait(handle)


@dataclass(frozen=True)
class Shared:
    """One array for each PE, behind one virtual address: every PE sees its own."""

    args: dict[int, TensorArg]
    pas: dict[PeCoord, int]
    like: Array


def share(engine: GraphEngine, arrays: dict[PeCoord, Array], name: str = "t") -> Shared:
    """Give each PE its own copy of an array, all at the same virtual address of their SIP."""
    like = next(iter(arrays.values()))
    pas: dict[PeCoord, int] = {}
    args: dict[int, TensorArg] = {}
    for sip in sorted({pe[0] for pe in arrays}):
        owners = [pe for pe in arrays if pe[0] == sip]
        va = engine.va_allocator(sip).alloc(like.nbytes)
        shards = []
        for pe in owners:
            pa = engine.allocators[pe].alloc_hbm(like.nbytes).encode()
            pas[pe] = pa
            raw = np.ascontiguousarray(arrays[pe]).reshape(-1).view(np.uint8)
            engine.wait(engine.submit(MemoryWriteMsg(pa=pa, nbytes=like.nbytes, data=raw)))
            shards.append(MappedShard(sip=pe[0], cube=pe[1], pe=pe[2], offset_bytes=0, nbytes=like.nbytes, pa=pa))
        mapping = TensorMapping(name=name, va_base=va, nbytes=like.nbytes, shards=tuple(shards))
        engine.wait(engine.submit(MmuMapMsg(sip=sip, mapping=mapping)))
        args[sip] = TensorArg(name=name, va=va, shape=like.shape, dtype=dtype(like.dtype.name), owners=tuple(owners))
    return Shared(args, pas, like)


def held(engine: GraphEngine, shared: Shared, pe: PeCoord) -> Array:
    """What the machine holds of a PE's own array."""
    raw = engine.read_memory(shared.pas[pe], shared.like.nbytes)
    return raw.view(shared.like.dtype).reshape(shared.like.shape)


def launch(
    engine: GraphEngine, kernel: Callable[..., object], *args: Any, pes: Iterable[PeCoord]
) -> list[RequestTrace]:
    """Run a kernel on PEs of one SIP or several, a launch for each SIP, and wait for all."""
    targets = tuple(pes)
    handles = []
    for sip in sorted({pe[0] for pe in targets}):
        given = tuple(a.args[sip] if isinstance(a, Shared) else a for a in args)
        message = KernelLaunchMsg(
            kernel=KernelRef(name=kernel.__name__, function=kernel),
            args=given,
            targets=tuple(pe for pe in targets if pe[0] == sip),
        )
        handles.append(engine.submit(replace(message, name=kernel.__name__)))
    for handle in handles:
        engine.wait(handle)
    return [engine.get_completion(handle)[1] for handle in handles]


def pairs(engine: GraphEngine, pes: Iterable[PeCoord]) -> list[QueuePair]:
    """All queue pairs of PEs."""
    return [pair for pe in pes for pair in queue_part(engine.machine, pe).queue_pairs.values()]


def assert_settled(engine: GraphEngine, pes: Iterable[PeCoord]) -> None:
    """Every queue has head = tail and all its credits."""
    engine.drain()
    for pair in pairs(engine, pes):
        assert pair.settled, f"{pair.direction}: {pair.counters}"
