"""What a schedule does, found without simulating: that it cannot stop, and what each chunk of memory ends as.

The mock plays it on a memory that holds no numbers, but what has gone into each array. A rank is held up by two things
only, a send by a queue all of whose slots are taken and a message that it waits for; so the order in which ranks take
turns changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kernbench.ccl.mock_machine import MockMachine
from kernbench.ccl.topologies import Edge
from kernbench.common.errors import IpcqError
from kernbench.messages.commands import LoadCommand, MathCommand, PeCommand, StoreCommand
from kernbench.messages.operands import Operand
from kernbench.messages.requests import PeCoord
from kernbench.topology.spec import TopologySpec
from kernbench.triton_emu.schedules import ScheduledKernel

_TENSOR_BITS = 48  # two tensors are two places, far apart


class Origin(NamedTuple):
    """What a PE's memory held at first: of one of its tensors, so many bytes from ``offset`` on."""

    pe: PeCoord
    tensor: int
    offset: int
    nbytes: int


Content: TypeAlias = Counter[Origin]
"""How often each of them has gone into an array"""
Place: TypeAlias = tuple[int, int, int]
"""A chunk of memory: tensor, first byte, bytes"""


class _Contents:
    """The memory of a SIP: what each array in a TCM is made of, by its address, and what each PE has stored."""

    def __init__(self) -> None:
        self.stored: defaultdict[PeCoord, dict[Place, Content]] = defaultdict(dict)
        self._arrays: dict[int, Content] = {}

    def get(self, array: Operand) -> Content:
        """What an array is made of."""
        return self._arrays[array.address]

    def put(self, address: int, message: Content) -> None:
        """A message has come."""
        self._arrays[address] = message

    def carry_out(self, command: PeCommand) -> None:
        """Do what ``command`` says, one of a schedule's."""
        match command:
            case LoadCommand(dst=dst):
                self._arrays[dst.address] = self._loaded(command)
            case StoreCommand(src=src, va=va):
                self.stored[_coord(src)][_place(va, src)] = self.get(src)
            case MathCommand(inputs=inputs, dst=dst):
                made = (self.get(x) for x in inputs if isinstance(x, Operand))
                self._arrays[dst.address] = sum(made, Counter[Origin]())

    def meet(self, a: PeCommand, b: PeCommand) -> bool:
        """Whether a load and a store, or two stores, are of the same bytes."""
        if not (isinstance(a, StoreCommand) or isinstance(b, StoreCommand)):
            return False
        (a_at, a_size), (b_at, b_size) = _bytes_of(a), _bytes_of(b)
        return a_at < b_at + b_size and b_at < a_at + a_size

    def _loaded(self, command: LoadCommand) -> Content:
        """What is there: what was there at first, unless an earlier step has stored exactly that chunk."""
        pe, place = _coord(command.dst), _place(command.va, command.dst)
        tensor, first, nbytes = place
        for there, at, size in self.stored[pe]:
            if there == tensor and at < first + nbytes and first < at + size and (at, size) != (first, nbytes):
                raise IpcqError(f"step {command.line} (load): part of the chunk was stored by an earlier step")
        return self.stored[pe].get(place) or Counter({Origin(pe, *place): 1})


def _coord(array: Operand) -> PeCoord:
    sip, cube, pe = array.owner
    return sip, cube, pe


def _place(va: int, array: Operand) -> Place:
    return va >> _TENSOR_BITS, va & (1 << _TENSOR_BITS) - 1, array.nbytes


def _bytes_of(command: PeCommand) -> tuple[int, int]:
    match command:
        case LoadCommand(va=va, dst=array) | StoreCommand(va=va, src=array):
            return va, array.nbytes
    return 0, 0


def play_schedules(
    kernel: ScheduledKernel,
    args: Mapping[PeCoord, Sequence[Any]],
    spec: TopologySpec,
    edges: Sequence[Edge],
    **queues: Any,
) -> dict[PeCoord, dict[Place, Content]]:
    """What each chunk that the PEs have stored ends as; ``args``: of each, behind its tensors.

    ``queues``: ``n_slots``, ``slot_size`` and ``names`` of ``MockMachine``, whose errors name rank and step.
    """
    memory = [_Contents() for _ in range(spec.num_sips)]
    pointers = [tensor << _TENSOR_BITS for tensor in range(kernel.tensors)]
    machine = MockMachine(spec, edges, works_on=memory, **queues)
    machine.run(kernel, {pe: (*pointers, *given) for pe, given in args.items()})
    return {pe: memory[pe[0]].stored[pe] for pe in args}
