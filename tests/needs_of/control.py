"""What messages of the control path need, and what the host asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kernbench.core.log import LAUNCH, PARENT, PART, By, Kind, Row
from kernbench.messages.control import (
    BarrierArrival,
    BarrierRelease,
    CubeOrder,
    LaunchOrder,
    PeOrder,
    QueueRemoval,
    Report,
    SipOrder,
)
from kernbench.transport import Transfer
from needs_of.kernels import Kernels
from needs_of.recorded import Program
from needs_of.rows import Need, Needs, Run


class Control:
    """Orders and reports, launches, fills, and the requests of the host."""

    def __init__(self, run: Run, kernels: Kernels) -> None:
        self.run = run
        self._kernels = kernels

    def derive(self) -> None:
        """The needs of their rows."""
        run = self.run
        for row in run.of_kind[Kind.REQUEST]:
            run.needs[row] = run.host(run.rows[row + LAUNCH])
        for row in (*run.of_kind[Kind.MEMORY_WRITE], *run.of_kind[Kind.MEMORY_READ]):
            run.needs[row] = self._host_op(row)
        self._control_path()
        self._launches()

    def _host_op(self, row: Row) -> Needs:
        """A transfer of the host begins with its request, whose row is the one before."""
        before = [each for each in self.run.of_kind[Kind.REQUEST] if each < row]
        return self.run.host(self.run.rows[before[-1] + LAUNCH])

    def _control_path(self) -> None:
        for transfer, message in self.run.control:
            self.run.needs[transfer.row] = self._of_message(transfer, message)
        fills: dict[int, list[Row]] = {}
        for row in self.run.of_kind[Kind.RAW]:
            if self.run.rows[row + LAUNCH] >= 0:
                fills.setdefault(self.run.rows[row + PART], []).append(row)
        channels = self.run.machine.spec.cube.components.m_cpu.attrs.dma_channels
        for part, made in fills.items():
            ends = [self.run.ended(each, By.ENGINE) for each in made]
            for number, row in enumerate(made):
                orders = self.run.sent(CubeOrder, self.run.rows[row + LAUNCH], dst=self.run.log.parts[part])
                self.run.needs[row] = [*self.run.after(orders), *self.run.nth(ends, number - channels)]

    def _of_message(self, transfer: Transfer, message: Any) -> Needs:
        """What a message of the control path is sent after."""
        src, dst, request = transfer.port.name, transfer.route.links[-1].dst, message.request_id
        match message:
            case SipOrder():
                needs = self.run.host(request)
            case CubeOrder():
                needs = self.run.after(self.run.sent(SipOrder, request, dst=src))
            case PeOrder():
                needs = self.run.after(self.run.sent(CubeOrder, request, dst=src))
            case BarrierArrival(pe=pe):
                number = self.run.sent(BarrierArrival, request, src=src).index(transfer.row)
                needs = self._kernels.arrivals[(*self._coord(src)[:2], pe), request][number]
            case BarrierRelease():
                number = self.run.sent(BarrierRelease, request, dst=dst).index(transfer.row)
                mates = {other.port.name for other in self.run.control_of[BarrierArrival, request]}
                came = [self.run.sent(BarrierArrival, request, src=mate, dst=src) for mate in mates]
                needs = self.run.after((each[number] for each in came if each), By.BARRIER)
            case Report() if src.endswith("pe_cpu"):
                needs = self._pe_report(src, request)
            case _:
                reports = self.run.after(self.run.sent(Report, request, dst=src))
                needs = [*reports, *self.run.after(self._filled(src, request), By.OPERAND)]
        return needs

    def _filled(self, m_cpu: str, request: int) -> list[Row]:
        """The fills that an M_CPU does for a request."""
        here = self.run.log.part(m_cpu), request
        return [
            row
            for row in self.run.of_kind[Kind.RAW]
            if (self.run.rows[row + PART], self.run.rows[row + LAUNCH]) == here
        ]

    @staticmethod
    def _coord(node: str) -> tuple[int, ...]:
        """Where a part is: its SIP, its cube, its PE."""
        return tuple(int(found) for found in re.findall(r"(?:sip|cube|pe)(\d+)\.", f"{node}."))

    def _programs(self, node: str) -> list[Program]:
        """The kernels of the PE that a part belongs to."""
        sip, cube, pe = self._coord(node)
        return self.run.engine.programs.get((sip, cube, pe), [])

    def _pe_report(self, src: str, request: int) -> Needs:
        ((order, message),) = (
            (transfer.row, message)
            for transfer, message in self.run.control
            if isinstance(message, PeOrder) and message.request_id == request and transfer.route.links[-1].dst == src
        )
        programs = self._programs(src)
        if isinstance(message.order, LaunchOrder):
            (program,) = (each for each in programs if each.launch == request)
            return self._kernels.over[program]
        needs = [self.run.ended(order, By.ORDER)]
        if isinstance(message.order, QueueRemoval):
            needs += self._behind([each for each in programs if each.launch < request])
        return needs

    def _behind(self, programs: Iterable[Program]) -> Needs:
        """The ends of kernels on a PE, for what is in line behind them."""
        found = [each for program in programs for each in self._kernels.over[program]]
        return [each if each.by is By.CREDIT else each._replace(by=By.KERNEL) for each in found]

    def _launches(self) -> None:
        for row in self.run.of_kind[Kind.LAUNCH]:
            launch, order = self.run.rows[row + LAUNCH], self.run.rows[row + PARENT]
            here = self.run.log.parts[self.run.rows[row + PART]]
            programs = self._programs(here)
            at = [each.launch for each in programs].index(launch)
            ((start_ps, io_cpu),) = (
                (message.start_ps, f"{here.partition('.')[0]}.io_cpu")
                for transfer, message in self.run.control
                if transfer.row == order
            )
            (first,) = self.run.sent(SipOrder, launch, dst=io_cpu)
            needs = [self.run.ended(order, By.ORDER), Need(start_ps, first, By.START)]
            self.run.needs[row] = needs + self._behind(programs[:at])
