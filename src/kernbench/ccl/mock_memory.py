"""The memories of the mock, and what the commands of a kernel compute in them: at once, by the operators of phase 2."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product
from mmap import mmap
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.dtypes import F32, U8, DType, row_major
from kernbench.common.errors import AddressFaultError
from kernbench.common.operators import ATOMICS, EPILOGUE, Attributes, compute, gemm, narrow, operator
from kernbench.messages.commands import (
    AtomicCommand,
    DotCommand,
    EpilogueStep,
    GemmComposite,
    LoadCommand,
    MathCommand,
    MathComposite,
    MemoryRef,
    PeCommand,
    PrintCommand,
    StoreCommand,
)
from kernbench.messages.operands import NOWHERE, Operand, Run

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int, ...]

_FIRST_VA = 1 << 20
_GUARD_BYTES = 4096
TCM_BASE = 1 << 16

MEMORY_COMMANDS = (LoadCommand, StoreCommand, AtomicCommand, GemmComposite, MathComposite)
"""Those that access memory: in program order where they touch the same bytes, as the machine's DMA has it"""


class MockMemory:
    """The memory of a SIP: arrays that were placed, with gaps between them that no access may touch."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._regions: list[Array] = []
        self._next = _FIRST_VA

    def place(self, array: Array) -> int:
        """Copy ``array`` into memory; returns its virtual address."""
        va = self._next
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()
        self._bases.append(va)
        self._regions.append(raw)
        self._next = va + -(-(raw.nbytes + _GUARD_BYTES) // _GUARD_BYTES) * _GUARD_BYTES
        return va

    def read(self, va: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """A copy of the array at ``va``."""
        return self._view(va, shape, dtype, None).copy()

    def view(self, ref: MemoryRef, valid: Shape | None = None) -> Array:
        """The part of an array in memory that is within ``valid``, to be read or written."""
        strides = ref.strides
        if strides is None and valid is not None:
            strides = row_major(ref.shape, ref.dtype.itemsize)
        return self._view(ref.va, ref.shape if valid is None else valid, ref.dtype.numpy, strides)

    def pieces(self, runs: tuple[Run, ...]) -> Iterator[tuple[slice, Array]]:
        """Those of the bytes of a scatter-gather list that are there: which they are of all, and their place."""
        at = 0
        for va, nbytes in runs:
            if va != NOWHERE:
                yield slice(at, at + nbytes), self._view(va, (nbytes,), U8.numpy, None)
            at += nbytes

    def _view(self, va: int, shape: Shape, dtype: np.dtype[Any], strides: Shape | None) -> Array:
        if 0 in shape:
            return np.zeros(shape, dtype)
        steps = row_major(shape, dtype.itemsize) if strides is None else strides
        span = sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) + dtype.itemsize
        at = bisect_right(self._bases, va) - 1
        region = self._regions[at] if at >= 0 else np.zeros(0, np.uint8)
        offset = va - self._bases[at] if at >= 0 else va
        if offset + span > region.nbytes:
            raise AddressFaultError(f"{span} bytes at virtual address {va:#x}: {self._nearest(at, offset)}")
        return np.ndarray(shape, dtype, region.data, offset, steps)

    def _nearest(self, at: int, offset: int) -> str:
        if at < 0:
            return "no tensor is there"
        return f"the tensor before it ends {offset - self._regions[at].nbytes:+d} bytes from there"


class MockTcm:
    """The TCM of a PE: scratch, and behind it the rings of its queues."""

    def __init__(self, scratch_bytes: int, ring_bytes: int) -> None:
        self.scratch_bytes = scratch_bytes
        # Most of it is never touched: pages of its own cost nothing until they are, a NumPy array may be filled.
        self._raw: Array = np.frombuffer(mmap(-1, scratch_bytes + ring_bytes), np.uint8)

    @property
    def rings(self) -> int:
        """Where the rings begin."""
        return TCM_BASE + self.scratch_bytes

    def view(self, array: Operand) -> Array:
        """An array, to be read or written."""
        return self._view(array.address, array.shape, array.dtype)

    def window(self, address: int, nbytes: int) -> Array:
        """Bytes, to be read or written."""
        return self._raw[address - TCM_BASE : address - TCM_BASE + nbytes]

    def _view(self, address: int, shape: Shape, dtype: DType) -> Array:
        return np.ndarray(shape, dtype.numpy, self._raw.data, address - TCM_BASE)


class CommandUnit:
    """The engines of a PE ``name``: everything but its queues."""

    def __init__(self, name: str, memory: MockMemory, tcm: MockTcm) -> None:
        self._name = name
        self._memory = memory
        self._tcm = tcm

    def carry_out(self, command: PeCommand) -> None:
        """Do what ``command`` says. To be called under ``np.errstate(all="ignore")``."""
        match command:
            case LoadCommand(dst=dst, runs=runs) if runs:
                self._tcm.view(dst)[...] = narrow(np.asarray(command.other), dst.dtype)
                raw = self._tcm.window(dst.address, dst.nbytes)
                for part, place in self._memory.pieces(runs):
                    raw[part] = place
            case LoadCommand():
                self._load(command)
            case StoreCommand(runs=runs) if runs:
                raw = self._tcm.window(command.src.address, command.src.nbytes)
                for part, place in self._memory.pieces(runs):
                    place[...] = raw[part]
            case StoreCommand():
                source = self._tcm.view(command.src)
                target = self._at(command.va, command.src, command.strides, command.valid, command.physical)
                target[...] = source[tuple(map(slice, target.shape))]
            case AtomicCommand():
                self._change(command)
            case DotCommand():
                factors = [self._array(x) for x in (command.a, command.b, command.acc) if x is not None]
                attributes = Attributes(trans_a=command.trans_a, trans_b=command.trans_b)
                self._tcm.view(command.dst)[...] = gemm(factors, command.dst.dtype, attrs=attributes)
            case MathCommand():
                self._compute(command)
            case GemmComposite():
                factors = [self._array(command.a), self._array(command.b)]
                steps = [self._step(step) for step in command.epilogue]
                self._memory.view(command.out)[...] = gemm(factors, command.out.dtype, steps)
            case MathComposite():
                self._compute_tiles(command)
            case PrintCommand():
                print(f"{self._name}:", *(x if isinstance(x, str) else self._array(x) for x in command.parts))

    def meet(self, a: PeCommand, b: PeCommand) -> bool:
        """Whether both access the same bytes of memory, and one of them writes."""
        (reads, writes), (others_read, others_write) = self._touched(a), self._touched(b)
        pairs = chain(product(writes, [*others_read, *others_write]), product(reads, others_write))
        return any(np.shares_memory(x, y) for x, y in pairs)

    def _touched(self, command: PeCommand) -> tuple[list[Array], list[Array]]:
        """What ``command`` reads and what it writes of memory."""
        match command:
            case LoadCommand(physical=False, runs=runs) if runs:
                return [place for _, place in self._memory.pieces(runs)], []
            case LoadCommand(physical=False, dst=dst):
                return [self._at(command.va, dst, command.strides, command.valid, False)], []
            case StoreCommand(runs=runs) | AtomicCommand(runs=runs) if runs:
                return [], [place for _, place in self._memory.pieces(runs)]
            case StoreCommand(physical=False, src=src) | AtomicCommand(physical=False, src=src):
                return [], [self._at(command.va, src, command.strides, command.valid, False)]
            case GemmComposite() | MathComposite():
                given = (command.a, command.b) if isinstance(command, GemmComposite) else command.inputs
                used = (*given, *(step.operand for step in command.epilogue))
                reads = [self._memory.view(x) for x in used if isinstance(x, MemoryRef)]
                return reads, [self._memory.view(command.out)]
        return [], []

    def _array(self, x: Operand | MemoryRef | float) -> Any:
        if isinstance(x, Operand):
            return self._tcm.view(x)
        return self._memory.view(x) if isinstance(x, MemoryRef) else x

    def _at(
        self,
        address: int,
        like: Operand,
        strides: tuple[int, ...] | None,
        valid: tuple[int, ...] | None,
        physical: bool,
    ) -> Array:
        """The array like ``like`` at an address: a virtual one, or a physical one in TCM."""
        if physical:
            return self._tcm.view(replace(like, address=address))
        return self._memory.view(MemoryRef(address, like.shape, like.dtype, strides), valid)

    def _load(self, command: LoadCommand) -> None:
        source = self._at(command.va, command.dst, command.strides, command.valid, command.physical)
        target = self._tcm.view(command.dst)
        if source.shape != target.shape:
            target[...] = narrow(np.asarray(command.other), command.dst.dtype)
        target[tuple(map(slice, source.shape))] = source

    def _change(self, command: AtomicCommand) -> None:
        """Element by element, as runs of a list may overlap."""
        op, src = ATOMICS[command.operator], command.src
        given = [self._tcm.view(x).reshape(-1) for x in (command.compared, src) if x is not None]
        old = np.zeros(src.shape, src.dtype.numpy).reshape(-1)
        for at, place in self._elements(command):
            old[at] = place[0]
            place[...] = compute(op, [place.copy(), *(x[at : at + 1] for x in given)], src.dtype)
        if command.dst is not None:
            self._tcm.view(command.dst)[...] = old.reshape(src.shape)

    def _elements(self, command: AtomicCommand) -> Iterator[tuple[int, Array]]:
        """The elements in memory of an atomic, each an array of one, and which of its operands' each is."""
        src = command.src
        if command.runs:
            for part, place in self._memory.pieces(command.runs):
                first = part.start // src.dtype.itemsize
                elements = place.view(src.dtype.numpy)
                yield from ((first + i, elements[i : i + 1]) for i in range(len(elements)))
            return
        there = self._at(command.va, src, command.strides, command.valid, command.physical)
        for index in np.ndindex(there.shape):
            at = int(np.ravel_multi_index(index, src.shape)) if index else 0
            yield at, there[tuple(slice(i, i + 1) for i in index)].reshape(1) if index else there.reshape(1)

    def _compute(self, command: MathCommand) -> None:
        op, dst = operator(command.operator), command.dst
        value = compute(op, [self._array(x) for x in command.inputs], dst.dtype, dst.shape, command.attributes)
        self._tcm.view(dst)[...] = value.reshape(dst.shape) if op.kind == "reduce" else value

    def _compute_tiles(self, command: MathComposite) -> None:
        op, out = operator(command.operator), command.out
        args = [self._array(x) for x in command.inputs]
        if not command.epilogue:
            self._memory.view(out)[...] = compute(op, args, out.dtype, out.shape)
            return
        # The operator's result unrounded; of integers exact.
        floats = any(x.dtype.kind != "i" for x in args if isinstance(x, np.ndarray))
        value = compute(op, args, F32, out.shape).astype(np.float32 if floats else np.float64)
        for name, *given in map(self._step, command.epilogue):
            value = EPILOGUE[name].fn(
                value, *(x.astype(value.dtype) if isinstance(x, np.ndarray) else x for x in given)
            )
        self._memory.view(out)[...] = narrow(value, out.dtype)

    def _step(self, step: EpilogueStep) -> Any:
        return (step.name,) if step.operand is None else (step.name, self._array(step.operand))
