"""Results of the collective evaluation: collectives, messages and rings, each as a table row."""

from __future__ import annotations

from dataclasses import asdict

from kernbench.common.values import value
from kernbench.evaluation.ccl_fabrics import AlgorithmName, Fabric
from kernbench.evaluation.ccl_theory import RingTime
from kernbench.evaluation.outputs import TableValue
from kernbench.messages.requests import BufferKind
from kernbench.topology.grid import Grid


@value(kw_only=True)
class CollectiveTime:
    """The time of a collective in ns.

    ``latency_ns``: from the call of the last rank to the end of the collective on the last rank. ``kernel_ns``: from
    the start of the kernels on the last SIP to the end of the last kernel.
    """

    latency_ns: float
    kernel_ns: float

    @property
    def control_ns(self) -> float:
        """The time of the control path in ns: launch requests to the PEs, and completion reports to the host."""
        return self.latency_ns - self.kernel_ns


@value(kw_only=True)
class CollectivePoint:
    """A collective with contributions of ``nbytes``: a row of every cube, or one tensor per rank.

    ``distributed``: called by ranks, ``dist.all_reduce``. ``direct``: launched by one program on every SIP.
    ``closed_ns``: closed form of the kernel with ring buffers in TCM. ``right``: number of the ``contributions`` places
    that have the complete sum at the end, in both cases. ``same``: both cases have identical bits everywhere.
    """

    algorithm: AlgorithmName
    fabric: Fabric
    buffer_kind: BufferKind
    nbytes: int
    distributed: CollectiveTime
    direct: CollectiveTime
    closed_ns: float | None
    contributions: int
    right: int
    same: bool

    @property
    def passed(self) -> bool:
        """True if all values are correct."""
        return self.same and self.right == self.contributions

    @property
    def title(self) -> str:
        """The title, such as ``sip_allreduce, torus 2×2, tcm, 4096 bytes``."""
        return f"{self.algorithm}, {self.fabric.title}, {self.buffer_kind}, {self.nbytes} bytes"

    @property
    def row(self) -> dict[str, TableValue]:
        """The point as a table row."""
        fabric = self.fabric
        row: dict[str, TableValue] = {"algorithm": self.algorithm, "sip_topology": fabric.kind, "sips": fabric.sips}
        row |= {"sip_w": fabric.w, "sip_h": fabric.h, "buffer_kind": self.buffer_kind, "size_bytes": self.nbytes}
        for name, timing in (("", self.distributed), ("direct_", self.direct)):
            row |= {f"{name}latency_ns": timing.latency_ns, f"{name}kernel_ns": timing.kernel_ns}
            row |= {f"{name}control_ns": timing.control_ns}
        row |= {"closed_form_ns": self.closed_ns, "contributions": self.contributions, "right": self.right}
        return row | {"same_both_ways": self.same, "passed": self.passed}


@value(kw_only=True)
class BufferPoint:
    """Messages from PEs to the next PE of their cube. Each receiver adds its own data.

    The time is from send to sum, the longest of ``senders`` simultaneous messages. ``right``: number of correct sums.
    """

    buffer_kind: BufferKind
    senders: int
    nbytes: int
    latency_ns: float
    right: int

    @property
    def passed(self) -> bool:
        """True if all sums are correct."""
        return self.right == self.senders

    @property
    def title(self) -> str:
        """The title, such as ``message in tcm, 8 at once, 4096 bytes``."""
        return f"message in {self.buffer_kind}, {self.senders} at once, {self.nbytes} bytes"

    @property
    def row(self) -> dict[str, TableValue]:
        """The point as a table row."""
        return asdict(self)


@value(kw_only=True)
class RingPoint:
    """The kernel time of reduce-scatter and all-gather on a ring of ``ranks`` SIPs with one PE each, and its theory.

    ``timing_only``: no values were computed.
    """

    ranks: int
    nbytes: int
    slot_size: int
    n_slots: int
    packet_bytes: int
    hop_ns: float
    bw_gbs: float
    kernel_ns: float
    theory: RingTime
    timing_only: bool = True

    @property
    def beyond_theory(self) -> float:
        """The time beyond the closed form with its end terms, as a share of the closed form."""
        return self.kernel_ns / self.theory.ns - 1

    @property
    def passed(self) -> None:
        """Correctness: None, because no values were computed."""

    @property
    def title(self) -> str:
        """The title, such as ``ring of 16, 4096 bytes``."""
        return f"ring of {self.ranks}, {self.nbytes} bytes"

    @property
    def row(self) -> dict[str, TableValue]:
        """The point as a table row, with every term of the theory."""
        row: dict[str, TableValue] = {"ranks": self.ranks, "size_bytes": self.nbytes, "slot_size": self.slot_size}
        row |= {"n_slots": self.n_slots, "packet_bytes": self.packet_bytes}
        row |= {"hop_ns": self.hop_ns, "bw_gbs": self.bw_gbs, "kernel_ns": self.kernel_ns}
        return row | asdict(self.theory) | {"theory_ns": self.theory.ns, "beyond_theory": self.beyond_theory}


@value
class SizeComparison:
    """The reference latency and the simulated latency of one size."""

    nbytes: int
    reference_ns: float
    latency_ns: float

    @property
    def error(self) -> float:
        """The simulation error as a share of the reference."""
        return self.latency_ns / self.reference_ns - 1

    @property
    def row(self) -> dict[str, TableValue]:
        """The comparison as a table row."""
        return {
            "size_bytes": self.nbytes,
            "reference_ns": self.reference_ns,
            "latency_ns": self.latency_ns,
            "error": self.error,
        }


@value(kw_only=True)
class CclSweep:
    """The results of the evaluation on all variants of one machine.

    ``topology_hash``: hash of the base machine. ``own``: the fabric of the base machine. ``cubes``: columns and rows of
    cubes in a SIP. ``root_cube``: the cube that exchanges data with other SIPs.
    """

    topology_hash: str
    own: Fabric
    cubes: Grid
    root_cube: int
    collectives: tuple[CollectivePoint, ...]
    buffers: tuple[BufferPoint, ...]
    rings: tuple[RingPoint, ...]

    @property
    def fabrics(self) -> tuple[Fabric, ...]:
        """The fabrics, in order."""
        return tuple(dict.fromkeys(point.fabric for point in self.collectives))

    @property
    def algorithms(self) -> tuple[AlgorithmName, ...]:
        """The algorithms, in order."""
        return tuple(dict.fromkeys(point.algorithm for point in self.collectives))

    @property
    def common_sizes(self) -> list[int]:
        """The sizes in bytes that were simulated for every collective, in ascending order."""
        curves = (self.curve(algorithm, fabric) for algorithm in self.algorithms for fabric in self.fabrics)
        return sorted(set.intersection(*({point.nbytes for point in curve} for curve in curves)))

    def curve(
        self, algorithm: AlgorithmName, fabric: Fabric, kind: BufferKind | None = None
    ) -> tuple[CollectivePoint, ...]:
        """Return the points of a collective by ascending size. ``kind``: memory of the queues; None: the default."""
        points = [point for point in self.collectives if (point.algorithm, point.fabric) == (algorithm, fabric)]
        wanted = kind or (points[0].buffer_kind if points else None)
        return tuple(sorted((p for p in points if p.buffer_kind == wanted), key=lambda point: point.nbytes))
