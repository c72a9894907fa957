"""One run of a kernel on a PE: its program, its scoreboard, its scratch, and the engines its commands go to."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

import simpy

from kernbench.common.dtypes import dtype
from kernbench.common.errors import KernelError
from kernbench.common.ids import pe_part
from kernbench.common.operators import PLAIN
from kernbench.components.access_plan import extent, plan
from kernbench.components.initiator import Target
from kernbench.components.kernel_queues import KernelQueues
from kernbench.components.pe_parts import PeParts
from kernbench.components.scoreboard import Scoreboard
from kernbench.messages.commands import (
    AwaitCommand,
    AwaitSpace,
    Composite,
    DotCommand,
    GemmComposite,
    KernelRequest,
    LoadCommand,
    MathCommand,
    MathComposite,
    MemoryRef,
    PeCommand,
    PrintCommand,
    Receive,
    RecvCommand,
    SendCommand,
    StoreCommand,
)
from kernbench.messages.control import LaunchOrder
from kernbench.messages.requests import PeCoord
from kernbench.policy.address.scratch import ScratchAllocator
from kernbench.sim_engine.address_map import Segment
from kernbench.sim_engine.hooks import Issued, Moved, OpEnded, OpStarted, Printed, Queued, ScratchWaited, Streamed
from kernbench.sim_engine.machine import Machine
from kernbench.triton_emu.kernel_run import KernelRun
from kernbench.triton_emu.site import KernelSite
from kernbench.triton_emu.slots import Slot
from kernbench.triton_emu.source import kernel_source

Wait = Generator[simpy.Event, object, None]


class KernelExecution:
    """Runs the kernel of ``order`` on PE ``coord``; the CPU drives it with ``resume`` and ``issue``."""

    def __init__(self, machine: Machine, parts: PeParts, coord: PeCoord, order: LaunchOrder) -> None:
        self.machine = machine
        self.clock = machine.clock
        self.parts = parts
        self.coord = coord
        self.launch = launch = order.launch
        self.waiting_at = "has not begun"
        self._board = Scoreboard()
        self._starts: dict[int, Callable[[], None]] = {}
        self._changed: simpy.Event | None = None
        self._failure: Exception | None = None
        self._queues: KernelQueues | None = None
        self._allocator = machine.memories.pes[coord]
        self._region, self._region_bytes = self._allocator.largest_tcm_hole()
        self._allocator.alloc_tcm(self._region_bytes)
        scratch = ScratchAllocator(self._region.encode(), self._region_bytes)
        self._kernel = KernelRun(
            launch.kernel.function, launch.args, dict(launch.kwargs), self._site(order.grid), scratch
        )

    def _site(self, grid: tuple[int, int, int]) -> KernelSite:
        sip, cube, pe = self.coord
        return KernelSite(
            sip=sip,
            cube=cube,
            pe=pe,
            num_pes=grid[0],
            num_cubes=grid[1],
            num_sips=grid[2],
            kernel=self.launch.kernel.name,
            file=kernel_source(self.launch.kernel.function).file,
            dot_dtypes=tuple(dtype(name) for name in self.machine.spec.pe.gemm.macs_per_ns),
        )

    @property
    def queues(self) -> KernelQueues:
        """The queues of the PE, for this kernel."""
        if self._queues is None:
            self._queues = KernelQueues(self.parts.ipcq, self.launch)
        return self._queues

    def resume(self, answer: object = None) -> KernelRequest | None:
        """Run the program to its next request; None when it has returned. ``answer`` is that to its last one."""
        self.waiting_at = "runs"
        failure, self._failure = self._failure, None
        return self._kernel.throw(failure) if failure is not None else self._kernel.resume(answer)

    def fail_next(self, error: Exception) -> None:
        """The program gets ``error`` where it waits."""
        self._failure = error

    def late_failure(self) -> Exception | None:
        """What the program was to fail with at its next request, of which there was none."""
        failure, self._failure = self._failure, None
        return failure

    def stop(self) -> None:
        """Give up what the program waits for: it is to be closed."""
        if self._queues is not None:
            self._queues.stop()

    def close(self) -> None:
        """End the program if it has not returned."""
        self._kernel.close()
        self.waiting_at = "its commands to end"

    def issue(self, command: PeCommand) -> None:
        """Enter a command; an address that nothing maps is the program's failure at this line."""
        hook = self.machine.hooks.issued
        if hook.listeners:
            hook.emit(Issued(self.coord, self.launch.request_id, command, self.clock.time))
        try:
            start = self._prepared(command)
        except Exception as fault:
            self.fail_next(fault)  # it is the kernel's, at the line of its call
            return
        self._starts[command.serial] = start
        if self._board.issue(command):
            self._starts.pop(command.serial)()

    def send(self, command: SendCommand) -> Wait:
        """Issue a send once the receiver has a slot for it; what cannot be sent is the program's failure."""
        self.waiting_at = f"a slot of queue {command.direction}, to send at line {command.line}"
        try:
            yield from self.queues.claim(command)
        except KernelError as fault:
            self.fail_next(fault)
            return
        self.issue(command)

    def receive(self, request: Receive) -> Generator[simpy.Event, object, Slot | None]:
        """Wait for a message; what cannot be received is the program's failure."""
        queue = "any queue" if request.direction is None else f"queue {request.direction}"
        self.waiting_at = f"a message of {queue}, at line {request.line}"
        try:
            return (yield from self.queues.receive(request))
        except KernelError as fault:
            self.fail_next(fault)
            return None

    def post_receive(self, command: RecvCommand) -> Slot | None:
        """Take the next message of a queue; when it is yet to come, commands that use it wait."""
        try:
            slot = self.queues.post(command, partial(self._received, command))
        except KernelError as fault:
            self.fail_next(fault)
            return None
        if slot.pending:
            self._board.issue(command)
        return slot

    def _received(self, command: RecvCommand, error: Exception | None) -> None:
        if error is not None:
            self.fail_next(error)
        self._completed(command, None)

    def command_done(self, request: AwaitCommand) -> Wait:
        """Wait until one command is done."""
        while self._board.has(request.serial):
            self.waiting_at = f"the command that line {request.line} waits for"
            self._changed = self.clock.event()
            yield self._changed

    def _prepared(self, command: PeCommand) -> Callable[[], None]:
        """What starts the command once its operands are there. Addresses are translated now."""
        if isinstance(command, LoadCommand | StoreCommand):
            return partial(self._start_dma, command, *self._translate(command))
        if isinstance(command, GemmComposite | MathComposite):
            return partial(self._start_composite, command, self._streams(command))
        return partial(self._start, command)

    def _streams(self, command: Composite) -> tuple[tuple[Segment, ...], ...]:
        """The physical ranges of everything a composite streams."""
        given = (command.a, command.b) if isinstance(command, GemmComposite) else command.inputs
        operands = (*given, *(step.operand for step in command.epilogue), command.out)
        found: list[tuple[Segment, ...]] = []
        for ref in operands:
            if isinstance(ref, MemoryRef):
                low, span = extent(ref.shape, ref.dtype.itemsize, ref.strides)
                table = self.parts.mmu.table
                segments = tuple((pa.encode(), n) for pa, n in table.segments(ref.va + low, span))
                self.parts.dma.check_reach(node for node, _ in self.machine.addresses.by_node(segments))
                found.append(segments)
        return tuple(found)

    def _translate(self, command: LoadCommand | StoreCommand) -> tuple[tuple[Segment, ...], tuple[Target, ...]]:
        array = command.dst if isinstance(command, LoadCommand) else command.src
        shape = command.valid if command.valid is not None else array.shape
        if 0 in shape:
            return (), ()
        itemsize = array.dtype.itemsize
        strides = command.strides
        if strides is None and command.valid is not None:
            strides = _row_major(array.shape, itemsize)
        low, span = extent(shape, itemsize, strides)
        segments: tuple[Segment, ...] = ((command.va + low, span),)
        if not command.physical:
            found = self.parts.mmu.table.segments(command.va + low, span)
            segments = tuple((pa.encode(), nbytes) for pa, nbytes in found)
        targets = plan(self.machine.addresses, segments, shape, itemsize, strides)
        self.parts.dma.check_reach(node for node, _ in targets)
        return segments, targets

    def _start_dma(
        self, command: LoadCommand | StoreCommand, segments: tuple[Segment, ...], targets: tuple[Target, ...]
    ) -> None:
        if not targets:
            self._start_empty(command)
            return
        op = self.machine.next_op()
        reading = isinstance(command, LoadCommand)
        reads, writes = (len(targets), 0) if reading else (0, len(targets))
        begun = self._observer(op, "pe_dma", Moved(command, segments), reads=reads, writes=writes)
        self.parts.dma.start(op, reading, targets, begun, partial(self._completed, command, op))

    def _start_empty(self, command: LoadCommand | StoreCommand) -> None:
        """A descriptor without a valid element moves nothing."""
        if isinstance(command, StoreCommand):
            self._completed(command, None)
            return
        op = self.machine.next_op()
        self._fill(op, command)
        self._completed(command, op)

    def _start_composite(self, command: Composite, segments: tuple[tuple[Segment, ...], ...]) -> None:
        op = self.machine.next_op()
        begun = self._observer(op, "pe_scheduler", Streamed(command, segments))
        self.parts.scheduler.submit(op, command, begun, partial(self._completed, command, op))

    def _start(self, command: PeCommand) -> None:
        op = self.machine.next_op()
        done = partial(self._completed, command, op)
        match command:
            case DotCommand():
                self.parts.scheduler.submit(op, command, self._observer(op, "pe_gemm", command), done)
            case MathCommand():
                self.parts.math.submit(command, self._observer(op, "pe_math", command), done)
            case SendCommand():
                pair, (sequence, pa) = self.queues.peer_of(command), self.queues.claimed(command)
                what = Queued(command, pa, pair.peer.pe, sequence)
                self._observer(op, "pe_ipcq", what, writes=1)(self.clock.time)
                self.queues.send(op, command, partial(self._completed, command, None))
            case PrintCommand():
                self._print(command)
                self._completed(command, None)

    def _fill(self, op: int, command: LoadCommand) -> None:
        """A load with nothing valid only sets ``other``."""
        fill = MathCommand(
            serial=command.serial,
            line=command.line,
            after=(),
            operator="full",
            inputs=(command.other,),
            dst=command.dst,
            attributes=PLAIN,
        )
        self._observer(op, "pe_math", fill)(self.clock.time)

    def _observer(
        self, op: int, part: str, what: Moved | Streamed | Queued | PeCommand, *, reads: int = 0, writes: int = 0
    ) -> Callable[[int], None]:
        """What an engine calls when it begins the command."""
        hook = self.machine.hooks.op_started

        def begun(start_ps: int) -> None:
            if hook.listeners:
                hook.emit(
                    OpStarted(
                        op,
                        pe_part(*self.coord, part),
                        what,
                        start_ps,
                        reads,
                        writes,
                        self.coord,
                        self.launch.kernel.name,
                        self.launch.request_id,
                    )
                )

        return begun

    def _completed(self, command: PeCommand, op: int | None) -> None:
        if op is not None and self.machine.hooks.op_ended.listeners:
            self.machine.hooks.op_ended.emit(OpEnded(op, self.clock.time))
        ready = self._board.complete(command.serial)
        self._kernel.completed(command.serial)
        for other in ready:
            self._starts.pop(other.serial)()
        if self._changed is not None and not self._changed.triggered:
            self._changed.succeed()

    def any_done(self, request: AwaitSpace) -> Wait:
        """Wait until a command is done."""
        self.waiting_at = f"{request.nbytes} bytes of scratch at line {request.line}"
        self._changed = self.clock.event()
        start = self.clock.time
        yield self._changed
        hook = self.machine.hooks.scratch_waited
        if hook.listeners:
            launch = self.launch
            waited = (request.line, request.nbytes, start, self.clock.time)
            hook.emit(ScratchWaited(self.coord, launch.kernel.name, launch.request_id, *waited))

    def all_done(self) -> Wait:
        """Wait until no command is under way."""
        while len(self._board):
            self._changed = self.clock.event()
            yield self._changed
        self._changed = None

    def finish(self) -> None:
        """Give the scratch back; nothing is under way any more."""
        self._allocator.free_tcm(self._region, self._region_bytes)

    def waits_for(self) -> str:
        """For a deadlock report: the kernel, what it waits for, the commands that are not done."""
        pending = ", ".join(
            f"{type(e.command).__name__.removesuffix('Command').lower()} of line {e.command.line}"
            for e in self._board.under_way()[:4]
        )
        text = f"kernel {self.launch.kernel.name!r} waits for {self.waiting_at}"
        return f"{text}; under way: {pending}" if pending else text

    def _print(self, command: PrintCommand) -> None:
        hook = self.machine.hooks.printed
        if hook.listeners:
            hook.emit(Printed(self.coord, self.clock.time, command.line, command.parts))


def _row_major(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a row-major array."""
    strides: list[int] = []
    for count in reversed(shape):
        strides.append(itemsize)
        itemsize *= count
    return tuple(reversed(strides))
