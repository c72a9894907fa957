"""Hold the results of the evaluation of collectives: collectives, messages and rings, each a row of a table."""

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
    """A collective in ns. ``latency_ns``: from the last rank's call to the end of it on the last rank; ``kernel_ns``:
    from the start of the kernels on the last SIP to the end of the last kernel."""

    latency_ns: float
    kernel_ns: float

    @property
    def control_ns(self) -> float:
        """The control path: the order on its way to the PEs, and the reports on theirs to the host."""
        return self.latency_ns - self.kernel_ns


@value(kw_only=True)
class CollectivePoint:
    """A collective of contributions of ``nbytes``: a row of every cube, or one tensor a rank.

    ``distributed``: by ranks, ``dist.all_reduce``; ``direct``: launched by one program on every SIP. ``closed_ns``: the
    closed form of the kernel, when rings lie in TCM. ``right`` of ``contributions`` places ended with the whole sum,
    both ways; ``same``: the two ways left the same bits everywhere.
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
        """True if all numbers are correct."""
        return self.same and self.right == self.contributions

    @property
    def title(self) -> str:
        """Such as ``sip_allreduce, torus 2×2, tcm, 4096 bytes``."""
        return f"{self.algorithm}, {self.fabric.title}, {self.buffer_kind}, {self.nbytes} bytes"

    @property
    def row(self) -> dict[str, TableValue]:
        """Return it as a row of a table."""
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
    """A message from a PE to the next of its cube, from the send to the sum with what that PE had; the longest of
    ``senders`` at once. ``right``: how many sums were as they should be."""

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
        """Such as ``message in tcm, 8 at once, 4096 bytes``."""
        return f"message in {self.buffer_kind}, {self.senders} at once, {self.nbytes} bytes"

    @property
    def row(self) -> dict[str, TableValue]:
        """Return it as a row of a table."""
        return asdict(self)


@value(kw_only=True)
class RingPoint:
    """Reduce-scatter and all-gather round a ring of ``ranks`` SIPs, a PE each: the kernel, and what theory says.

    ``timing_only``: no numbers were computed.
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
        """The time beyond the closed form with its end terms, as a share of that."""
        return self.kernel_ns / self.theory.ns - 1

    @property
    def passed(self) -> None:
        """None: no numbers were computed."""

    @property
    def title(self) -> str:
        """Such as ``ring of 16, 4096 bytes``."""
        return f"ring of {self.ranks}, {self.nbytes} bytes"

    @property
    def row(self) -> dict[str, TableValue]:
        """Return it as a row of a table, with every term of theory."""
        row: dict[str, TableValue] = {"ranks": self.ranks, "size_bytes": self.nbytes, "slot_size": self.slot_size}
        row |= {"n_slots": self.n_slots, "packet_bytes": self.packet_bytes}
        row |= {"hop_ns": self.hop_ns, "bw_gbs": self.bw_gbs, "kernel_ns": self.kernel_ns}
        return row | asdict(self.theory) | {"theory_ns": self.theory.ns, "beyond_theory": self.beyond_theory}


@value(kw_only=True)
class CclSweep:
    """All results on machines made of one; ``topology_hash`` is that one's, ``own`` how its SIPs are joined.

    ``cubes``: columns and rows of them in a SIP; ``root_cube``: where SIPs meet.
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
        """The ways of joining SIPs, in order."""
        return tuple(dict.fromkeys(point.fabric for point in self.collectives))

    @property
    def algorithms(self) -> tuple[AlgorithmName, ...]:
        """The algorithms in order."""
        return tuple(dict.fromkeys(point.algorithm for point in self.collectives))

    @property
    def common_sizes(self) -> list[int]:
        """The sizes that every collective was run with, from small to large."""
        curves = (self.curve(algorithm, fabric) for algorithm in self.algorithms for fabric in self.fabrics)
        return sorted(set.intersection(*({point.nbytes for point in curve} for curve in curves)))

    def curve(
        self, algorithm: AlgorithmName, fabric: Fabric, kind: BufferKind | None = None
    ) -> tuple[CollectivePoint, ...]:
        """The points of a collective, from small to large; ``kind`` None: with the queues it has by default."""
        found = [point for point in self.collectives if (point.algorithm, point.fabric) == (algorithm, fabric)]
        wanted = kind or (found[0].buffer_kind if found else None)
        return tuple(sorted((p for p in found if p.buffer_kind == wanted), key=lambda point: point.nbytes))
