"""The control path of a request, walked backwards: from the host's last report down to a PE, and from a PE up again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kernbench.common.ids import HOST
from kernbench.messages.control import BarrierArrival, BarrierRelease, CubeOrder, PeOrder, Report, SipOrder
from kernbench.observe.critical_path_model import Chain, Part
from kernbench.observe.trace_log import Handled

ORDERS = SipOrder | CubeOrder | PeOrder


@dataclass(slots=True)
class ControlIndex:
    """Handled messages by who got them for which request."""

    to: dict[tuple[str, int], list[Handled]] = field(default_factory=dict)
    orders_to_pes: dict[int, list[Handled]] = field(default_factory=dict)

    def report_at(self, node: str, request_id: int, when: int) -> Handled | None:
        """The report that a part had handled by ``when``, the last one."""
        found = [each for each in self._to(node, request_id, when) if isinstance(each.message, Report)]
        return max(found, key=lambda each: each.handled_ps, default=None)

    def order_at(self, node: str, request_id: int, when: int) -> Handled | None:
        """The order that a part had handled by ``when``, the last one."""
        found = [each for each in self._to(node, request_id, when) if isinstance(each.message, ORDERS)]
        return max(found, key=lambda each: each.handled_ps, default=None)

    def last_order(self, request_id: int, when: int, among: Callable[[str], bool]) -> Handled | None:
        """The order that was the last to be at a PE by ``when``, of those whose CPUs are ``among`` those asked for."""
        orders = self.orders_to_pes.get(request_id, ())
        found = [each for each in orders if each.handled_ps <= when and among(each.dst)]
        return max(found, key=lambda each: each.handled_ps, default=None)

    def release_at(self, node: str, request_id: int, when: int) -> Handled | None:
        """The end of a barrier that a PE heard of at ``when``."""
        for each in self.to.get((node, request_id), ()):
            if isinstance(each.message, BarrierRelease) and each.handled_ps == when:
                return each
        return None

    def arrival_at(self, node: str, request_id: int, when: int) -> Handled | None:
        """The last arrival at a barrier that an M_CPU had handled by ``when``."""
        found = [each for each in self._to(node, request_id, when) if isinstance(each.message, BarrierArrival)]
        return max(found, key=lambda each: each.handled_ps, default=None)

    def _to(self, node: str, request_id: int, when: int) -> list[Handled]:
        return [each for each in self.to.get((node, request_id), ()) if each.handled_ps <= when]


def index_control(messages: Iterable[Handled]) -> ControlIndex:
    """An index of messages."""
    index = ControlIndex()
    for each in messages:
        index.to.setdefault((each.dst, each.message.request_id), []).append(each)
        if isinstance(each.message, PeOrder):
            index.orders_to_pes.setdefault(each.message.request_id, []).append(each)
    return index


def walk_up(chain: Chain, index: ControlIndex, request_id: int) -> Handled | None:
    """From the host's last report to the departure of the first one of that chain, which is returned."""
    node, lowest = HOST, None
    while (report := index.report_at(node, request_id, chain.at_ps)) is not None:
        chain.back_to(report.transfer.injected_ps, Part.UP)
        node, lowest = report.src, report
    return lowest


def walk_down(chain: Chain, index: ControlIndex, order: Handled, waiting: Part) -> None:
    """From where the path has come to the departure of a request from the host, along the orders up to ``order``.

    ``waiting`` is the time since ``order`` was handled.
    """
    chain.back_to(order.handled_ps, waiting)
    request_id = order.message.request_id
    above: Handled | None = order
    while above is not None:
        chain.back_to(above.transfer.injected_ps, Part.DOWN)
        above = index.order_at(above.src, request_id, chain.at_ps)
