"""The memories of the mock: what the commands of a kernel make of them at once, by the rules of phase 2."""

from __future__ import annotations

from bisect import bisect_right
from itertools import product
from typing import Any, Protocol

import numpy as np

from kernbench.common.dtypes import F32, U8, Array, Shape, row_major
from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import AddressFaultError
from kernbench.common.operators import PLAIN
from kernbench.engine.address_map import MemoryPlace, Segment
from kernbench.engine.record_content import ContentMaker, Moved, Streamed
from kernbench.messages.commands import (
    AtomicCommand,
    GemmComposite,
    LoadCommand,
    MathCommand,
    MathComposite,
    MemoryRef,
    PeCommand,
    StoreCommand,
)
from kernbench.messages.operands import NOWHERE, Operand
from kernbench.numerics.compute import result
from kernbench.numerics.memory_store import MemoryStore
from kernbench.numerics.replay_operands import OperandMemory

TCM_BASE = 1 << 60
"""From here on addresses are of TCMs, below they are of tensors."""
_FIRST_VA = 1 << 20
_GUARD_BYTES = 4096


class PeMemory(Protocol):
    """What the PEs of a SIP work on: their TCMs, and tensors. What an array holds is for it alone to understand."""

    def carry_out(self, command: PeCommand) -> None:
        """Do what ``command`` says. To be called under ``np.errstate(all="ignore")``."""

    def meet(self, a: PeCommand, b: PeCommand) -> bool:
        """Whether both access the same bytes of a tensor, and one of them writes."""

    def get(self, array: Operand) -> Any:
        """What an array in TCM holds now."""

    def put(self, address: int, message: Any) -> None:
        """Write to a TCM what ``get`` has given, here or elsewhere."""


class MockMemory:
    """Numbers: tensors at virtual addresses, with gaps between them that no access may touch, and the TCMs of PEs."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._operands = OperandMemory(self._store)
        self._contents = ContentMaker(_place_of, (0, 0, 0))
        self._tensors: list[Segment] = []
        self._next = _FIRST_VA

    def place(self, array: Array) -> int:
        """Copy ``array`` into memory; returns its virtual address."""
        va = self._next
        self._store.write("hbm", va, np.ascontiguousarray(array))
        self._tensors.append((va, array.nbytes))
        self._next = va + -(-(array.nbytes + _GUARD_BYTES) // _GUARD_BYTES) * _GUARD_BYTES
        return va

    def read(self, va: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """A copy of the array at ``va``."""
        return self._store.read("hbm", va, shape, element_type(dtype.name))

    def get(self, array: Operand) -> Array:
        """The elements."""
        return self._store.read("tcm", array.address, array.shape, array.dtype)

    def put(self, address: int, message: Array) -> None:
        """Write elements to a TCM."""
        self._store.write("tcm", address, message)

    def carry_out(self, command: PeCommand) -> None:
        """Do what ``command`` says. To be called under ``np.errstate(all="ignore")``."""
        what: object = command
        if isinstance(command, LoadCommand | StoreCommand | AtomicCommand):
            segments = self._segments(command)
            what = Moved(command, segments) if any(va != NOWHERE for va, _ in segments) else _of_nothing(command)
        elif isinstance(command, GemmComposite | MathComposite):
            what = Streamed(command, tuple((self._extent(ref),) for _, ref in _accesses(command)))
        if what is None:
            return
        work = self._contents.of(what)
        assert work.output is not None
        self._operands.deposit(work.output, result(work, self._operands, F32, False))

    def meet(self, a: PeCommand, b: PeCommand) -> bool:
        """Whether both access the same bytes of a tensor, and one of them writes."""
        pairs = product(_accesses(a), _accesses(b))
        return any((x or y) and np.shares_memory(self._view(one), self._view(other)) for (x, one), (y, other) in pairs)

    def _view(self, ref: MemoryRef) -> Array:
        self._extent(ref)
        return self._store.view("hbm", ref.va, ref.shape, ref.dtype, ref.strides)

    def _segments(self, command: LoadCommand | StoreCommand | AtomicCommand) -> tuple[Segment, ...]:
        """Where the memory side of a DMA lies."""
        if command.runs:
            return tuple((va, n) if va == NOWHERE else self._checked(va, n) for va, n in command.runs)
        ref = _of_dma(command)
        if 0 in ref.shape:
            return ()
        return ((ref.va, 0),) if command.physical else (self._extent(ref),)

    def _extent(self, ref: MemoryRef) -> Segment:
        item = ref.dtype.itemsize
        steps = row_major(ref.shape, item) if ref.strides is None else ref.strides
        return self._checked(ref.va, sum((n - 1) * step for n, step in zip(ref.shape, steps, strict=True)) + item)

    def _checked(self, va: int, nbytes: int) -> Segment:
        """These bytes, if they are of one tensor; else AddressFaultError."""
        at = bisect_right(self._tensors, va, key=lambda tensor: tensor[0]) - 1
        base, size = self._tensors[at] if at >= 0 else (va, 0)
        if va + nbytes > base + size:
            near = (
                f"the tensor before it ends {va - base - size:+d} bytes from there" if at >= 0 else "no tensor is there"
            )
            raise AddressFaultError(f"{nbytes} bytes at virtual address {va:#x}: {near}")
        return va, nbytes


def _place_of(address: int) -> MemoryPlace:
    return MemoryPlace("tcm" if address >= TCM_BASE else "hbm", (), 0, 0, 0, ())


def _accesses(command: PeCommand) -> list[tuple[bool, MemoryRef]]:
    """What of tensors a command reads and writes, and whether it writes it; operands first."""
    if isinstance(command, GemmComposite | MathComposite):
        given = (command.a, command.b) if isinstance(command, GemmComposite) else command.inputs
        read = (*given, *(step.operand for step in command.epilogue))
        return [*((False, ref) for ref in read if isinstance(ref, MemoryRef)), (True, command.out)]
    if not isinstance(command, LoadCommand | StoreCommand | AtomicCommand) or command.physical:
        return []
    writes = not isinstance(command, LoadCommand)
    if command.runs:
        return [(writes, MemoryRef(va, (n,), U8)) for va, n in command.runs if va != NOWHERE]
    return [(writes, _of_dma(command))]


def _of_dma(command: LoadCommand | StoreCommand | AtomicCommand) -> MemoryRef:
    """What a DMA accesses, of an array in memory or of the valid part of one."""
    array = command.dst if isinstance(command, LoadCommand) else command.src
    strides, shape = command.strides, array.shape
    if command.valid is not None:
        strides, shape = strides or row_major(shape, array.dtype.itemsize), command.valid
    return MemoryRef(command.va, shape, array.dtype, strides)


def _of_nothing(command: LoadCommand | StoreCommand | AtomicCommand) -> MathCommand | None:
    """What is left of a DMA that accesses no memory: a load gives what it has for elsewhere, an atomic 0."""
    if isinstance(command, StoreCommand) or command.dst is None:
        return None
    other = command.other if isinstance(command, LoadCommand) else 0
    return MathCommand(command.serial, command.line, (), "full", (other,), command.dst, PLAIN)
