"""Hold the results of the evaluation of collectives: typed, as JSON and back, and as rows of tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kernbench.common.values import value
from kernbench.evaluation.ccl_fabrics import AlgorithmName, Fabric
from kernbench.evaluation.ccl_theory import RingTime
from kernbench.evaluation.outputs import TableValue, read_results, write_csv, write_json, write_parquet
from kernbench.messages.requests import BufferKind
from kernbench.topology.grid import Grid

DATA_FILE, SUMMARY_FILE, PARQUET_FILE = "ccl_sweep.json", "summary.csv", "ccl_sweep.parquet"
MOST_DRAWN = 10_000
"""SIPs, or cubes of one, that a figure may have."""
BUFFERS_FILE, RING_FILE = "ccl_buffers.csv", "ccl_ring.csv"


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


@value(kw_only=True)
class BufferPoint:
    """A message from a PE to the next of its cube, from the send to the sum with what that PE had; the longest of
    ``senders`` at once. ``right``: how many sums were as they should be."""

    buffer_kind: BufferKind
    senders: int
    nbytes: int
    latency_ns: float
    right: int


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

    def curve(
        self, algorithm: AlgorithmName, fabric: Fabric, kind: BufferKind | None = None
    ) -> tuple[CollectivePoint, ...]:
        """The points of a collective, from small to large; ``kind`` None: with the queues it has by default."""
        found = [point for point in self.collectives if (point.algorithm, point.fabric) == (algorithm, fabric)]
        wanted = kind or (found[0].buffer_kind if found else None)
        return tuple(sorted((p for p in found if p.buffer_kind == wanted), key=lambda point: point.nbytes))


_DOCUMENT = TypeAdapter(CclSweep)


def sweep_document(sweep: CclSweep) -> Any:
    """The results as plain data, as they are in the JSON file."""
    return _DOCUMENT.dump_python(sweep, mode="json")


def write_data(sweep: CclSweep, folder: Path) -> None:
    """Write the results as JSON."""
    write_json(folder / DATA_FILE, sweep_document(sweep))


def write_sweep(sweep: CclSweep, folder: Path) -> tuple[str, ...]:
    """Write the results to ``folder``: everything as JSON, and a row for each point in tables; the files' names."""
    write_data(sweep, folder)
    rows = collective_rows(sweep)
    write_csv(folder / SUMMARY_FILE, rows)
    write_parquet(folder / PARQUET_FILE, rows)
    written = [DATA_FILE, SUMMARY_FILE, PARQUET_FILE]
    for name, table in ((BUFFERS_FILE, [asdict(p) for p in sweep.buffers]), (RING_FILE, ring_rows(sweep))):
        if table:
            write_csv(folder / name, table)
            written.append(name)
    return tuple(written)


def read_sweep(folder: Path, made_by: str) -> CclSweep:
    """The results in ``folder``. InputError, which names the command ``made_by``, when there are none."""
    return read_results(folder / DATA_FILE, made_by, _DOCUMENT, _incomplete)


def _incomplete(sweep: CclSweep) -> str:
    """Say what the figures need that results lack; empty when nothing."""
    curves = {(a, f): sweep.curve(a, f) for a in sweep.algorithms for f in sweep.fabrics}
    missing = next((f"{algorithm} on {fabric.title}" for (algorithm, fabric), curve in curves.items() if not curve), "")
    if not curves or missing:
        return f"there are no collectives of {missing}" if missing else "there are no collectives"
    if not _can_be_drawn(sweep.cubes) or sweep.root_cube not in range(len(sweep.cubes)):
        return f"cubes are {sweep.cubes.w}×{sweep.cubes.h}, and cube {sweep.root_cube} is the root"
    for fabric in sweep.fabrics:
        if not _can_be_drawn(Grid(fabric.w, fabric.h)) or fabric.w * fabric.h != fabric.sips:
            return f"a {fabric.family} has {fabric.sips} SIPs in {fabric.w} columns and {fabric.h} rows"
    if not set.intersection(*({point.nbytes for point in curve} for curve in curves.values())):
        return "there is no size with which all collectives were run"
    return ""


def _can_be_drawn(grid: Grid) -> bool:
    return grid.w > 0 and grid.h > 0 and grid.w * grid.h <= MOST_DRAWN


def collective_rows(sweep: CclSweep) -> list[dict[str, TableValue]]:
    """A flat row for each collective, all with the same columns."""
    return [_collective_row(point) for point in sweep.collectives]


def _collective_row(point: CollectivePoint) -> dict[str, TableValue]:
    fabric = point.fabric
    row: dict[str, TableValue] = {"algorithm": point.algorithm, "sip_topology": fabric.kind, "sips": fabric.sips}
    row |= {"sip_w": fabric.w, "sip_h": fabric.h, "buffer_kind": point.buffer_kind, "size_bytes": point.nbytes}
    for name, timing in (("", point.distributed), ("direct_", point.direct)):
        row |= {f"{name}latency_ns": timing.latency_ns, f"{name}kernel_ns": timing.kernel_ns}
        row |= {f"{name}control_ns": timing.control_ns}
    row |= {"closed_form_ns": point.closed_ns, "contributions": point.contributions, "right": point.right}
    return row | {"same_both_ways": point.same, "passed": point.passed}


def ring_rows(sweep: CclSweep) -> list[dict[str, TableValue]]:
    """A flat row for each ring: what was measured, and every term of theory."""
    rows = []
    for point in sweep.rings:
        row: dict[str, TableValue] = {"ranks": point.ranks, "size_bytes": point.nbytes, "slot_size": point.slot_size}
        row |= {"n_slots": point.n_slots, "packet_bytes": point.packet_bytes}
        row |= {"hop_ns": point.hop_ns, "bw_gbs": point.bw_gbs, "kernel_ns": point.kernel_ns}
        row |= asdict(point.theory)
        rows.append(row | {"theory_ns": point.theory.ns, "beyond_theory": point.beyond_theory})
    return rows
