"""What a record of the op-log says of a command beside its times: kind, name, operands, parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.dtypes import U8
from kernbench.common.operators import PLAIN, Attributes
from kernbench.core.op_log import NO_PARAMS, Epilogue, Kind, OpParams
from kernbench.engine.address_map import AddressMap, Segment
from kernbench.engine.hooks import Moved, OpStarted, Streamed, TileMoved
from kernbench.messages.commands import (
    Command,
    DotCommand,
    EpilogueStep,
    GemmComposite,
    LoadCommand,
    MemoryRef,
    StoreCommand,
    StreamOperand,
)
from kernbench.messages.operands import Operand
from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg

Array: TypeAlias = np.ndarray[Any, Any]
Content: TypeAlias = tuple[
    Kind, str, tuple[Operand | float, ...], Operand | None, OpParams, int, tuple[int, ...] | None, Array | None
]
"""What does not depend on time: kind, name, inputs, output, params, line, tile and data of a record."""


class ContentMaker:
    """Makes contents; ``tile_sizes`` (m, k, n) go into those of composites."""

    def __init__(self, addresses: AddressMap, tile_sizes: tuple[int, int, int]) -> None:
        self._addresses = addresses
        self._tile_sizes = tile_sizes
        self._makers: dict[type, Callable[[Any], Content]] = {
            Moved: self._of_moved,
            TileMoved: self._of_tile,
            DotCommand: self.of_dot,
            Streamed: self.of_composite,
        }

    def of(self, started: OpStarted) -> Content:
        """What the record of an operation is to say."""
        return self._makers[started.what.__class__](started.what)

    def without_data(self, started: OpStarted) -> Content:
        """The same for a run that keeps no operands."""
        kind, name, _, _, _, line, tile, _ = self.of(started)
        return kind, name, (), None, NO_PARAMS, line, tile, None

    def _of_tile(self, moved: TileMoved) -> Content:
        kind: Kind = "dma_read" if moved.reading else "dma_write"
        return kind, moved.operand, (), None, NO_PARAMS, 0, moved.tile, None

    def _of_moved(self, moved: Moved) -> Content:
        what = moved.what
        return self.of_dma(what, moved) if isinstance(what, Command) else self.of_host(what, moved.segments)

    def of_host(self, msg: HostMsg, segments: tuple[Segment, ...]) -> Content:
        """A host transfer or a fill; a read, and a write without data, is timing only."""
        if not isinstance(msg, MemoryWriteMsg):
            assert isinstance(msg, MemoryReadMsg)
            return "memory_read", msg.name, (), None, NO_PARAMS, 0, None, None
        if msg.data is None and msg.pattern is None:
            return "memory_write", msg.name, (), None, NO_PARAMS, 0, None, None
        out = self.bytes_at(*segments[0])
        params = OpParams(pattern=msg.pattern) if msg.pattern is not None else NO_PARAMS
        return "memory_write", msg.name, (), out, params, 0, None, msg.data

    def bytes_at(self, pa: int, nbytes: int) -> Operand:
        """A range of physical memory, as bytes."""
        place = self._addresses.place_of(pa)
        return Operand(place.space, place.owner, pa, nbytes, (nbytes,), U8)

    def of_dma(self, command: LoadCommand | StoreCommand, moved: Moved) -> Content:
        """A load or a store of a kernel."""
        if isinstance(command, LoadCommand):
            there = self._moved(command, command.dst, moved, command.other)
            return "dma_read", "load", (there,), command.dst, NO_PARAMS, command.line, None, None
        there = self._moved(command, command.src, moved, 0)
        return "dma_write", "store", (command.src,), there, NO_PARAMS, command.line, None, None

    def of_dot(self, command: DotCommand) -> Content:
        """A dot."""
        arrays = (command.a, command.b) if command.acc is None else (command.a, command.b, command.acc)
        params = OpParams(trans_a=command.trans_a, trans_b=command.trans_b)
        return "gemm", "dot", arrays, command.dst, params, command.line, None, None

    def of_composite(self, streamed: Streamed) -> Content:
        """A whole composite as one record."""
        command = streamed.what
        segments = iter(streamed.segments)
        gemm = isinstance(command, GemmComposite)
        given = (command.a, command.b) if isinstance(command, GemmComposite) else command.inputs
        inputs = tuple(x if isinstance(x, float | int) else self._operand(x, segments) for x in given)
        epilogue = tuple(self._step(step, segments) for step in command.epilogue)
        out = self._operand(command.out, segments)
        params = OpParams(epilogue=epilogue, tile_sizes=self._tile_sizes)
        kind: Kind = "gemm" if gemm else "math"
        name = "composite" if isinstance(command, GemmComposite) else command.operator
        return kind, name, inputs, out, params, command.line, None, None

    def _step(self, step: EpilogueStep, segments: Iterator[tuple[Segment, ...]]) -> Epilogue:
        operand = step.operand
        if isinstance(operand, Operand | MemoryRef):
            return Epilogue(step.name, self._operand(operand, segments))
        return Epilogue(step.name, operand)

    def _operand(self, x: StreamOperand, segments: Iterator[tuple[Segment, ...]]) -> Operand:
        if isinstance(x, Operand):
            return x
        ranges = next(segments)
        place = self._addresses.place_of(ranges[0][0])
        nbytes = prod(x.shape) * x.dtype.itemsize
        several = ranges if len(ranges) > 1 else ()
        return Operand(place.space, place.owner, ranges[0][0], nbytes, x.shape, x.dtype, x.strides, several)

    def _moved(self, command: LoadCommand | StoreCommand, array: Operand, moved: Moved, other: float) -> Operand:
        """The memory side of a DMA: ``moved.segments`` hold its extent in the order of offsets."""
        address = moved.segments[0][0]
        place = self._addresses.place_of(address)
        several = moved.segments if len(moved.segments) > 1 else ()
        layout = (command.strides, several, command.valid, other)
        return Operand(place.space, place.owner, address, array.nbytes, array.shape, array.dtype, *layout)


def params_of(attributes: Attributes) -> OpParams:
    """The attributes of an operator as a record has them."""
    if attributes is PLAIN:
        return NO_PARAMS
    axis, perm = attributes.axis, attributes.perm
    return OpParams(axis=axis, perm=perm, trans_a=attributes.trans_a, trans_b=attributes.trans_b)
