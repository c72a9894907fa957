"""What the commands of a kernel compute, carried out at once with NumPy by the operators of phase 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kernbench.ccl.mock_memory import Array, MockMemory, MockTcm
from kernbench.common.dtypes import F32
from kernbench.common.operators import EPILOGUE, Attributes, compute, gemm, narrow, operator
from kernbench.messages.commands import (
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
from kernbench.messages.operands import Operand


class CommandUnit:
    """The engines of a PE ``name``: everything but its queues."""

    def __init__(self, name: str, memory: MockMemory, tcm: MockTcm) -> None:
        self._name = name
        self._memory = memory
        self._tcm = tcm

    def carry_out(self, command: PeCommand) -> None:
        """Do what ``command`` says. To be called under ``np.errstate(all="ignore")``."""
        match command:
            case LoadCommand():
                self._load(command)
            case StoreCommand():
                source = self._tcm.view(command.src)
                target = self._at(command.va, command.src, command.strides, command.valid, command.physical)
                target[...] = source[tuple(map(slice, target.shape))]
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
