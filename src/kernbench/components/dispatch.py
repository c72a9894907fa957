"""The dispatcher of a PE: it carries out the commands of one kernel run, from issue to completion.

The sequencer issues a command. The function of ``PREPARED_BY`` for its opcode translates its addresses into accesses.
The command then enters the scoreboard, where it waits for the commands whose results it uses, and for earlier accesses
to the same bytes (``memory_order``). The function of ``STARTED_BY`` starts the command on its engine, which opens the
command's log row. When the command ends, its row is closed, and the scoreboard releases the commands that waited for
it. The dispatcher also owns the resources of the kernel on its PE: the program, the scratch and the accumulators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

from kernbench.components.addressing import Addressing, Descriptor, PeParts, Streams
from kernbench.components.memory_order import NOTHING, MemoryOrder, OrderWatch, ProgramOrder
from kernbench.components.pe_math import MathOperation, PeMath
from kernbench.components.queue import Queue
from kernbench.components.scoreboard import Scoreboard
from kernbench.core.log import NONE, Cause, Row
from kernbench.engine.hooks import Inverted, Printed, TookPlace
from kernbench.engine.machine import Machine
from kernbench.engine.recorder import OpStarted, Recorded
from kernbench.messages.commands import (
    BY_BLOCKS,
    DOT,
    LOAD,
    MATH,
    MEMORY_WRITERS,
    OPCODE_WORDS,
    Command,
    KernelRequest,
    Opcode,
    Operand,
    fill_of,
)
from kernbench.messages.control import LaunchOrder
from kernbench.messages.requests import PeCoord
from kernbench.policy.address.free_list import ScratchAllocator
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.triton_emu.block_sizes import BlockLimits, BlockRoom
from kernbench.triton_emu.handles import Slot
from kernbench.triton_emu.kernel_run import begin_run
from kernbench.triton_emu.schedules import ScheduledKernel
from kernbench.triton_emu.source import KernelSite, ProgramText, program_file
from kernbench.triton_emu.tile_plans import STORED, AccumulatorUse, block_steps


class Accumulators:
    """The accumulators of a matrix unit while a kernel runs: ``capacity`` bytes, for complete results.

    A dot replaces the result that it adds to. If the dot's own result is stored to TCM instead, the accumulator of the
    old result is free as soon as the dot begins. This is safe because the tiles of dots pass the unit in order, so the
    tiles of the next dot come later. A product by blocks also comes later. Its sums use the bytes that are ``free``
    when the product begins.
    """

    __slots__ = ("_results", "free")

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self._results: set[int] = set()  # the TCM addresses of the results

    def enter(self, dot: Command, only_accumulated: bool) -> AccumulatorUse:
        """Enter ``dot``, which begins. Return the use of accumulators for its input sum and its result.

        ``only_accumulated``: only one command uses the result, and that command is a dot that adds to it.
        """
        acc, result = dot.acc, dot.result
        is_here = acc is not None and acc.address in self._results
        if acc is not None and is_here:
            self._results.remove(acc.address)
            self.free += acc.nbytes
        stays = only_accumulated and result.nbytes <= self.free
        if stays:
            self._results.add(result.address)
            self.free -= result.nbytes
        return AccumulatorUse(fetched=acc is not None and not is_here, stored=not stays)


QueueClaim: TypeAlias = tuple[Queue, int]
"""The queue of a message, and the number of the message in it"""
Dispatched: TypeAlias = Recorded | Command


class Dispatcher:
    """The dispatcher of the kernel of ``order`` on PE ``coord``, driven by a sequencer.

    ``resume(answer)`` runs the kernel to its next request and returns the request, or None when the kernel has
    returned. If ``failure`` is set, the sequencer calls ``throw`` instead, which raises the failure in the kernel where
    it waits.
    """

    __slots__ = (
        "_accumulators",
        "_addressing",
        "_allocator",
        "_hooks",
        "_kernel",
        "_math",
        "_math_part",
        "_name",
        "_names_tcm",
        "_order",
        "_plans",
        "_recorder",
        "_region",
        "_region_bytes",
        "_request_id",
        "_when_begun",
        "_when_done",
        "_when_ended",
        "_when_written",
        "board",
        "clock",
        "coord",
        "failure",
        "launch",
        "machine",
        "parts",
        "resume",
    )

    def __init__(
        self, machine: Machine, parts: PeParts, coord: PeCoord, order: LaunchOrder, scratch_bytes: int
    ) -> None:
        self.machine = machine
        self.clock = machine.clock
        self.parts = parts
        self.coord = coord
        self.launch = launch = order.launch
        self._plans: dict[int, Any] = {}
        self._names_tcm = False  # True once a command has named a TCM address, which other commands may also access
        self._accumulators = Accumulators(machine.spec.pe.gemm.acc_bytes)
        self._math: PeMath | None = None
        self._math_part = NONE
        self._recorder = machine.recorder
        self._name = machine.log.kernels[launch.request_id] = launch.kernel.name
        self._request_id = launch.request_id
        if isinstance(launch.kernel.function, ScheduledKernel) and launch.request_id not in machine.log.steps:
            machine.log.steps[launch.request_id] = ProgramText(launch).step
        self._hooks = machine.hooks
        self.failure: Exception | None = None
        self._allocator = machine.memories.pes[coord]
        self._region, self._region_bytes = self._allocator.alloc_tcm(scratch_bytes), scratch_bytes
        scratch = ScratchAllocator(self._region.encode(), scratch_bytes)
        self._kernel = begin_run(
            launch.kernel.function,
            launch.args,
            dict(launch.kwargs),
            self._site(order.grid),
            scratch,
            launch.kernel.file,
            machine.passed.repeated.get(launch.request_id),
        )
        self.resume = self._kernel.resume
        self.board = Scoreboard(self._kernel.under_way, self._start)
        self._order = self._make_order()
        most_rows = 0 if self._order is None else self._order.most_rows
        self._addressing = Addressing(machine.addresses, parts, most_rows=most_rows)
        # Stored once: each look-up of a method on an object binds it anew.
        self._when_begun, self._when_ended, self._when_done = self._math_begun, self._math_ended, self.board.complete
        self._when_written = self.board.note_written

    def _site(self, grid: tuple[int, int, int]) -> KernelSite:
        sip, cube, pe = self.coord
        gemm, reserved = self.machine.spec.pe.gemm, self.machine.spec.pe.tcm.scheduler_reserved_bytes
        tcm = PhysAddr.pe_tcm_addr(0, sip, cube, pe, 0, self.machine.addresses.format).encode()
        return KernelSite(
            sip=sip,
            cube=cube,
            pe=pe,
            num_pes=grid[0],
            num_cubes=grid[1],
            num_sips=grid[2],
            kernel=self.launch.kernel.name,
            file=program_file(self.launch.kernel),
            tcm=range(tcm, tcm + self.machine.spec.pe.tcm.bytes),
            dot_dtypes=gemm.operand_dtypes,
            blocks=BlockLimits(gemm.tile_sizes, BlockRoom(gemm.acc_bytes, reserved)),
        )

    def _make_order(self) -> MemoryOrder | None:
        """Make the object that enforces or observes the order of accesses to the same bytes.

        Return None if accesses are unordered and no listener needs reports of their order.
        """
        recorder = self.machine.recorder
        if self.machine.spec.pe.dma.ordering == "program":
            return ProgramOrder(recorder, self.board, self.board.release)
        return (
            OrderWatch(recorder, self.board, self.clock, self._emit_inverted)
            if self._hooks.inverted.listeners
            else None
        )

    def throw(self) -> KernelRequest | None:
        """Run the kernel as ``resume`` does, but raise ``failure`` at the request where the kernel waits."""
        failure = self.take_failure()
        assert failure is not None
        return self._kernel.throw(failure)

    def fail_next(self, error: Exception) -> None:
        """Raise ``error`` in the program at its next request."""
        self.failure = error

    def take_failure(self) -> Exception | None:
        """Return and clear the failure that is to be raised at the program's next request."""
        failure, self.failure = self.failure, None
        return failure

    def close(self) -> None:
        """End the program if it has not returned."""
        self._kernel.close()

    def finish(self) -> None:
        """Free the scratch. No command is in flight any more."""
        self._allocator.free_tcm(self._region, self._region_bytes)

    def issue_send(self, command: Command, queue: Queue, sequence: int, cause: Cause) -> None:
        """Enter the SEND of message ``sequence`` of ``queue``."""
        order, source = self._order, command.srcs[0]
        if source.__class__ is Operand and source.by_address:
            self._names_tcm = True
        waits = order.enter(command, NOTHING) if self._names_tcm and order is not None else 0
        if not (command.after or waits) or self.board.issue(command, waits):
            queue.send(command, sequence, self._request_id, cause, self._when_done)
        else:
            self._plans[command.serial] = (queue, sequence)

    def issue(self, command: Any, cause: Cause) -> None:
        """Enter an issued command. An unmapped address makes the kernel fail at the command's line."""
        op, order, touched, waits = command.op, self._order, NOTHING, 0
        prepare = _PREPARED_BY.get(op)
        work: Descriptor | Streams | None = None
        if prepare is not None:
            try:
                work = prepare(self._addressing, command)
            except Exception as fault:
                self.board.withdraw(command.serial)
                self.fail_next(fault)  # raised in the kernel, at the line of the call
                return
            touched = work.touched
            if op in MEMORY_WRITERS:
                self.board.writes += 1
        elif op is MATH and command.dst.by_address:
            self._names_tcm = True
            self.board.writes += 1
        if order is not None and (self._names_tcm or touched is not NOTHING):
            waits = order.enter(command, touched)
        if not (command.after or waits) or self.board.issue(command, waits):
            _STARTED_BY[op](self, command, work, cause)
        else:
            self._plans[command.serial] = work

    def _emit_inverted(self, earlier: TookPlace, later: TookPlace, address: int, nbytes: int) -> None:
        self._hooks.inverted.emit(Inverted(self.coord, self._name, self._request_id, earlier, later, address, nbytes))

    def _start_dma(self, command: Command, work: Descriptor, cause: Cause) -> None:
        targets = work.targets
        if not targets:
            self._start_empty(command, cause)
            return
        op = self.machine.next_op()
        if self._order is not None:
            self._order.note_start(command.serial, op)
        reading = command.op is LOAD
        if not reading:
            self._recorder.when_done(op, self._when_written)
        reads, writes = (len(targets), 0) if reading else (0, len(targets))
        recorded = Recorded(command, (work.segments,))
        begun = partial(self._open_record, op, self.parts.dma.node.id, recorded, reads, writes)
        descriptor = op, reading, targets, begun, partial(self._retire_dma, command, op)
        start = self.parts.dma.start
        if work.pages:
            self.parts.mmu.walk(work.pages, self._request_id, command.line, cause, partial(start, *descriptor))
        else:
            start(*descriptor, cause)

    def _start_atomic(self, command: Command, work: Descriptor, cause: Cause) -> None:
        targets, answers = work.targets, command.params.old is not None
        if not targets:
            self._start_empty(command, cause)
            return
        op = self.machine.next_op()
        if self._order is not None:
            self._order.note_start(command.serial, op)
        self._recorder.when_done(op, self._when_written)
        dma, n = self.parts.dma, len(targets)
        operands = 1 if command.compared is None else 2
        change = partial(dma.compute.initiator.change, operands=operands, answers=answers)
        begun = partial(self._open_record, op, dma.node.id, Recorded(command, (work.segments,)), n, n)
        dma.start(op, False, targets, begun, partial(self._retire_dma, command, op), cause, change)

    def _start_empty(self, command: Command, cause: Cause) -> None:
        """Carry out a descriptor without valid elements: a load fills with ``other``, an atomic returns 0."""
        if command.op is not LOAD:
            self.board.note_written(cause[0])
        fill = fill_of(command)
        if fill is None:
            self.board.complete(command, cause[0])
            return
        self._math_part = self.machine.log.part(self.parts.math.node.id)
        self.parts.math.count(fill)
        operation = MathOperation(fill, (), 0, (), 0, self._when_ended, self._when_begun, cause, 0)
        self.machine.log.close(self._math_begun(operation, self.clock.time), self.clock.time)
        self._math_ended(operation)

    def _start_composite(self, command: Command, work: Streams, cause: Cause) -> None:
        op = self.machine.next_op()
        scheduler, steps, shown = self.parts.scheduler, None, command
        if work.product is not None:
            sizes = scheduler.block_sizes(work.product, command.params.block, self._accumulators.free)
            if sizes is not None:
                line = scheduler.line_of(work.product, command.params.block, sizes)
                keep_a = work.product.keeps_a if line is None else line
                steps = block_steps(command, work.product.tile, sizes, keep_a=keep_a, retains_line=line is not None)
                shown = replace(command, name=f"{command.name} {BY_BLOCKS}{'×'.join(map(str, sizes))}")
        begun = partial(self._composite_begun, op, scheduler.node.id, Recorded(shown, work.segments), command.serial)
        scheduler.submit(op, command, begun, partial(self._retire_composite, command, op), cause, STORED, steps)

    def _composite_begun(
        self, op: int, component: str, recorded: Recorded, serial: int, start_ps: int, cause: Cause
    ) -> Row:
        if self._order is not None:
            self._order.note_start(serial, -1)
        return self._open_record(op, component, recorded, 0, 0, start_ps, cause)

    def _start_dot(self, command: Command, _: None, cause: Cause) -> None:
        op = self.machine.next_op()
        begun = partial(self._open_record, op, self.parts.gemm_id, command, 0, 0)
        use = self._accumulators.enter(command, self._only_accumulated(command))
        self.parts.scheduler.submit(op, command, begun, partial(self._retire_tiled, command, op), cause, use)

    def _only_accumulated(self, dot: Command) -> bool:
        """Return True when only one command uses the result of ``dot``: an issued dot that adds to it."""
        users = self.board.waiters(dot.serial)
        if len(users) != 1 or users[0].op is not DOT or users[0].acc is not dot.dst:
            return False
        return self._kernel.only_read_by(users[0].serial, dot.serial)

    def _start_math(self, command: Command, _: None, cause: Cause) -> None:
        math, dst = self._math, command.dst
        if math is None:
            math = self._math = self.parts.math
            self._math_part = self.machine.log.part(math.node.id)
        ended = self._retire_copy if dst.__class__ is Operand and dst.by_address else self._when_ended
        math.submit(command, self._when_begun, ended, cause)

    def _math_begun(self, operation: MathOperation, start_ps: int) -> Row:
        command: Command = operation.work
        row = operation.row = self._recorder.math(
            self._math_part, command, operation.nbytes, start_ps, self._request_id, operation.cause
        )
        return row

    def _math_ended(self, operation: MathOperation) -> None:
        self.board.complete(operation.work, operation.row)

    def _retire_copy(self, operation: MathOperation) -> None:
        """Retire the copy of a message to a TCM address that the kernel named."""
        self.board.note_written(operation.row)
        self._math_ended(operation)

    def _start_send(self, command: Command, claim: QueueClaim, cause: Cause) -> None:
        queue, sequence = claim
        queue.send(command, sequence, self._request_id, cause, self._when_done)

    def _start_print(self, command: Command, _: None, cause: Cause) -> None:
        hook = self._hooks.printed
        if hook.listeners:
            hook.emit(Printed(self.coord, self.clock.time, command.line, command.parts))
        self.board.complete(command, cause[0])

    def _open_record(
        self, op: int, component: str, recorded: Dispatched, reads: int, writes: int, start_ps: int, cause: Cause
    ) -> Row:
        """Open the row of operation ``op``, which ``component`` begins, and return the row."""
        return self._recorder.started(
            OpStarted(op, component, recorded, start_ps, reads, writes, self._request_id), cause
        )

    def on_message(self, command: Command, slot: Slot | Exception | None, row: Row) -> None:
        """Complete a posted receive whose message ended with ``row``; for a wrong message, ``slot`` is the error."""
        if isinstance(slot, Exception):
            self.fail_next(slot)
            row = NONE
        self.board.complete(command, row)

    def _retire_dma(self, command: Command, op: int, _: Row) -> None:
        self.board.complete(command, self._recorder.ended(op, self.clock.time))

    def _retire_tiled(self, command: Command, op: int, last: Row) -> None:
        self.board.complete(command, self.machine.end_op(op, last))

    def _retire_composite(self, command: Command, op: int, last: Row) -> None:
        row = self.machine.end_op(op, last)
        self.board.note_written(row)
        self.board.complete(command, row)

    def _start(self, command: Command, cause: Cause) -> None:
        """Start ``command``: all commands that it waited for are done."""
        _STARTED_BY[command.op](self, command, self._plans.pop(command.serial, None), cause)

    # By opcode: the function that translates a command's addresses at issue, and the function that starts it.
    PREPARED_BY: ClassVar[dict[Opcode, Callable[[Addressing, Command], Descriptor | Streams]]] = {
        Opcode.LOAD: Addressing.of_descriptor,
        Opcode.STORE: Addressing.of_descriptor,
        Opcode.ATOMIC: Addressing.of_descriptor,
        Opcode.GEMM: Addressing.of_composite,
        Opcode.TILED_MATH: Addressing.of_composite,
    }
    STARTED_BY: ClassVar[dict[Opcode, Callable[[Dispatcher, Any, Any, Cause], None]]] = {
        Opcode.LOAD: _start_dma,
        Opcode.STORE: _start_dma,
        Opcode.ATOMIC: _start_atomic,
        Opcode.GEMM: _start_composite,
        Opcode.TILED_MATH: _start_composite,
        Opcode.DOT: _start_dot,
        Opcode.MATH: _start_math,
        Opcode.SEND: _start_send,
        Opcode.PRINT: _start_print,
    }

    def place(self, line: int) -> str:
        """Return the name of a line of the kernel, or of a step of the schedule, for error messages."""
        return self._kernel.place(line)

    def under_way(self, asked_for: object) -> str:
        """Return a text for a deadlock report that lists the unfinished commands, except the request ``asked_for``."""
        pending = [command for command, _ in self.board.under_way.values() if command is not asked_for]
        return ", ".join(f"{OPCODE_WORDS[command.op]} of {self.place(command.line)}" for command in pending[:4])


# Looked up once in the module: a look-up through the object would search the class for every command.
_PREPARED_BY = Dispatcher.PREPARED_BY
_STARTED_BY = Dispatcher.STARTED_BY
