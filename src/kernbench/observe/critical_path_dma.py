"""What a DMA operation spends its time on: set-up, the way there, the memory, the way back. A message is one, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.engine.hooks import MemoryServed
from kernbench.engine.machine import Machine
from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path_model import Chain, Part
from kernbench.observe.trace_log import Exchange
from kernbench.topology.attrs import HbmCtrlAttrs, SramAttrs
from kernbench.transport import Transfer


class Spot(NamedTuple):
    """A descriptor or a message on a path: for a line of a kernel on ``pe``, from ``start_ps`` on."""

    pe: PeCoord | None
    line: int
    start_ps: int


def walk_dma(chain: Chain, work: Spot, exchange: Exchange | None, turns: list[MemoryServed], machine: Machine) -> None:
    """Take ``chain`` from the end of ``work`` to its start along ``exchange``, whose answer came last."""
    if exchange is not None and exchange.answered is not None:
        turns = [turn for turn in turns if turn.node == exchange.node]
        way = _Way(chain, work, exchange, exchange.answered, turns)
        way.walk(access_ps(machine, exchange.node))
    chain.back_to(work.start_ps, Part.DMA_SETUP, work.pe, work.line)


def walk_access(
    chain: Chain, work: Spot, exchanges: Sequence[Exchange], turns: list[MemoryServed], machine: Machine
) -> None:
    """Take ``chain`` from when the memory had read or written the last of ``exchanges`` to the start of ``work``."""

    def done_ps(exchange: Exchange) -> int:
        if exchange.writing:
            return exchange.answered.injected_ps if exchange.answered is not None else -1
        return exchange.asked.delivered_ps + access_ps(machine, exchange.node)

    last = max((each for each in exchanges if done_ps(each) <= chain.at_ps), key=done_ps, default=None)
    walk_dma(chain, work, last, turns, machine)


def walk_message(chain: Chain, work: Spot, exchange: Exchange, turns: list[MemoryServed], machine: Machine) -> None:
    """Take ``chain`` from the commit of the message of ``work`` in its slot, from the doorbell that tells of it, or
    from the delivery of its last byte, to where it left the sender."""
    turns = [turn for turn in turns if turn.node == exchange.node]
    way = _Way(chain, work, exchange, exchange.answered, turns, Part.MESSAGE, Part.DOORBELL)
    way.walk(access_ps(machine, exchange.node))


def access_ps(machine: Machine, node_id: str) -> int:
    """How long a memory takes before its first byte."""
    attrs = machine.graph.node(node_id).attrs
    return attrs.access_ps if isinstance(attrs, HbmCtrlAttrs | SramAttrs) else 0


class _Way:
    """One access, walked backwards."""

    def __init__(
        self,
        chain: Chain,
        work: Spot,
        exchange: Exchange,
        answer: Transfer | None,
        turns: list[MemoryServed],
        there: Part = Part.REQUEST,
        back: Part = Part.RESPONSE,
    ) -> None:
        self._there = there
        self._back = back
        self._chain = chain
        self._work = work
        self._exchange = exchange
        self._answer = answer
        self._turns = turns

    def walk(self, access: int) -> None:
        """From the answer's arrival, if there is one, to the request's departure."""
        asked, answer = self._exchange.asked, self._answer
        if self._exchange.writing:
            if answer is not None and answer.injected_ps < self._chain.at_ps:
                self._transfer(answer, self._back)
            self._spend(Part.ACCESS, access, asked.delivered_ps)
            self._spend(Part.SERVICE, self._served_after(asked.delivered_ps), asked.delivered_ps)
        elif answer is not None:
            if answer.injected_ps < self._chain.at_ps:
                self._data_back(answer)
            # The memory accesses first and serves when its turn comes.
            self._spend(Part.MEMORY_QUEUE, self._chain.at_ps - asked.delivered_ps - access, asked.delivered_ps)
            self._spend(Part.ACCESS, access, asked.delivered_ps)
        self._to(asked.delivered_ps, Part.MEMORY_QUEUE)
        if self._exchange.writing:
            # A memory works on what comes in: the slower of the two is what takes the time.
            self._spend(Part.SERVICE, self._served_before(asked.delivered_ps), asked.injected_ps)
        self._transfer(asked, self._there)

    def _data_back(self, answer: Transfer) -> None:
        """The answer of a read: the memory's time is not hidden by the way, where it is the slower of the two."""
        begin, route = answer.injected_ps, answer.route
        service = self._served_after(begin)
        served = max([turn.end_ps for turn in self._turns if turn.start_ps >= begin], default=begin)
        drain = route.latency_ps(answer.nbytes) - route.total_overhead_ps
        self._spend(self._back, route.total_overhead_ps + max(0, drain - service), begin)
        self._spend(Part.SERVICE, service, begin)
        self._spend(Part.MEMORY_QUEUE, served - begin - service, begin)
        self._to(begin, Part.NETWORK_QUEUE)

    def _served_after(self, when: int) -> int:
        return sum(turn.end_ps - turn.start_ps for turn in self._turns if turn.start_ps >= when)

    def _served_before(self, when: int) -> int:
        return sum(min(turn.end_ps, when) - turn.start_ps for turn in self._turns if turn.start_ps < when)

    def _transfer(self, transfer: Transfer, part: Part) -> None:
        """What a transfer took, up to where the path is; what it took more than alone is waiting."""
        known = transfer.delivered_ps - self._chain.at_ps
        self._spend(part, transfer.route.latency_ps(transfer.nbytes) - known, transfer.injected_ps)
        self._to(transfer.injected_ps, Part.NETWORK_QUEUE)

    def _spend(self, part: Part, ps: int, begin: int) -> None:
        """``ps`` on ``part``, but nothing before ``begin``."""
        if ps > 0:
            self._to(max(begin, self._chain.at_ps - ps), part)

    def _to(self, when: int, part: Part) -> None:
        self._chain.back_to(when, part, self._work.pe, self._work.line)
