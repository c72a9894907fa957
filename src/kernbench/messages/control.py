"""Messages of the control path: host → io_cpu → m_cpu → pe_cpu and back. Every message is a header on the links."""

from __future__ import annotations

from typing import TypeAlias

from kernbench.common.values import value
from kernbench.messages.requests import IpcqInitMsg, KernelLaunchMsg, PeCoord, TensorMapping


@value
class MapOrder:
    """An order to enter a tensor's mapping in MMUs."""

    mapping: TensorMapping


@value
class UnmapOrder:
    """An order to remove the tensor at ``va_base`` from MMUs."""

    va_base: int


@value
class LaunchOrder:
    """An order to run a kernel; ``grid``: the numbers of participating PEs per cube, cubes per SIP, and SIPs."""

    launch: KernelLaunchMsg
    grid: tuple[int, int, int]


@value
class FillOrder:
    """An order to fill ``nbytes`` at ``pa`` with ``pattern`` by the M_CPU's DMA, as operation ``op``."""

    op: int
    pa: int
    nbytes: int
    pattern: bytes


@value
class QueueOrder:
    """An order to install a PE's queues."""

    setup: IpcqInitMsg


@value
class QueueRemoval:
    """An order to remove a PE's queues of one installation; None: of every installation."""

    installation: int | None = None


Order: TypeAlias = MapOrder | UnmapOrder | LaunchOrder | FillOrder | QueueOrder | QueueRemoval


@value(kw_only=True)
class CubeTargets:
    """The PEs of one cube that receive an order; without PEs the M_CPU itself is the receiver."""

    cube: int
    pes: tuple[int, ...]


@value(kw_only=True)
class SipOrder:
    """An order from the host to an io_cpu. ``following``: launches in order after it, in the same message."""

    request_id: int
    order: Order
    targets: tuple[CubeTargets, ...]
    following: tuple[SipOrder, ...] = ()


@value(kw_only=True)
class CubeOrder:
    """An order from an io_cpu to an m_cpu.

    ``start_ps``: the start time of kernels (``target_start_ns``), the same on all PEs of a SIP.
    ``start_row``: the row of the log that set the start time.
    """

    request_id: int
    order: Order
    pes: tuple[int, ...]
    start_ps: int
    start_row: int = -1


@value(kw_only=True)
class PeOrder:
    """An order from an m_cpu to a pe_cpu; ``mates`` are all PEs of the cube that receive the order."""

    request_id: int
    order: Order
    start_ps: int
    mates: tuple[int, ...]
    start_row: int = -1


@value(kw_only=True)
class PeReport:
    """The end of an order on a PE.

    A kernel ran from ``start_ps`` to ``end_ps``. ``late``: the order arrived after the common start.
    """

    pe: PeCoord
    start_ps: int = 0
    end_ps: int = 0
    late: bool = False
    error: Exception | None = None


@value(kw_only=True)
class Report:
    """An answer to an order: the reports of the PEs that carried out the order, and the sender's error, if any."""

    request_id: int
    pes: tuple[PeReport, ...]
    error: Exception | None = None


@value(kw_only=True)
class BarrierArrival:
    """The report of a pe_cpu to its m_cpu that this PE has reached the barrier of the launch."""

    request_id: int
    pe: int
    mates: tuple[int, ...]


@value(kw_only=True)
class BarrierRelease:
    """The report of an m_cpu to a pe_cpu that all PEs have reached the barrier.

    ``error``: the failure of a PE that will never reach the barrier.
    """

    request_id: int
    error: Exception | None = None


@value(kw_only=True)
class PartOrder:
    """An order from the host to an extra part; the program and the part agree on ``content``."""

    request_id: int
    content: object


ControlMessage: TypeAlias = PartOrder | SipOrder | CubeOrder | PeOrder | Report | BarrierArrival | BarrierRelease
