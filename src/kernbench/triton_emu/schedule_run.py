"""A schedule as a PE runs it: it makes the commands that a kernel's ``tl`` calls would make, with no kernel in between.

What it asks for and is answered is as for ``KernelRun``, so the PE of the machine and that of the mock run both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from kernbench.common.dtypes import DType
from kernbench.common.errors import AllocationError
from kernbench.common.operators import PLAIN
from kernbench.messages.commands import (
    AwaitSpace,
    KernelRequest,
    LoadCommand,
    MathCommand,
    Operand,
    Receive,
    RecvCommand,
    SendCommand,
    StoreCommand,
)
from kernbench.messages.requests import LaunchArg, TensorArg
from kernbench.policy.address.scratch import ScratchAllocator
from kernbench.triton_emu.handles import Allocation
from kernbench.triton_emu.issuer import CommandMaker
from kernbench.triton_emu.schedules import Op, ScheduledKernel, text_of_step
from kernbench.triton_emu.source import KernelSite


class ScheduleRun:
    """``kernel(*args)`` on the PE ``site``: ``resume``, ``throw``, ``close`` and ``under_way`` as of ``KernelRun``.

    A step has been issued when the PE comes for the next one: then what nobody uses any more is let go.
    """

    __slots__ = (
        "_args",
        "_coord",
        "_issued",
        "_kernel",
        "_maker",
        "_next",
        "_op",
        "_ops",
        "_places",
        "_posted",
        "_scratch",
        "_serial",
        "_site",
        "_values",
        "under_way",
    )

    def __init__(
        self, kernel: ScheduledKernel, args: tuple[LaunchArg, ...], site: KernelSite, scratch: ScratchAllocator
    ) -> None:
        self._kernel, self._args, self._site, self._scratch = kernel, args, site, scratch
        self._maker = CommandMaker(site, scratch)
        self._coord = (site.sip, site.cube, site.pe)
        self.under_way = self._maker.under_way
        self._places: list[Any] = []  # where its accesses begin
        self._ops: list[Op] | None = None
        self._op: Op | None = None  # asked for last
        self._issued = False  # whether that was all of it
        self._next = 0
        self._serial = 0
        self._posted: RecvCommand | None = None  # the last one
        self._values: dict[int, Allocation] = {}

    def resume(self, answer: object = None) -> KernelRequest | None:
        """The next request, None when there is none; ``answer``: to the last one."""
        ops, op = self._ops, self._op
        if ops is None:
            site, kernel = self._site, self._kernel
            pointers = [x.va if isinstance(x, TensorArg) else x for x in self._args[: kernel.tensors]]
            rest = self._args[kernel.tensors :]
            ops, self._places = kernel.ops_from(pointers, rest, site.ids, site.counts)
            self._ops = ops
        elif op is not None and self._issued:
            if op.what.__class__ is str and op.to >= 0:
                self._take(op, answer)
            values = self._values
            for value in op.drops:
                del values[value]
            op = None
        if op is None:
            at = self._next
            if at == len(ops):
                self._op = None
                return None
            op = self._op = ops[at]
            self._next = at + 1
        self._issued = True
        return _REQUESTS.get(op.does, _COMPUTE)(self, op)

    def throw(self, error: Exception) -> KernelRequest | None:
        """The step that was asked for last fails."""
        if self._op is not None:
            error.add_note(self.place(self._op.line))
        raise error

    def completed(self, serial: int) -> None:
        """The command ``serial`` is done."""
        self.under_way.pop(serial, None)

    def only_read_by(self, reader: int, serial: int) -> bool:
        """No step is a product, whose result could stay in the matrix unit."""
        return False

    def place(self, line: int) -> str:
        """What errors call a step."""
        text = next((f" ({text_of_step(op)})" for op in self._ops or () if op.line == line), "")
        return f"step {line} of {self._kernel.name}{text}"

    def close(self) -> None:
        """No more steps; memory goes back, what commands use when they are done."""
        self._ops, self._op = [], None
        self._values.clear()

    def _take(self, op: Op, slot: Any) -> None:
        """The slot of a message."""
        held = self._values[op.to] = Allocation(slot.array_of(op.nbytes, op.shape, op.dtype), slot)
        if slot.pending:
            assert self._posted is not None
            held.producer = serial = self._posted.serial
            self.under_way[serial] = (self._posted, (held,))

    def _fresh(self, op: Op, nbytes: int, shape: tuple[int, ...], dtype: DType) -> Allocation | None:
        """Return memory for an array; None when it has to be waited for."""
        try:
            block = self._scratch.alloc(nbytes, (op.does,))
        except AllocationError as full:
            if self._maker.will_free_memory():
                self._issued = False
                return None
            full.add_note(self.place(op.line))
            raise
        array = block.array
        if array is None or array.dtype is not dtype or array.shape != shape:
            array = block.array = Operand("tcm", self._coord, block.address, nbytes, shape, dtype)
        return Allocation(array, block)

    def _bring_in(self, op: Op, x: Allocation) -> KernelRequest:
        """Read a message that lies in HBM or SRAM into scratch: from then on the value is that, and its slot free."""
        there = x.array
        copy = self._fresh(op, there.nbytes, there.shape, there.dtype)
        if copy is None:
            return AwaitSpace(there.nbytes, op.line)
        self._issued = False
        after = (x.producer,) if x.producer in self.under_way else ()
        here = copy.array
        x.array, copy.array = here, there
        x.place, copy.place = copy.place, x.place
        x.turn, copy.turn = copy.turn, x.turn
        serial = x.producer = self._serial
        self._serial = serial + 1
        load = LoadCommand(serial=serial, line=op.line, after=after, dst=here, va=there.address, physical=True)
        self.under_way[serial] = (load, (x, copy))
        return load

    def _load(self, op: Op) -> KernelRequest:
        result = self._fresh(op, op.nbytes, op.shape, op.dtype)
        if result is None:
            return AwaitSpace(op.nbytes, op.line)
        serial = result.producer = self._serial
        self._serial = serial + 1
        va = self._places[op.at]
        command = LoadCommand(serial, op.line, (), result.array, va)
        self._values[op.to] = result
        self.under_way[serial] = (command, (result,))
        return command

    def _give_out(self, op: Op) -> KernelRequest:
        """Store, or send, a value."""
        source = self._values[op.reads[0]]
        if source.array.space != "tcm":
            return self._bring_in(op, source)
        serial, producer = self._serial, source.producer
        self._serial = serial + 1
        after = (producer,) if producer in self.under_way else ()
        command: StoreCommand | SendCommand
        if op.does == "store":
            command = StoreCommand(serial, op.line, after, source.array, self._places[op.at])
        else:
            command = SendCommand(serial, op.line, after, op.what, source.array)
        self.under_way[serial] = (command, (source,))
        return command

    def _receive(self, op: Op) -> KernelRequest:
        serial = self._serial
        self._serial = serial + 1
        command = self._posted = RecvCommand(serial, op.line, (), op.what, op.nbytes)
        return command

    def _await(self, op: Op) -> KernelRequest:
        return Receive(op.what, op.nbytes, op.line)

    def _compute(self, op: Op) -> KernelRequest:
        values, under_way = self._values, self.under_way
        held: list[Allocation] = []
        inputs: list[Any] = []
        after: list[int] = []
        for value in op.reads:
            x = values[value]
            array, producer = x.array, x.producer
            if array.space != "tcm":
                return self._bring_in(op, x)
            held.insert(0, x)
            inputs.append(array)
            if producer in under_way and producer not in after:
                after.append(producer)
        result = self._fresh(op, op.nbytes, op.shape, op.dtype)
        if result is None:
            return AwaitSpace(op.nbytes, op.line)
        if op.number is not None:
            inputs.append(op.number)
        after.sort()
        serial = result.producer = self._serial
        self._serial = serial + 1
        command = MathCommand(serial, op.line, tuple(after), op.does, tuple(inputs), result.array, PLAIN)
        values[op.to] = result
        under_way[serial] = (command, (result, *held))
        return command

    REQUESTS: ClassVar[dict[str, Callable[[ScheduleRun, Op], KernelRequest]]] = {
        "load": _load,
        "store": _give_out,
        "send": _give_out,
        "receive": _receive,
        "await": _await,
    }


# Found in the module, once for all PEs.
_REQUESTS = ScheduleRun.REQUESTS
_COMPUTE = ScheduleRun._compute  # noqa: SLF001 - of this module
