"""What a record of the op-log says of a command beside its times: kind, name, operands, parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from kernbench.common.dtypes import U8
from kernbench.messages.commands import (
    DotCommand,
    EpilogueStep,
    GemmComposite,
    LoadCommand,
    MathCommand,
    MemoryRef,
    PeCommand,
    StoreCommand,
    StreamOperand,
    TcmArray,
)
from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg, PeCoord
from kernbench.policy.address.layout import Component
from kernbench.sim_engine.address_map import AddressMap, Segment
from kernbench.sim_engine.hooks import Moved, Queued, Streamed
from kernbench.sim_engine.op_log import NO_PARAMS, Epilogue, Kind, Operand, OpParams


@dataclass(frozen=True, slots=True)
class Content:
    """The fields of a record that do not depend on time."""

    kind: Kind
    name: str = ""
    inputs: tuple[Operand | float, ...] = ()
    output: Operand | None = None
    params: OpParams = NO_PARAMS
    line: int = 0
    tile: tuple[int, ...] | None = None

    def without_data(self) -> Content:
        """The same for a run that keeps no operands."""
        return replace(self, inputs=(), output=None, params=NO_PARAMS)


class ContentMaker:
    """Makes contents; ``tile_sizes`` (m, k, n) go into those of composites."""

    def __init__(self, addresses: AddressMap, tile_sizes: tuple[int, int, int]) -> None:
        self._addresses = addresses
        self._tile_sizes = tile_sizes

    def of_host(self, msg: HostMsg, segments: tuple[Segment, ...]) -> Content:
        """A host transfer or a fill; a read, and a write without data, is timing only."""
        if not isinstance(msg, MemoryWriteMsg):
            assert isinstance(msg, MemoryReadMsg)
            return Content("memory_read", msg.name)
        if msg.data is None and msg.pattern is None:
            return Content("memory_write", msg.name)
        out = self.bytes_at(*segments[0])
        params = OpParams(pattern=msg.pattern) if msg.pattern is not None else NO_PARAMS
        return Content("memory_write", msg.name, output=out, params=params)

    def bytes_at(self, pa: int, nbytes: int) -> Operand:
        """A range of physical memory, as bytes."""
        space, owner = self._place(pa)
        return Operand(space, owner, pa, nbytes, (nbytes,), U8)

    def of_dma(self, command: LoadCommand | StoreCommand, moved: Moved, pe: PeCoord) -> Content:
        """A load or a store of a kernel."""
        if isinstance(command, LoadCommand):
            there = self._moved(command, command.dst, moved, command.other)
            return Content("dma_read", "load", (there,), _local(command.dst, pe), line=command.line)
        there = self._moved(command, command.src, moved, 0)
        return Content("dma_write", "store", (_local(command.src, pe),), there, line=command.line)

    def of_compute(self, command: PeCommand, pe: PeCoord) -> Content:
        """A MATH command or a dot."""
        if isinstance(command, MathCommand):
            given = tuple(_local(x, pe) if isinstance(x, TcmArray) else x for x in command.inputs)
            attributes = command.attributes
            params = OpParams(
                axis=attributes.axis, perm=attributes.perm, trans_a=attributes.trans_a, trans_b=attributes.trans_b
            )
            return Content("math", command.operator, given, _local(command.dst, pe), params, command.line)
        assert isinstance(command, DotCommand)
        arrays = (command.a, command.b) if command.acc is None else (command.a, command.b, command.acc)
        params = OpParams(trans_a=command.trans_a, trans_b=command.trans_b)
        inputs = tuple(_local(x, pe) for x in arrays)
        return Content("gemm", "dot", inputs, _local(command.dst, pe), params, command.line)

    def of_message(self, queued: Queued, pe: PeCoord) -> Content:
        """A message of a queue: a copy from the sender's TCM to a slot of the receiver."""
        src = queued.what.src
        space, owner = self._place(queued.pa)
        there = Operand(space, owner, queued.pa, src.nbytes, src.shape, src.dtype)
        return Content("ipcq_copy", f"send {queued.what.direction}", (_local(src, pe),), there, line=queued.what.line)

    def of_composite(self, streamed: Streamed, pe: PeCoord) -> Content:
        """A whole composite as one record."""
        command = streamed.what
        segments = iter(streamed.segments)
        gemm = isinstance(command, GemmComposite)
        given = (command.a, command.b) if isinstance(command, GemmComposite) else command.inputs
        inputs = tuple(x if isinstance(x, float | int) else self._operand(x, segments, pe) for x in given)
        epilogue = tuple(self._step(step, segments, pe) for step in command.epilogue)
        out = self._operand(command.out, segments, pe)
        params = OpParams(epilogue=epilogue, tile_sizes=self._tile_sizes)
        kind: Kind = "gemm" if gemm else "math"
        name = "composite" if isinstance(command, GemmComposite) else command.operator
        return Content(kind, name, inputs, out, params, command.line)

    def _step(self, step: EpilogueStep, segments: Iterator[tuple[Segment, ...]], pe: PeCoord) -> Epilogue:
        operand = step.operand
        if isinstance(operand, TcmArray | MemoryRef):
            return Epilogue(step.name, self._operand(operand, segments, pe))
        return Epilogue(step.name, operand)

    def _operand(self, x: StreamOperand, segments: Iterator[tuple[Segment, ...]], pe: PeCoord) -> Operand:
        if isinstance(x, TcmArray):
            return _local(x, pe)
        ranges = next(segments)
        space, owner = self._place(ranges[0][0])
        nbytes = prod(x.shape) * x.dtype.itemsize
        several = ranges if len(ranges) > 1 else ()
        return Operand(space, owner, ranges[0][0], nbytes, x.shape, x.dtype, x.strides, several)

    def _moved(self, command: LoadCommand | StoreCommand, array: TcmArray, moved: Moved, other: float) -> Operand:
        """The memory side of a DMA: ``moved.segments`` hold its extent in the order of offsets."""
        address = moved.segments[0][0]
        space, owner = self._place(address)
        several = moved.segments if len(moved.segments) > 1 else ()
        strides, valid = command.strides, command.valid
        return Operand(space, owner, address, array.nbytes, array.shape, array.dtype, strides, several, valid, other)

    def _place(self, pa: int) -> tuple[str, tuple[int, ...]]:
        addr = self._addresses.decode(pa)
        if addr.component == Component.TCM:
            assert addr.pe_id is not None
            return "tcm", (addr.sip_id, addr.cube_id, addr.pe_id)
        return str(addr.component), (addr.sip_id, addr.cube_id)


def _local(array: TcmArray, pe: PeCoord) -> Operand:
    return Operand("tcm", pe, array.address, array.nbytes, array.shape, array.dtype)
