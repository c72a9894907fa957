"""What a DMA operation spends its time on: set-up, the way there, the memory, the way back."""

from __future__ import annotations

from kernbench.common.units import ns_to_ps
from kernbench.sim_engine.critical_path_model import Chain, Part
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.trace_log import Exchange, Turn, Work
from kernbench.sim_engine.transport import Transfer
from kernbench.topology.attrs import HbmCtrlAttrs, SramAttrs


def walk_dma(chain: Chain, work: Work, exchange: Exchange | None, turns: list[Turn], machine: Machine) -> None:
    """Take ``chain`` from the end of ``work`` to its start along ``exchange``, whose answer came last."""
    if exchange is not None and exchange.answered is not None:
        turns = [turn for turn in turns if turn.node == exchange.node]
        _Way(chain, work, exchange, exchange.answered, turns).walk(access_ps(machine, exchange.node))
    chain.back_to(work.start_ps, Part.DMA_SETUP, work.pe, work.line)


def access_ps(machine: Machine, node_id: str) -> int:
    """How long a memory takes before its first byte."""
    attrs = machine.graph.node(node_id).attrs
    return ns_to_ps(attrs.access_ns) if isinstance(attrs, HbmCtrlAttrs | SramAttrs) else 0


class _Way:
    """One access, walked backwards."""

    def __init__(self, chain: Chain, work: Work, exchange: Exchange, answer: Transfer, turns: list[Turn]) -> None:
        self._chain = chain
        self._work = work
        self._exchange = exchange
        self._answer = answer
        self._turns = turns

    def walk(self, access: int) -> None:
        """From the answer's arrival to the request's departure."""
        asked = self._exchange.asked
        if self._exchange.writing:
            self._transfer(self._answer, Part.RESPONSE)
            self._spend(Part.ACCESS, access, asked.delivered_ps)
            self._spend(Part.SERVICE, self._served_after(asked.delivered_ps), asked.delivered_ps)
        else:
            self._data_back()
            # The memory accesses first and serves when its turn comes.
            self._spend(Part.MEMORY_QUEUE, self._chain.at_ps - asked.delivered_ps - access, asked.delivered_ps)
            self._spend(Part.ACCESS, access, asked.delivered_ps)
        self._to(asked.delivered_ps, Part.MEMORY_QUEUE)
        if self._exchange.writing:
            # A memory works on what comes in: the slower of the two is what takes the time.
            self._spend(Part.SERVICE, self._served_before(asked.delivered_ps), asked.injected_ps)
        self._transfer(asked, Part.REQUEST)

    def _data_back(self) -> None:
        """The answer of a read: the memory's time is not hidden by the way, where it is the slower of the two."""
        answer = self._answer
        begin, route = answer.injected_ps, answer.route
        service = self._served_after(begin)
        served = max([turn.end_ps for turn in self._turns if turn.start_ps >= begin], default=begin)
        drain = route.latency_ps(answer.nbytes) - route.total_overhead_ps
        self._spend(Part.RESPONSE, route.total_overhead_ps + max(0, drain - service), begin)
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
