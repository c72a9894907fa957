"""The CPU of an IO chiplet: it forwards orders to the cubes and sets the common start of a launch."""

from __future__ import annotations

from kernbench.common.ids import cube_part, pe_part
from kernbench.common.units import transfer_ps
from kernbench.components.control_cpu import ControlCpu
from kernbench.di.registry import register
from kernbench.messages.control import CubeOrder, CubeTargets, LaunchOrder, Report, SipOrder


@register("builtin.io_cpu", kind="io_cpu")
class IoCpu(ControlCpu):
    """The IO_CPU: it sends an order to each cube, adds the common start to launches, and gathers the answers."""

    def handle(self, message: object) -> None:
        """Act on an order from the host, or on a cube's report."""
        match message:
            case SipOrder():
                self._fan_out(message)
            case Report():
                self.collect(message)
            case _:
                super().handle(message)

    def _fan_out(self, message: SipOrder) -> None:
        self.gather(message, len(message.targets))
        start = self._common_start(message) if isinstance(message.order, LaunchOrder) else 0
        for target in message.targets:
            order = CubeOrder(
                request_id=message.request_id,
                order=message.order,
                pes=target.pes,
                start_ps=start,
                start_row=self.cause[0],
            )
            self.tell(self._m_cpu(target), order)

    def _m_cpu(self, target: CubeTargets) -> str:
        return cube_part(self._sip, target.cube, "m_cpu")

    @property
    def _sip(self) -> int:
        assert self.node.sip is not None
        return self.node.sip

    def _common_start(self, message: SipOrder) -> int:
        """Return the earliest time in ps at which every target PE of the SIP can have received the order.

        Each order waits for earlier orders on the slowest link that the orders share. The M_CPU handles the order
        before forwarding it. An idle fabric adds no other delay.
        """
        latest = 0
        for i, target in enumerate(message.targets):
            m_cpu = self._m_cpu(target)
            handled = self._header_ps(self.node.id, m_cpu, i) + self.machine.component(m_cpu).overhead_ps
            for j, pe in enumerate(target.pes):
                pe_cpu = pe_part(self._sip, target.cube, pe, "pe_cpu")
                at_pe = handled + self._header_ps(m_cpu, pe_cpu, j) + self.machine.component(pe_cpu).overhead_ps
                latest = max(latest, at_pe)
        return self.clock.time + latest

    def _header_ps(self, src: str, dst: str, before: int) -> int:
        """Return the time in ps of a header from ``src`` to ``dst`` behind ``before`` other headers."""
        route = self.machine.route(src, dst)
        header = self.machine.header_bytes
        return route.latency_ps(header) + before * transfer_ps(header, route.bottleneck_gbs)
