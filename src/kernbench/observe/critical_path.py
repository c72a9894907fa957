"""Where the time of a run went: the critical path of each request, and of all of them together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernbench.common.ids import pe_part
from kernbench.engine.requests import RequestHandle
from kernbench.messages.control import PeReport
from kernbench.messages.requests import KernelLaunchMsg, MemoryWriteMsg, PeCoord, PeDmaMsg
from kernbench.observe.critical_path_control import ControlIndex, index_control, walk_down, walk_up
from kernbench.observe.critical_path_history import PeHistory, histories
from kernbench.observe.critical_path_kernel import KernelWalk
from kernbench.observe.critical_path_model import Chain, CriticalPath, Part
from kernbench.observe.critical_path_windows import KernelWindows, kernel_windows
from kernbench.observe.trace_log import Handled, TraceLog, Work


@dataclass(slots=True)
class PathFinder:
    """Finds critical paths in what ``log`` has seen, with memories, of a run with the requests ``handles``."""

    log: TraceLog
    handles: Sequence[RequestHandle]
    _control: ControlIndex = field(default_factory=ControlIndex)
    _histories: dict[PeCoord, PeHistory] = field(default_factory=dict)
    _windows: KernelWindows = field(init=False)
    _sends: dict[int, Work] = field(default_factory=dict)
    _done: list[RequestHandle] = field(default_factory=list)
    _by_id: dict[int, RequestHandle] = field(default_factory=dict)
    _known: dict[int, CriticalPath] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._windows = kernel_windows(self.handles)
        self._by_id = {each.request_id: each for each in self.handles}
        self._done = sorted((each for each in self.handles if each.done), key=lambda each: (_ended(each), _began(each)))
        messages = self.log.queues.messages
        self._sends = {work.op: work for work in self.log.works if work.op in messages} if messages else {}
        self._control = index_control(self.log.control())
        self._histories = histories(self.log)

    def of_request(self, handle: RequestHandle) -> CriticalPath:
        """The path from the submission of a finished request to its completion; its steps add up to that time."""
        found = self._known.get(handle.request_id)
        if found is None:
            found = self._known[handle.request_id] = self._walk(handle)
        return found

    def of_run(self, begin_ps: int, end_ps: int) -> CriticalPath:
        """The path between two times: from request to request, each submitted when the one before had ended."""
        chain = Chain(begin_ps, end_ps)
        self._through_requests(chain)
        return chain.finish(begin_ps, end_ps)

    def _walk(self, handle: RequestHandle) -> CriticalPath:
        chain = Chain(handle.submitted_ps, handle.ended_ps)
        self._through(chain, handle)
        # Where it has come to another request: that was submitted later, because of what had ended then.
        self._through_requests(chain)
        return chain.finish(handle.submitted_ps, handle.ended_ps, handle.request_id)

    def _through_requests(self, chain: Chain) -> None:
        """From request to request to the begin of the chain. The host program takes no time."""
        last = bisect_right(self._done, chain.at_ps, key=_ended)
        while last and chain.at_ps > chain.floor_ps:
            last -= 1
            # Of what ended then, that which was submitted last is why the host went on.
            chosen = self._done[last]
            chain.back_to(chosen.ended_ps, Part.HOST_WAIT)
            self._through(chain, chosen)
            last = min(last, bisect_right(self._done, chain.at_ps, key=_ended))
        chain.back_to(chain.floor_ps, Part.HOST_WAIT)

    def _through(self, chain: Chain, handle: RequestHandle) -> None:
        """From the end of a request to its submission, or to that of a launch whose kernel it waited for."""
        came_to = self._causes(chain, handle)
        chain.back_to(came_to.submitted_ps, Part.WAIT)

    def _causes(self, chain: Chain, handle: RequestHandle) -> RequestHandle:
        """Towards the submission of a request, which is returned."""
        report = walk_up(chain, self._control, handle.request_id)
        if report is None:
            part = Part.RAW if isinstance(handle.msg, PeDmaMsg) else Part.HOST_TRANSFER
            chain.back_to(handle.submitted_ps, part)
        elif isinstance(handle.msg, KernelLaunchMsg):
            return self._walk_launch(chain, handle, report)
        else:
            waiting = Part.FILL if isinstance(handle.msg, MemoryWriteMsg) else Part.DOWN
            order = self._control.order_at(report.src, handle.request_id, chain.at_ps)
            if order is not None:
                walk_down(chain, self._control, order, waiting)
        return handle

    def _walk_launch(self, chain: Chain, handle: RequestHandle, report: Handled) -> RequestHandle:
        reports = handle.outcome.reports if handle.outcome is not None else ()
        pe = next((each.pe for each in reports if pe_part(*each.pe, "pe_cpu") == report.src), None)
        if pe is None:
            return handle
        walk = KernelWalk(
            machine=self.log.machine,
            histories=self._histories,
            chain=chain,
            pe=pe,
            log=self.log,
            control=self._control,
            windows=self._windows,
            sends=self._sends,
            launch_id=handle.request_id,
        )
        walk.walk()
        first = self._windows.reports.get((walk.launch_id, walk.pe))
        if first is not None and chain.at_ps > chain.floor_ps:
            self._before_kernel(chain, walk.launch_id, first)
        return self._by_id.get(walk.launch_id, handle)

    def _before_kernel(self, chain: Chain, request_id: int, report: PeReport) -> None:
        """The orders: a PE starts with the others, or late because it was busy or got its order late."""
        if report.late:
            order = self._control.order_at(pe_part(*report.pe, "pe_cpu"), request_id, chain.at_ps)
            waiting = Part.EARLIER_KERNEL
        else:
            nodes = self.log.machine.graph.nodes
            sip = report.pe[0]
            order = self._control.last_order(request_id, chain.at_ps, lambda node: nodes[node].sip == sip)
            waiting = Part.COMMON_START
        if order is not None:
            walk_down(chain, self._control, order, waiting)


def _ended(handle: RequestHandle) -> int:
    return handle.ended_ps


def _began(handle: RequestHandle) -> int:
    return handle.submitted_ps
