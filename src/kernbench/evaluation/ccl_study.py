"""Simulations of the collective evaluation, run in worker processes if requested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import methodcaller
from types import MappingProxyType
from typing import TypeAlias

from kernbench.ccl.config import CclConfig
from kernbench.ccl.install import find_algorithm
from kernbench.ccl.loading import load_ccl_config
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.evaluation.ccl_fabrics import (
    ALGORITHMS,
    INTERCUBE,
    ITEM_BYTES,
    SIZES,
    AlgorithmName,
    Fabric,
    document_of,
    fabric_of,
    fabrics,
    in_order,
)
from kernbench.evaluation.ccl_results import BufferPoint, CclSweep, CollectivePoint, RingPoint
from kernbench.evaluation.ccl_runs import (
    KINDS,
    LARGE_SLOT,
    MESSAGE_SIZES,
    RANKS,
    RING,
    RING_SIZES,
    SMALL_SLOT_SIZES,
    BufferRun,
    CollectiveRun,
    RingRun,
    least_slot,
)
from kernbench.evaluation.sweep_driver import worker_pool
from kernbench.messages.requests import BufferKind
from kernbench.topology.builder import Topology

StudyRun: TypeAlias = CollectiveRun | BufferRun | RingRun
StudyPoint: TypeAlias = CollectivePoint | BufferPoint | RingPoint

NO_CHANGES: Mapping[str, object] = MappingProxyType({})
LARGE = MappingProxyType({f"algorithms.{RING}.slot_size": LARGE_SLOT})


@value(kw_only=True)
class CclStudy:
    """The simulations of the evaluation.

    ``sizes``: contributions in bytes. ``own_sizes``: additional sizes on the unchanged machine. ``ring_sizes``: sizes
    of the rings over ``ranks`` SIPs with large slots. ``ccl``: a file; None: ./ccl.yaml, else the packaged file.
    ``jobs``: number of processes; 1: this process only.
    """

    topology: Topology
    fabrics: tuple[Fabric, ...] = fabrics()
    sizes: tuple[int, ...] = SIZES
    own_sizes: tuple[int, ...] = ()
    kinds: tuple[BufferKind, ...] = KINDS
    ranks: tuple[int, ...] = RANKS
    ring_sizes: tuple[int, ...] = RING_SIZES
    ccl: str | None = None
    jobs: int = 1

    def __post_init__(self) -> None:
        """Raise InputError for sizes that are not a multiple of the element size."""
        odd = [
            nbytes for nbytes in (*self.sizes, *self.own_sizes, *self.ring_sizes) if nbytes % ITEM_BYTES or nbytes < 1
        ]
        if odd:
            raise InputError(f"size {odd[0]}: contributions are of f32, so of a multiple of {ITEM_BYTES} bytes")

    @property
    def own(self) -> Fabric:
        """The fabric of the unchanged machine."""
        return fabric_of(self.topology.spec)

    @property
    def root_cube(self) -> int:
        """The cube that exchanges data with other SIPs: the last cube."""
        return self.topology.spec.cubes_per_sip - 1

    def run(self) -> CclSweep:
        """Run all simulations. Errors of a run are raised."""
        points, order = list(_run_each(tuple(self._runs()), self.jobs)), self._list_fabrics()
        return CclSweep(
            topology_hash=self.topology.digest,
            own=self.own,
            cubes=self.topology.spec.sip.cube_mesh.grid,
            root_cube=self.root_cube,
            collectives=tuple(
                sorted(
                    (point for point in points if isinstance(point, CollectivePoint)),
                    key=lambda point: (ALGORITHMS.index(point.algorithm), order.index(point.fabric)),
                )
            ),
            buffers=tuple(point for point in points if isinstance(point, BufferPoint)),
            rings=tuple(
                sorted(
                    (point for point in points if isinstance(point, RingPoint)),
                    key=lambda point: (-point.slot_size, point.ranks, point.nbytes),
                )
            ),
        )

    def _runs(self) -> Iterator[StudyRun]:
        """Yield the runs to simulate. The longest are first, so that all processes end at about the same time."""
        machine = document_of(self.topology)
        for ranks in sorted(self.ranks, reverse=True):
            sips = {f"algorithms.{RING}.world_size": ranks}
            yield RingRun(machine=machine, ccl=self._ccl(LARGE | sips), ranks=ranks, sizes=self.ring_sizes)
            small = tuple(nbytes for nbytes in self.ring_sizes if nbytes in SMALL_SLOT_SIZES)
            if small:
                yield RingRun(machine=machine, ccl=self._ccl(sips), ranks=ranks, sizes=small)
        yield from self.collective_runs()
        ccl = self._ccl()
        sizes = tuple(nbytes for nbytes in MESSAGE_SIZES if nbytes <= least_slot(ccl))
        yield from (BufferRun(machine=machine, ccl=ccl, buffer_kind=kind, sizes=sizes) for kind in self.kinds)

    def collective_runs(self) -> Iterator[CollectiveRun]:
        """Yield runs of all algorithms on all machines, and of the default algorithm with queues in other memories."""
        for fabric in sorted(self._list_fabrics(), key=lambda candidate: -candidate.sips):
            yield from (self._collective(algorithm, fabric) for algorithm in ALGORITHMS)
        default = find_algorithm(INTERCUBE, None, self._ccl()).config.buffer_kind
        among = self.own if self.own.sips > 1 else self.fabrics[0]
        yield from (self._collective(INTERCUBE, among, kind) for kind in self.kinds if kind != default)

    def _list_fabrics(self) -> tuple[Fabric, ...]:
        """Return the compared fabrics and the machine's own."""
        return tuple(dict.fromkeys((*self.fabrics, *((self.own,) if self.own.sips > 1 else ()))))

    def _collective(self, algorithm: AlgorithmName, fabric: Fabric, kind: BufferKind | None = None) -> CollectiveRun:
        changes: dict[str, object] = {
            "defaults.algorithm": algorithm,
            f"algorithms.{INTERCUBE}.root_cube": self.root_cube,
        }
        if kind is not None:
            changes[f"algorithms.{algorithm}.buffer_kind"] = kind
        return CollectiveRun(
            machine=document_of(self.topology),
            ccl=self._ccl(changes),
            algorithm=algorithm,
            fabric=fabric,
            sizes=in_order((*self.sizes, *(self.own_sizes if fabric == self.own else ()))),
            root_cube=self.root_cube,
        )

    def _ccl(self, changes: Mapping[str, object] = NO_CHANGES) -> CclConfig:
        return load_ccl_config(self.ccl, [f"{path}={value}" for path, value in changes.items()])


def _run_each(runs: Sequence[StudyRun], jobs: int) -> Iterator[StudyPoint]:
    """Yield the points of all runs, in order."""
    if jobs == 1:
        for run in runs:
            yield from run.run()
        return
    with worker_pool(jobs) as pool:
        for points in pool.map(methodcaller("run"), runs):
            yield from points
