"""A machine without time: kernels on many PEs take turns, and messages are there as soon as they are sent."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from kernbench.ccl.mock_memory import TCM_BASE, MockMemory, PeMemory
from kernbench.ccl.mock_pe import MockPe, MockQueues
from kernbench.ccl.queues import by_pe, pair_queues, queue_setups
from kernbench.ccl.topologies import Edge
from kernbench.common.errors import InputError, SimulationDeadlock
from kernbench.common.ids import pe_name
from kernbench.engine.deadlock import Standstill
from kernbench.engine.queues import QueuePair
from kernbench.messages.requests import PeCoord
from kernbench.policy.address.scratch import ScratchAllocator
from kernbench.topology.spec import TopologySpec
from kernbench.triton_emu.kernel_run import begin_run
from kernbench.triton_emu.site import KernelSite
from kernbench.triton_emu.source import kernel_source

_TCM_BITS = 40
_NAMES = re.compile(r"sip\d+\.cube\d+\.pe\d+")


class MockMachine:
    """The PEs of ``spec`` with queues along ``edges``, paired by the rule of the machine; rings lie in TCM.

    ``memory[sip]`` holds what kernels read and write, unless they work on something else; ``names``: what errors call
    a PE.
    """

    def __init__(
        self,
        spec: TopologySpec,
        edges: Sequence[Edge],
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
        rings = {  # behind the scratch of their PE, in the order of its queues
            (pe, end.direction): self._tcm(pe) + spec.pe.tcm.scratch_bytes + at * n_slots * slot_size
            for pe, own in ends.items()
            for at, end in enumerate(own)
        }
        self._queues: dict[PeCoord, MockQueues] = {}
        for pe, own in ends.items():
            setups = queue_setups(own, rings, n_slots, slot_size)
            self._add_queues(pe, {setup.direction: QueuePair(setup) for setup in setups})

    def _add_queues(self, pe: PeCoord, pairs: Mapping[str, QueuePair]) -> None:
        self._queues[pe] = MockQueues(pe, pairs, self._works_on[pe[0]], self._queues)

    def queues(self, pe: PeCoord) -> Mapping[str, QueuePair]:
        """The queue pairs of a PE, by direction."""
        return self._queues[pe].pairs if pe in self._queues else {}

    def run(self, kernel: Callable[..., object], args: Mapping[PeCoord, Sequence[Any]]) -> None:
        """Run ``kernel`` to its end on each PE of ``args``, with its arguments.

        Raises what a kernel raises, first by the order of turns; IpcqDeadlock when kernels wait for each other,
        SimulationDeadlock when they wait for something else, IpcqError when messages are left unreceived.
        """
        pes = [self._started(kernel, pe, tuple(given), tuple(args)) for pe, given in args.items()]
        try:
            with np.errstate(all="ignore"):
                self._take_turns(pes)
        finally:
            for pe in pes:
                pe.close()
        for pe in pes:
            pe.queues.check_empty()

    def _take_turns(self, pes: Sequence[MockPe]) -> None:
        while not all(pe.finished for pe in pes):
            moved = [self._advanced(pe) for pe in pes]
            if not any(moved) and not _opened_barriers(pes):
                raise self._deadlock([pe for pe in pes if not pe.finished])

    def _advanced(self, pe: MockPe) -> bool:
        try:
            return pe.advance()
        except Exception as error:
            error.add_note(f"on {self._named(pe_name(pe.pe))}, in the mock")
            raise

    def _started(
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
        return MockPe(self._named(pe_name(pe)), begin_run(kernel, args, {}, site, scratch), self._queues[pe])

    def _tcm(self, pe: PeCoord) -> int:
        """Where the TCM of a PE begins; they are far apart."""
        return TCM_BASE + (pe[1] * self._spec.pes_per_cube + pe[2] << _TCM_BITS)

    def _named(self, pe: str) -> str:
        return self._names.get(pe, pe)

    def _deadlock(self, stuck: Sequence[MockPe]) -> SimulationDeadlock:
        waits = {pe.pe: pe.waiting for pe in stuck}
        found = Standstill(
            at="in the mock",
            awaited=["the kernels that have not ended"],
            kernels={pe.pe: f"its kernel waits for {pe.waits_for()}" for pe in stuck},
            waits={pe: wait for pe, wait in waits.items() if wait is not None},
            queues={pe: queues.pairs for pe, queues in self._queues.items()},
        ).error()
        return found.reworded(lambda text: _NAMES.sub(lambda name: self._named(name[0]), text))


def kernel_name(kernel: Callable[..., object]) -> str:
    """What a kernel is called."""
    return kernel.__name__ if isinstance(kernel, FunctionType) else type(kernel).__name__


def _opened_barriers(pes: Sequence[MockPe]) -> bool:
    """Release the PEs of every cube that have all come to their barrier; whether there were any."""
    cubes: defaultdict[tuple[int, int], list[MockPe]] = defaultdict(list)
    for pe in pes:
        cubes[pe.pe[:2]].append(pe)
    ready = [mates for mates in cubes.values() if all(pe.at_barrier for pe in mates)]
    for mates in ready:
        for pe in mates:
            pe.release()
    return bool(ready)
