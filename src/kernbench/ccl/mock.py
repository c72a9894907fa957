"""An untimed machine: kernels on many PEs run round-robin, and a message arrives as soon as it is sent.

A PE carries out each command as soon as its operands exist, by the rules of phase 2.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import FunctionType
from typing import Any, Final, Protocol

import numpy as np

from kernbench.ccl.config import SlotSize
from kernbench.ccl.queues import by_pe, pair_queues, queue_setups
from kernbench.ccl.topologies import QueueEdge
from kernbench.common.dtypes import F32, U8, Array, Shape, row_major
from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import (
    AddressFaultError,
    InputError,
    IpcqError,
    KernelError,
    SimulationDeadlock,
)
from kernbench.common.ids import pe_name, pe_part
from kernbench.engine.address_map import MemoryPlace, Segment
from kernbench.engine.deadlock import Standstill
from kernbench.engine.queues import QueuePair, QueueWait, find_queue, find_ready, find_receivers, size_error
from kernbench.engine.recorder import ContentMaker, Places, Recorded
from kernbench.messages.commands import (
    COMPOSITES,
    LOAD,
    MEMORY_WRITERS,
    NOWHERE,
    RECEIVE,
    AwaitCommand,
    AwaitSpace,
    Command,
    Fence,
    KernelRequest,
    Meet,
    MemoryRef,
    Opcode,
    Operand,
    ReadValue,
    Receive,
    awaited_by,
    fill_of,
)
from kernbench.messages.requests import PeCoord
from kernbench.numerics.compute import result
from kernbench.numerics.memory import MemoryStore
from kernbench.numerics.operands import OperandMemory
from kernbench.policy.address.free_list import ScratchAllocator
from kernbench.topology.spec import TopologySpec
from kernbench.triton_emu.handles import Slot
from kernbench.triton_emu.kernel_run import PeProgram, begin_run
from kernbench.triton_emu.source import KernelSite, kernel_source

TCM_BASE = 1 << 60
"""The first address of TCMs; tensors have lower addresses."""
_FIRST_VA = 1 << 20
_GUARD_BYTES = 4096


class PeMemory(Protocol):
    """The memory of the PEs of a SIP: TCMs and tensors. No other code depends on the format of the contents."""

    def carry_out(self, command: Command) -> None:
        """Carry out ``command``. The caller has to set ``np.errstate(all="ignore")``."""

    def meet(self, a: Command, b: Command) -> bool:
        """Return True if both access the same bytes of a tensor and at least one writes."""

    def get(self, array: Operand) -> Any:
        """Return the contents of an array in TCM."""

    def put(self, address: int, message: Any) -> None:
        """Write to a TCM the result of ``get`` of this memory or of another one."""


class MockMemory:
    """Memory with numbers: the TCMs of PEs, and tensors at virtual addresses with inaccessible gaps between them."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._operands = OperandMemory(self._store)
        self._contents = ContentMaker(_place_of, (0, 0, 0))
        self._tensors: list[Segment] = []
        self._next = _FIRST_VA

    def place(self, array: Array) -> int:
        """Copy ``array`` into memory and return its virtual address."""
        va = self._next
        self._store.write("hbm", va, np.ascontiguousarray(array))
        self._tensors.append((va, array.nbytes))
        self._next = va + -(-(array.nbytes + _GUARD_BYTES) // _GUARD_BYTES) * _GUARD_BYTES
        return va

    def read(self, va: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return a copy of the array at ``va``."""
        return self._store.read("hbm", va, shape, element_type(dtype.name))

    def get(self, array: Operand) -> Array:
        """Return the elements of an array in TCM."""
        return self._store.read("tcm", array.address, array.shape, array.dtype)

    def put(self, address: int, message: Array) -> None:
        """Write elements to a TCM."""
        self._store.write("tcm", address, message)

    def carry_out(self, command: Command) -> None:
        """Carry out ``command``. The caller has to set ``np.errstate(all="ignore")``."""
        effective: Command | None = command
        places: Places = ()
        if command.op in COMPOSITES:
            places = tuple((self._extent(ref),) for ref in (*command.reads_of_memory, command.out))
        elif command.op in _MEMORY_OPCODES:
            segments = self._segments(command.ref)
            if all(va == NOWHERE for va, _ in segments):
                effective = fill_of(command)
            else:
                places = (segments,)
        if effective is None:
            return
        work = self._contents.resolve(Recorded(effective, places))
        assert work.output is not None
        self._operands.deposit(work.output, result(work, self._operands, F32, False))

    def meet(self, a: Command, b: Command) -> bool:
        """Return True if both access the same bytes of a tensor and at least one writes."""
        pairs = product(_accesses(a), _accesses(b))
        return any(
            (a_writes or b_writes) and np.shares_memory(self._view(a_ref), self._view(b_ref))
            for (a_writes, a_ref), (b_writes, b_ref) in pairs
        )

    def _view(self, ref: MemoryRef) -> Array:
        self._extent(ref)
        return self._store.view("hbm", ref.va, ref.shape, ref.dtype, ref.strides)

    def _segments(self, ref: MemoryRef) -> tuple[Segment, ...]:
        """Return the segments of the memory side of a DMA."""
        if ref.runs:
            return tuple((va, n) if va == NOWHERE else self._find_bytes(va, n) for va, n in ref.runs)
        box = _valid_box(ref)
        if 0 in box.shape:
            return ()
        return ((ref.va, 0),) if ref.physical else (self._extent(box),)

    def _extent(self, ref: MemoryRef) -> Segment:
        item = ref.dtype.itemsize
        steps = row_major(ref.shape, item) if ref.strides is None else ref.strides
        return self._find_bytes(ref.va, sum((n - 1) * step for n, step in zip(ref.shape, steps, strict=True)) + item)

    def _find_bytes(self, va: int, nbytes: int) -> Segment:
        """Return the segment if it is inside one tensor; else raise AddressFaultError."""
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


def _accesses(command: Command) -> list[tuple[bool, MemoryRef]]:
    """Return (writes, array) for each tensor array that a command accesses, operands first."""
    if command.op in COMPOSITES:
        return [*((False, ref) for ref in command.reads_of_memory), (True, command.out)]
    if command.op not in _MEMORY_OPCODES or command.ref.physical:
        return []
    ref, writes = command.ref, command.op is not LOAD
    if ref.runs:
        return [(writes, MemoryRef(va, (n,), U8)) for va, n in ref.runs if va != NOWHERE]
    return [(writes, _valid_box(ref))]


def _valid_box(ref: MemoryRef) -> MemoryRef:
    """Return the part of an array that is inside memory."""
    if ref.valid is None:
        return ref
    return MemoryRef(ref.va, ref.valid, ref.dtype, ref.strides or row_major(ref.shape, ref.dtype.itemsize))


_LATER: Final = object()
"""The answer to a request that has to be retried"""
_MEMORY_OPCODES = frozenset((LOAD, *MEMORY_WRITERS))
"""Opcodes that access tensors. Accesses to the same bytes stay in program order, as in the machine's DMA."""


class MockQueues:
    """The queue pairs of PE ``pe``, whose rings are in its TCM in ``memory``.

    ``everywhere`` has the queues of all PEs. Invalid operations raise the same errors as on the machine.
    """

    def __init__(
        self,
        pe: PeCoord,
        pairs: Mapping[str, QueuePair],
        memory: PeMemory,
        everywhere: Mapping[PeCoord, MockQueues],
    ) -> None:
        self.pe = pe
        self.pairs = pairs
        self.memory = memory
        self._name = pe_part(*pe, "pe_ipcq")
        self._everywhere = everywhere
        self._next_receiver = 0

    def pair(self, direction: str, nbytes: int, *, sends: bool) -> QueuePair:
        """Return the queue pair of a direction after a check that it can send, or receive, ``nbytes``."""
        return find_queue(self._name, self.pairs, direction, nbytes, sends=sends)

    def whichever(self) -> QueuePair | None:
        """Return the next queue pair, round-robin, with a message to receive; None if there is none."""
        receiving = find_receivers(self._name, self.pairs)
        index = find_ready(receiving, self._next_receiver)
        if index is None:
            return None
        self._next_receiver = index + 1
        return receiving[index]

    def take(self, pair: QueuePair, nbytes: int) -> Slot:
        """Return the slot of the kernel's next message.

        Raises KernelError if the message has arrived and has another size than ``nbytes``.
        """
        pending, sequence = not pair.ready, pair.take()
        if not pending:
            self.check_size(pair, sequence, nbytes)
        return Slot(pair.direction, "tcm", self.pe, pair.slot_pa(sequence), self, sequence, pending)

    def check_size(self, pair: QueuePair, sequence: int, nbytes: int) -> None:
        """Raise KernelError if a message that has arrived does not have ``nbytes``."""
        if pair.sizes[sequence] != nbytes:
            raise size_error(self._name, pair, sequence, nbytes)

    def free(self, slot: Slot, /) -> None:
        """Free ``slot`` and return a credit to its sender."""
        pair = self.pairs[slot.direction]
        if pair.release(slot.sequence):
            self._everywhere[pair.peer.pe].pairs[pair.peer.direction].peer_tail_cache = pair.my_tail

    def deliver(self, pair: QueuePair, sequence: int, message: Any, nbytes: int) -> None:
        """Write message number ``sequence`` to its slot of the peer."""
        pa, receiver = pair.peer_slot_pa(sequence), self._everywhere[pair.peer.pe]
        receiver.memory.put(pa, message)
        receiver.pairs[pair.peer.direction].arrive(sequence, pa, nbytes)

    def check_empty(self) -> None:
        """Raise IpcqError if the kernel has not received all messages that have arrived."""
        counts = [(pair.direction, pair.peer_head_cache - pair.taken, pair.peer.pe) for pair in self.pairs.values()]
        leftovers = [f"{n} of queue {name} (from {pe_part(*pe, 'pe_ipcq')})" for name, n, pe in counts if n]
        if leftovers:
            raise IpcqError(f"{self._name}: the kernel has ended and left messages unreceived: {', '.join(leftovers)}")


class MockPe:
    """A PE that runs ``run`` with ``queues``; call ``advance`` until ``finished``. ``name`` labels the PE's prints."""

    def __init__(self, name: str, run: PeProgram, queues: MockQueues) -> None:
        self.pe = queues.pe
        self.queues = queues
        self.finished = False
        self._name = name
        self._run = run
        self._memory = queues.memory
        self._begun = False
        self._request: KernelRequest | None = None
        self._failure: KernelError | None = None
        self._in_flight: dict[int, Command] = {}
        self._messages: dict[int, tuple[QueuePair, int]] = {}  # of sends and receives in flight
        self._completions = 0
        self._completions_at_resume = 0
        self._released = False

    @property
    def at_barrier(self) -> bool:
        """True if the kernel waits at a barrier, and the commands that the barrier waits for are complete."""
        request = self._request
        return isinstance(request, Meet) and not (request.drains and self._in_flight) and not self._released

    def release(self) -> None:
        """Release the kernel from its barrier."""
        self._released = True

    def close(self) -> None:
        """End the kernel if it has not ended."""
        self._run.close()

    def advance(self) -> bool:
        """Run until the kernel waits for another PE; return True if anything happened. Raises the kernel's errors."""
        progressed = not self.finished and self._carry_out_ready()
        while not self.finished and self._step():
            progressed = True
            self._carry_out_ready()
        return progressed

    def _step(self) -> bool:
        """Answer the kernel's request if possible, and run the kernel to its next request."""
        if self._begun and self._request is None:
            return self._finish()
        answer: object = None
        try:
            if self._request is not None:
                answer = self._answer(self._request)
        except KernelError as error:
            self._failure = error
            if isinstance(self._request, Command):
                self._run.completed(self._request.serial)
        if answer is _LATER:
            return False
        self._begun, failure, self._failure = True, self._failure, None
        self._request = self._run.resume(answer) if failure is None else self._run.throw(failure)
        self._completions_at_resume = self._completions
        return True

    def _finish(self) -> bool:
        """Record that the kernel has returned; it finishes with its last command."""
        if self._failure is not None:
            raise self._failure
        if self._in_flight:
            return False
        self._run.close()
        self.finished = True
        return True

    def _answer(self, request: KernelRequest) -> object:
        ready = True
        match request:
            case Command(op=Opcode.SEND):
                pair = self.queues.pair(request.name, request.array.nbytes, sends=True)
                sequence = pair.claim()
                ready = sequence is not None
                if sequence is not None:
                    self._begin(request, pair, sequence)
            case Command(op=Opcode.RECEIVE):
                pair = self.queues.pair(request.name, request.nbytes, sends=False)
                slot = self.queues.take(pair, request.nbytes)
                if slot.pending:
                    self._begin(request, pair, slot.sequence)
                return slot
            case Receive(direction, nbytes):
                awaited = self.queues.pair(direction, nbytes, sends=False) if direction else self.queues.whichever()
                return self.queues.take(awaited, nbytes) if awaited is not None and awaited.ready else _LATER
            case ReadValue(array, _, expected):
                return self._memory.get(array) if expected is None else expected
            case AwaitCommand(serial):
                ready = serial not in self._in_flight
            case AwaitSpace():
                ready = self._completions > self._completions_at_resume
            case Meet():
                ready, self._released = self._released, False
            case Fence():
                ready = not any(command.op in MEMORY_WRITERS for command in self._in_flight.values())
            case _:
                self._in_flight[request.serial] = request
        return None if ready else _LATER

    def _begin(self, command: Command, pair: QueuePair, sequence: int) -> None:
        self._messages[command.serial] = (pair, sequence)
        self._in_flight[command.serial] = command

    def _carry_out_ready(self) -> bool:
        """Carry out every command whose operands exist; return True if there was one."""
        before = self._completions
        progressed = True
        while progressed:
            progressed = False
            earlier: list[Command] = []  # earlier accesses that are not complete
            for command in tuple(self._in_flight.values()):
                if self._ready(command) and not any(self._memory.meet(command, access) for access in earlier):
                    self._carry_out(command)
                    progressed = True
                elif command.op in _MEMORY_OPCODES:
                    earlier.append(command)
        return self._completions > before

    def _ready(self, command: Command) -> bool:
        if command.op is RECEIVE:
            pair, sequence = self._messages[command.serial]
            return pair.peer_head_cache > sequence
        return not any(serial in self._in_flight for serial in command.after)

    def _carry_out(self, command: Command) -> None:
        match command.op:
            case Opcode.SEND:
                message = self._memory.get(command.array)
                self.queues.deliver(*self._messages.pop(command.serial), message, command.array.nbytes)
            case Opcode.RECEIVE:
                self._receive(command)
            case Opcode.PRINT:
                print(f"{self._name}:", *(x if isinstance(x, str) else self._memory.get(x) for x in command.parts))
            case _:
                self._memory.carry_out(command)
        del self._in_flight[command.serial]
        self._completions += 1
        self._run.completed(command.serial)

    def _receive(self, command: Command) -> None:
        try:
            self.queues.check_size(*self._messages.pop(command.serial), command.nbytes)
        except KernelError as error:
            error.add_note(self._run.place(command.line))
            self._failure = error

    @property
    def waiting(self) -> QueueWait | None:
        """The queue that the kernel waits for: that of its current request, else that of its first posted receive."""
        match self._request:
            case Command(op=Opcode.SEND, name=direction, line=line):
                return QueueWait(pe=self.pe, kind="send", direction=direction, line=line)
            case Receive(direction, _, line):
                return QueueWait(pe=self.pe, kind="recv", direction=direction, line=line)
        posted = next((command for command in self._in_flight.values() if command.op is RECEIVE), None)
        return None if posted is None else QueueWait(pe=self.pe, kind="recv", direction=posted.name, line=posted.line)

    def waits_for(self) -> str:
        """Return a text that names the message, slot or event that the kernel waits for."""
        return "its commands to end" if self._request is None else awaited_by(self._request, self._run.place)


_TCM_BITS = 40
_NAMES = re.compile(r"sip\d+\.cube\d+\.pe\d+")


class MockMachine:
    """The PEs of ``spec`` with queues along ``edges``, paired by the rule of the machine; the rings are in TCM.

    ``memory[sip]`` holds the data of kernels unless ``works_on`` replaces it. ``names`` are the labels of PEs in
    errors.
    """

    def __init__(
        self,
        spec: TopologySpec,
        edges: Sequence[QueueEdge],
        *,
        n_slots: int = 4,
        slot_size: int = 4096,
        names: Mapping[PeCoord, str] | None = None,
        works_on: Sequence[PeMemory] | None = None,
    ) -> None:
        if n_slots < 1 or slot_size < 1:
            raise InputError(f"n_slots={n_slots}, slot_size={slot_size}: both must be at least 1")
        self.memory = tuple(MockMemory() for _ in range(spec.num_sips))
        self._works_on = self.memory if works_on is None else works_on
        self._spec = spec
        self._names = {pe_name(pe): f"{name} ({pe_name(pe)})" for pe, name in (names or {}).items()}
        ends = dict(by_pe(pair_queues(list(edges), spec)))
        rings = {  # after the scratch of the PE, in the order of its queues
            (pe, end.direction): self._tcm(pe) + spec.pe.tcm.scratch_bytes + at * n_slots * slot_size
            for pe, pe_ends in ends.items()
            for at, end in enumerate(pe_ends)
        }
        self._queues: dict[PeCoord, MockQueues] = {}
        for pe, pe_ends in ends.items():
            setups = queue_setups(pe_ends, rings, SlotSize(n_slots, slot_size))
            self._add_queues(pe, {setup.direction: QueuePair(setup) for setup in setups})

    def _add_queues(self, pe: PeCoord, pairs: Mapping[str, QueuePair]) -> None:
        self._queues[pe] = MockQueues(pe, pairs, self._works_on[pe[0]], self._queues)

    def queues(self, pe: PeCoord) -> Mapping[str, QueuePair]:
        """Return the queue pairs of a PE, by direction."""
        return self._queues[pe].pairs if pe in self._queues else {}

    def run(self, kernel: Callable[..., object], args: Mapping[PeCoord, Sequence[Any]]) -> None:
        """Run ``kernel`` to its end on each PE of ``args`` with the arguments of that PE.

        Raises the first error of a kernel in round-robin order, and IpcqError if messages are left unreceived. Raises
        IpcqDeadlock if kernels wait for each other, and SimulationDeadlock if they wait for something else.
        """
        pes = [self._start(kernel, pe, tuple(arguments), tuple(args)) for pe, arguments in args.items()]
        try:
            with np.errstate(all="ignore"):
                self._run_round_robin(pes)
        finally:
            for pe in pes:
                pe.close()
        for pe in pes:
            pe.queues.check_empty()

    def _run_round_robin(self, pes: Sequence[MockPe]) -> None:
        while not all(pe.finished for pe in pes):
            progressed = [self._advance(pe) for pe in pes]
            if not any(progressed) and not _open_barriers(pes):
                raise self._deadlock([pe for pe in pes if not pe.finished])

    def _advance(self, pe: MockPe) -> bool:
        try:
            return pe.advance()
        except Exception as error:
            error.add_note(f"on {self._label_of(pe_name(pe.pe))}, in the mock")
            raise

    def _start(
        self, kernel: Callable[..., object], pe: PeCoord, args: tuple[Any, ...], everywhere: Sequence[PeCoord]
    ) -> MockPe:
        if pe not in self._queues:
            self._add_queues(pe, {})
        sips, cubes, pes = (len(set(ids)) for ids in zip(*everywhere, strict=True))
        site = KernelSite(
            sip=pe[0],
            cube=pe[1],
            pe=pe[2],
            num_pes=pes,
            num_cubes=cubes,
            num_sips=sips,
            kernel=kernel_name(kernel),
            file=kernel_source(kernel).file,
            dot_dtypes=self._spec.pe.gemm.operand_dtypes,
        )
        scratch = ScratchAllocator(self._tcm(pe), self._spec.pe.tcm.scratch_bytes)
        return MockPe(self._label_of(pe_name(pe)), begin_run(kernel, args, {}, site, scratch), self._queues[pe])

    def _tcm(self, pe: PeCoord) -> int:
        """Return the first address of a PE's TCM; TCMs are far apart."""
        return TCM_BASE + (pe[1] * self._spec.pes_per_cube + pe[2] << _TCM_BITS)

    def _label_of(self, pe: str) -> str:
        return self._names.get(pe, pe)

    def _deadlock(self, stuck: Sequence[MockPe]) -> SimulationDeadlock:
        waits = {pe.pe: pe.waiting for pe in stuck}
        error = Standstill(
            at="in the mock",
            awaited=["the kernels that have not ended"],
            kernels={pe.pe: f"its kernel waits for {pe.waits_for()}" for pe in stuck},
            waits={pe: (wait,) for pe, wait in waits.items() if wait is not None},
            queues={pe: queues.pairs for pe, queues in self._queues.items()},
        ).error()
        return error.reword(lambda text: _NAMES.sub(lambda name: self._label_of(name[0]), text))


def kernel_name(kernel: Callable[..., object]) -> str:
    """Return the name of a kernel."""
    return kernel.__name__ if isinstance(kernel, FunctionType) else type(kernel).__name__


def _open_barriers(pes: Sequence[MockPe]) -> bool:
    """Release the PEs of every cube whose PEs are all at a barrier; return True if there was one."""
    cubes: defaultdict[tuple[int, int], list[MockPe]] = defaultdict(list)
    for pe in pes:
        cubes[pe.pe[:2]].append(pe)
    ready = [mates for mates in cubes.values() if all(pe.at_barrier for pe in mates)]
    for mates in ready:
        for pe in mates:
            pe.release()
    return bool(ready)
