"""Diagnostics of queues: a dump of their pointers, and a printed line for every message."""

from __future__ import annotations

import os
import sys

from kernbench.common.errors import IpcqDeadlock
from kernbench.common.ids import pe_name
from kernbench.common.units import ps_to_ns
from kernbench.engine.engine import GraphEngine
from kernbench.engine.hooks import QueueEvent
from kernbench.messages.requests import PeCoord

__all__ = ["TRACE_VARIABLE", "CclTrace", "IpcqDeadlock", "pointer_dump", "trace_ccl", "trace_if_asked"]

TRACE_VARIABLE = "KERNBENCH_CCL_TRACE"


def pointer_dump(engine: GraphEngine) -> str:
    """Return a line for every queue pair of the machine, sorted by PE, then in the order of installation.

    A line shows the peer, my_head, my_tail, peer_head_cache, peer_tail_cache, and the address of the receiving ring.
    After a program was abandoned while its kernels waited for queues, the lines show the state at that moment, until
    queues are installed or carry messages again.
    """
    return "\n".join(engine.pointers.lines)


class CclTrace:
    """Printer of a line for each send of a message, and for each receive once the kernel has the data."""

    def __init__(self) -> None:
        self._posted: set[tuple[PeCoord, str, int]] = set()

    def __call__(self, event: QueueEvent) -> None:
        """Print the line of an event, if it has one."""
        key = (event.pe, event.direction, event.sequence)
        if event.kind == "arrive":
            if key not in self._posted:
                return
            self._posted.remove(key)
        elif event.kind == "recv" and not event.nbytes:
            # The receive is posted before the message arrives. Its line is printed at the arrival.
            self._posted.add(key)
            return
        way = "send ->" if event.kind == "send" else "recv <-"
        print(
            f"[ccl] {ps_to_ns(event.time_ps):14.3f} ns  {pe_name(event.pe):<18} {way} {event.direction:<11} "
            f"{event.nbytes:>8} bytes  #{event.sequence}  {pe_name(event.peer)}",
            file=sys.stdout,
        )


def trace_ccl(engine: GraphEngine) -> None:
    """Print every message of a machine's queues on stdout from now on. A second call has no effect."""
    hook = engine.machine.hooks.queue
    if not any(isinstance(listener, CclTrace) for listener in hook.listeners):
        hook.subscribe(CclTrace())


def trace_if_asked(engine: GraphEngine) -> None:
    """Call ``trace_ccl`` if the environment sets KERNBENCH_CCL_TRACE=1."""
    if os.environ.get(TRACE_VARIABLE, "") not in ("", "0"):
        trace_ccl(engine)
