"""Runs of schedules on a PE: the commands that ``tl`` calls would issue, without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from kernbench.common.errors import AllocationError
from kernbench.messages.commands import (
    LOAD,
    MATH,
    RECEIVE,
    SEND,
    STORE,
    AwaitSpace,
    Command,
    KernelRequest,
    MemoryRef,
    Operand,
    Receive,
)
from kernbench.messages.requests import LaunchArg, TensorArg
from kernbench.policy.address.free_list import ScratchAllocator, ScratchBlock
from kernbench.triton_emu.handles import Allocation
from kernbench.triton_emu.issuer import CommandMaker
from kernbench.triton_emu.schedules import Op, ScheduledKernel, text_of_step
from kernbench.triton_emu.source import KernelSite

_RECEIVES = ("await", "receive")


class ScheduleRun:
    """A ``ProgramRun`` of ``kernel(*args)`` on the PE ``site``.

    When the PE asks for the next request, the previous one has been issued, and the values without further use are
    dropped. Between two requests only ``_values`` and the commands in flight hold arrays, so each array is freed at the
    step that drops it.
    """

    __slots__ = ("_args", "_kernel", "_maker", "_op", "_ops", "_places", "_requests", "_values", "resume", "under_way")

    def __init__(
        self, kernel: ScheduledKernel, args: tuple[LaunchArg, ...], site: KernelSite, scratch: ScratchAllocator
    ) -> None:
        self._kernel, self._args = kernel, args
        self._maker = CommandMaker(site, scratch)
        self.under_way = self._maker.under_way
        self._ops: Sequence[Op] = ()
        self._op: Op | None = None  # the last request
        self._places: list[Any] = []  # the first addresses of its accesses
        self._values: dict[int, Allocation] = {}
        self._requests = self._play()
        self.resume: Callable[[Any], KernelRequest | None] = self._requests.send

    def throw(self, error: Exception) -> KernelRequest | None:
        """Raise ``error`` at the step of the last request, with a note that names the step."""
        if self._op is not None:
            error.add_note(self.place(self._op.line))
        raise error

    def completed(self, serial: int) -> None:
        """Drop the references of the complete command ``serial`` to its handles."""
        self.under_way.pop(serial, None)

    def only_read_by(self, reader: int, serial: int) -> bool:
        """Return False: no step is a product, whose result could stay in the matrix unit."""
        return False

    def place(self, line: int) -> str:
        """Return the text for a step in errors."""
        text = next((f" ({text_of_step(op)})" for op in self._ops if op.line == line), "")
        return f"step {line} of {self._kernel.name}{text}"

    def close(self) -> None:
        """End the schedule and free its memory; commands in flight free theirs at their end."""
        self._requests.close()
        self.resume = _resume_ended
        self._ops, self._op = (), None
        self._values.clear()

    def _play(self) -> Generator[KernelRequest | None, Any, None]:
        """Yield the requests; each yield returns the answer. Yield None after the last request."""
        kernel, maker, values = self._kernel, self._maker, self._values
        pointers = [x.va if isinstance(x, TensorArg) else x for x in self._args[: kernel.tensors]]
        further = self._args[kernel.tensors :]
        self._ops, self._places = kernel.ops_from(pointers, further, maker.site.ids, maker.site.counts)
        elsewhere = False  # whether messages have arrived in HBM or SRAM
        for op in self._ops:
            self._op = op
            does, line, to, _, label, shape, dtype, nbytes, _, _, drops = op
            try:
                if does in _RECEIVES:
                    request: Any = Receive(label, nbytes, line) if does == "await" else self._post(op)
                    slot = yield request
                    elsewhere |= slot.space != "tcm"
                    values[to] = Allocation(slot.array_of(nbytes, shape, dtype), slot)
                    if slot.pending:
                        maker.enter(request, (), values[to])
                else:
                    if elsewhere:
                        yield from self._stage_in(op)
                    if to < 0:
                        yield self._output(op)
                    else:
                        while (block := maker.result((does,), shape, dtype, nbytes)) is None:
                            yield AwaitSpace(nbytes, line)
                        yield self._make(op, block)
            except AllocationError as full:
                full.add_note(self.place(line))
                raise
            for value in drops:
                del values[value]
        self._op = None
        while True:
            yield None

    def _post(self, op: Op) -> Command:
        serial, after = self._maker.order(())
        return Command(RECEIVE, op.label, serial, op.line, after, (op.nbytes,))

    def _stage_in(self, op: Op) -> Generator[KernelRequest, Any, None]:
        """Issue the commands that read messages in HBM or SRAM into scratch."""
        maker, values = self._maker, self._values
        for value in op.reads:
            message = values[value].array
            if message.space != "tcm":
                while (block := maker.result((op.does,), message.shape, message.dtype, message.nbytes)) is None:
                    yield AwaitSpace(message.nbytes, op.line)
                yield maker.stage_in(values[value], block, op.line)

    def _output(self, op: Op) -> Command:
        """Store or send a value."""
        source = self._values[op.reads[0]]
        serial, after = self._maker.order((source,))
        if op.does == "store":
            array = source.array
            target = MemoryRef(self._places[op.at], array.shape, array.dtype)
            command = Command(STORE, "store", serial, op.line, after, (array,), target)
        else:
            command = Command(SEND, op.label, serial, op.line, after, (source.array,))
        self._maker.enter(command, (source,))
        return command

    def _make(self, op: Op, block: ScratchBlock) -> Command:
        """Load or compute a value into ``block``."""
        values = self._values
        reads: tuple[Allocation, ...] = ()
        if op.does == "load":
            serial, after = self._maker.order(reads)
            source = MemoryRef(self._places[op.at], op.shape, op.dtype)
            command = Command(LOAD, "load", serial, op.line, after, (source,), block.array)
        else:
            inputs: list[Operand | float] = []
            for value in op.reads:
                x = values[value]
                reads += (x,)
                inputs.append(x.array)
            serial, after = self._maker.order(reads)
            if op.number is not None:
                inputs.append(op.number)
            command = Command(MATH, op.does, serial, op.line, after, tuple(inputs), block.array)
        result = values[op.to] = Allocation(block.array, block)
        self._maker.enter(command, reads, result)
        return command


def _resume_ended(_: object = None) -> None:
    """Return None: a closed schedule has no requests."""
