"""A PE without time: it runs a kernel and carries out its commands with NumPy, in any order that ``after`` allows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernbench.common.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, I8, I32, DType, dtype
from kernbench.common.operators import EPILOGUE, evaluate, gemm, narrow, operator
from kernbench.messages.commands import (
    NOWHERE,
    AwaitCommand,
    AwaitSpace,
    ByteRun,
    Command,
    Epilogue,
    KernelRequest,
    Meet,
    MemoryRef,
    Opcode,
    Operand,
    ReadValue,
)
from kernbench.policy.address.free_list import ScratchAllocator
from kernbench.triton_emu.kernel_run import KernelRun
from kernbench.triton_emu.source import KernelSite, kernel_source

DOT_DTYPES = (F32, F16, BF16, I8, F8E4M3, F8E5M2)
TCM_BASE = 0x1000


def site_of(
    function: Callable[..., object],
    ids: tuple[int, int, int] = (0, 0, 0),
    counts: tuple[int, int, int] = (1, 1, 1),
    dot_dtypes: tuple[DType, ...] = DOT_DTYPES,
) -> KernelSite:
    (pe, cube, sip), (num_pes, num_cubes, num_sips) = ids, counts
    return KernelSite(
        sip=sip,
        cube=cube,
        pe=pe,
        num_pes=num_pes,
        num_cubes=num_cubes,
        num_sips=num_sips,
        kernel="kernel under test",
        file=kernel_source(function).file,
        dot_dtypes=dot_dtypes,
    )


@dataclass
class Memory:
    """Bytes behind virtual addresses (from 0) or TCM addresses (from ``base``)."""

    nbytes: int
    base: int = 0
    raw: np.ndarray[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.raw = np.zeros(self.nbytes, np.uint8)

    def view(
        self, at: int, shape: tuple[int, ...], item: DType, strides: tuple[int, ...] | None = None
    ) -> np.ndarray[Any, Any]:
        return np.ndarray(shape, item.numpy, self.raw.data, at - self.base, strides)

    def put(self, at: int, array: np.ndarray[Any, Any]) -> None:
        self.view(at, array.shape, dtype(array.dtype))[...] = array


class FakePe:
    """One PE. ``order``: a seed for the order in which commands complete; None: program order, each at once.

    A ``lazy`` one completes nothing until the kernel waits.
    """

    def __init__(
        self, memory: Memory, scratch_bytes: int = 1 << 20, order: int | None = None, lazy: bool = False
    ) -> None:
        self.lazy = lazy
        self.memory = memory
        self.tcm = Memory(scratch_bytes, TCM_BASE)
        self.scratch = ScratchAllocator(TCM_BASE, scratch_bytes)
        self.requests: list[KernelRequest] = []
        self.completed: list[int] = []
        self._order = None if order is None else random.Random(order)
        self._under_way: list[Command] = []
        self._issued = 0

    @property
    def commands(self) -> list[Command]:
        return [r for r in self.requests if isinstance(r, Command)]

    def run(self, function: Callable[..., object], *args: Any, site: KernelSite | None = None, **kwargs: Any) -> None:
        run = KernelRun(function, args, kwargs, site or site_of(function), self.scratch)
        try:
            answer = None
            while (request := run.resume(answer)) is not None:
                answer = self._serve(run, request)
            while self._under_way:
                self._complete_one(run)
        finally:
            run.close()
        assert self.scratch.live() == ()

    def _serve(self, run: KernelRun, request: KernelRequest) -> object:
        self.requests.append(request)
        if isinstance(request, Command):
            self._check_after(request)
            self._under_way.append(request)
            while self._under_way and not self.lazy and self._goes_on():
                self._complete_one(run)
        elif isinstance(request, AwaitSpace):
            assert self._under_way, "waits for space that nothing will give back"
            self._complete_one(run)
        elif isinstance(request, AwaitCommand):
            while request.serial in {c.serial for c in self._under_way}:
                self._complete_one(run)
        elif isinstance(request, ReadValue):
            return self._array(request.array).copy()
        elif isinstance(request, Meet):
            while request.drains and self._under_way:
                self._complete_one(run)
        return None

    def _goes_on(self) -> bool:
        """Whether a command completes now; a kernel of many commands is not let run far ahead."""
        return self._order is None or self._order.random() < 0.4 or len(self._under_way) > 32

    def _check_after(self, command: Command) -> None:
        assert command.serial == self._issued
        self._issued += 1
        assert list(command.after) == sorted(set(command.after))
        assert set(command.after) <= {c.serial for c in self._under_way}

    def _complete_one(self, run: KernelRun) -> None:
        waiting = {c.serial for c in self._under_way}
        ready = [c for c in self._under_way if not waiting & set(c.after)]
        command = ready[0] if self._order is None else self._order.choice(ready)
        self._carry_out(command)
        self._under_way.remove(command)
        self.completed.append(command.serial)
        run.completed(command.serial)

    def _array(self, x: Operand | MemoryRef | float) -> Any:
        if isinstance(x, MemoryRef):
            return self.memory.view(x.va, *_part(x, x.strides, None))
        return self.tcm.view(x.address, x.shape, x.dtype) if isinstance(x, Operand) else x

    def _gemm(self, command: Command) -> None:
        factors, epilogue = [self._array(x) for x in command.srcs], command.params.epilogue
        steps = [(s.name,) if s.operand is None else (s.name, self._array(s.operand)) for s in epilogue]
        for step in epilogue:
            assert_step(step, command.out.shape)
        with np.errstate(all="ignore"):
            self._write(command.out, gemm(factors, command.out.dtype, steps))

    def _map(self, command: Command) -> None:
        arrays = [x for x in command.srcs if isinstance(x, Operand | MemoryRef)]
        assert {x.shape for x in arrays} == {command.out.shape}
        # The operator's result unrounded; of integers exact.
        floats = arrays[0].dtype.is_float
        value = evaluate(operator(command.name), [self._array(x) for x in command.inputs], F32 if floats else I32)
        for step in command.params.epilogue:
            assert_step(step, command.out.shape)
            value = value.astype(np.float32 if floats else np.float64)
            given = [] if step.operand is None else [self._array(step.operand)]
            given = [x.astype(value.dtype) if isinstance(x, np.ndarray) else x for x in given]
            value = EPILOGUE[step.name].fn(value, *given)
        self._write(command.out, narrow(value, command.out.dtype))

    def _write(self, out: MemoryRef, value: np.ndarray[Any, Any]) -> None:
        assert value.shape == out.shape
        assert len(out.shape) == 2
        self._array(out)[...] = value

    def _carry_out(self, command: Command) -> None:
        match command.op:
            case Opcode.LOAD:
                self._load(command)
            case Opcode.STORE:
                self._store(command)
            case Opcode.DOT | Opcode.MATH:
                inputs = [self._array(x) for x in command.inputs]
                op, dst = operator(command.name), command.result
                value = evaluate(op, inputs, dst.dtype, dst.shape, command.params)
                self._put(dst, value.reshape(dst.shape) if op.kind == "reduce" else value)
            case Opcode.GEMM:
                self._gemm(command)
            case Opcode.TILED_MATH:
                self._map(command)

    def _put(self, dst: Operand, value: np.ndarray[Any, Any]) -> None:
        assert value.shape == dst.shape
        assert value.dtype == dst.dtype.numpy
        self._array(dst)[...] = value

    def _load(self, command: Command) -> None:
        dst, ref = command.result, command.ref
        if ref.runs:
            elements = np.full(dst.shape, ref.other, dst.dtype.numpy)
            for part, place in self._runs(elements, ref.runs):
                part[...] = place
            self._put(dst, elements)
            return
        source = self.memory.view(ref.va, *_part(dst, ref.strides, ref.valid))
        whole = np.full(dst.shape, ref.other, dst.dtype.numpy)
        whole[tuple(map(slice, source.shape))] = source
        self._put(dst, whole)

    def _runs(self, array: np.ndarray[Any, Any], runs: tuple[ByteRun, ...]) -> Iterator[tuple[Any, Any]]:
        """The bytes of an array run by run, with their places in memory, but for those that are masked off."""
        raw, at = np.reshape(array, -1).view(np.uint8), 0
        for va, nbytes in runs:
            if va != NOWHERE:
                yield raw[at : at + nbytes], self.memory.raw[va : va + nbytes]
            at += nbytes

    def _store(self, command: Command) -> None:
        ref = command.ref
        if ref.runs:
            for part, place in self._runs(self._array(command.array), ref.runs):
                place[...] = part
            return
        target = self.memory.view(ref.va, *_part(command.array, ref.strides, ref.valid))
        target[...] = self._array(command.array)[tuple(map(slice, target.shape))]


def assert_step(step: Epilogue, shape: tuple[int, ...]) -> None:
    """An operand has the shape that the scheduler counts on."""
    if isinstance(step.operand, Operand | MemoryRef):
        assert step.operand.shape == (shape[-1:] if step.name == "bias" else shape)


def _part(
    array: Operand | MemoryRef, strides: tuple[int, ...] | None, valid: tuple[int, ...] | None
) -> tuple[tuple[int, ...], DType, tuple[int, ...]]:
    sizes = [step * array.dtype.itemsize for step in _row_steps(array.shape)]
    return valid or array.shape, array.dtype, strides or tuple(sizes)


def _row_steps(shape: tuple[int, ...]) -> list[int]:
    return list(itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1))[::-1] if shape else []


def random_array(rng: np.random.Generator, shape: tuple[int, ...], item: DType) -> np.ndarray[Any, Any]:
    least = 0 if item.numpy.kind == "u" else -4
    return rng.integers(least, least + 9, shape).astype(item.numpy)
