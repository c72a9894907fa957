"""The control path: host → io_cpu → m_cpu → pe_cpu and back. Every message costs a header on the links."""

from __future__ import annotations

from typing import TypeAlias

from kernbench.common.values import value
from kernbench.messages.requests import IpcqInitMsg, KernelLaunchMsg, PeCoord, TensorMapping


@value
class MapOrder:
    """MMUs learn where a tensor lies."""

    mapping: TensorMapping


@value
class UnmapOrder:
    """MMUs forget the tensor at ``va_base``."""

    va_base: int


@value
class LaunchOrder:
    """PEs run a kernel; ``grid``: how many different PEs of a cube, cubes of a SIP and SIPs take part."""

    launch: KernelLaunchMsg
    grid: tuple[int, int, int]


@value
class FillOrder:
    """The M_CPU's DMA fills ``nbytes`` at ``pa`` with ``pattern``, operation ``op``."""

    op: int
    pa: int
    nbytes: int
    pattern: bytes


@value
class QueueOrder:
    """A PE's queues are installed."""

    setup: IpcqInitMsg


@value
class QueueRemoval:
    """A PE's queues are taken off: those of one installation, None: of any."""

    installation: int | None = None


Order: TypeAlias = MapOrder | UnmapOrder | LaunchOrder | FillOrder | QueueOrder | QueueRemoval


@value(kw_only=True)
class CubeTargets:
    """The PEs of one cube that an order is for; none: it is for the M_CPU itself."""

    cube: int
    pes: tuple[int, ...]


@value(kw_only=True)
class SipOrder:
    """Host to io_cpu."""

    request_id: int
    order: Order
    targets: tuple[CubeTargets, ...]


@value(kw_only=True)
class CubeOrder:
    """io_cpu to m_cpu. ``start_ps`` is when kernels start (``target_start_ns``), the same on all PEs of a SIP.

    ``start_row``: the row of the log after which it was set.
    """

    request_id: int
    order: Order
    pes: tuple[int, ...]
    start_ps: int
    start_row: int = -1


@value(kw_only=True)
class PeOrder:
    """m_cpu to pe_cpu; ``mates`` are all PEs of this cube that got the order."""

    request_id: int
    order: Order
    start_ps: int
    mates: tuple[int, ...]
    start_row: int = -1


@value(kw_only=True)
class PeReport:
    """The end of an order on a PE. A kernel ran from ``start_ps`` to ``end_ps``; ``late``: it missed the start."""

    pe: PeCoord
    start_ps: int = 0
    end_ps: int = 0
    late: bool = False
    error: Exception | None = None


@value(kw_only=True)
class Report:
    """An answer on its way up: what the PEs below reported, and the failure of the part itself, if any."""

    request_id: int
    pes: tuple[PeReport, ...]
    error: Exception | None = None


@value(kw_only=True)
class BarrierArrival:
    """pe_cpu to m_cpu: this PE has come to the barrier of the launch."""

    request_id: int
    pe: int
    mates: tuple[int, ...]


@value(kw_only=True)
class BarrierRelease:
    """m_cpu to pe_cpu: all have come; ``error``: one of them never will, because it failed."""

    request_id: int
    error: Exception | None = None


@value(kw_only=True)
class PartOrder:
    """Host to an extra part; ``content`` is between the program and the part."""

    request_id: int
    content: object


ControlMessage: TypeAlias = PartOrder | SipOrder | CubeOrder | PeOrder | Report | BarrierArrival | BarrierRelease
