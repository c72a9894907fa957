"""The process group of a context: its ranks, its queues on the machine, and the calls of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from kernbench.ccl.config import AlgorithmConfig, QueueSettings, SlotSize
from kernbench.ccl.install import (
    InstalledQueues,
    IpcqPlan,
    edges_of,
    find_algorithm,
    layout_of,
    plan_of,
    prepare_queues,
    release_rings,
)
from kernbench.ccl.loading import Algorithm, CclLike, load_algorithm
from kernbench.ccl.queues import unite
from kernbench.ccl.rings import SipRing, ring_among, ring_of_all
from kernbench.ccl.topologies import QueueEdge, fabric_edges, world_size_of
from kernbench.common.errors import InputError, IpcqError, SimulationDeadlock
from kernbench.common.values import state
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.runtime_api.collective_calls import CallBook
from kernbench.runtime_api.rank_scheduler import RankScheduler
from kernbench.runtime_api.ranks import RankGate, Worker
from kernbench.runtime_api.requests import Requests
from kernbench.runtime_api.types import Devices
from kernbench.topology.spec import TopologySpec


class QueueInstaller:
    """The installer of one context's queues on the machine of ``engine``."""

    __slots__ = ("_fixed", "_removals", "_requests", "_there", "engine")

    def __init__(self, engine: GraphEngine, requests: Requests) -> None:
        self.engine, self._requests = engine, requests
        self._there: list[InstalledQueues] = []
        self._fixed: dict[str, InstalledQueues] = {}
        self._removals: dict[int, list[RequestHandle]] = {}

    def install(self, algorithm: Algorithm, *, with_fabric: bool) -> InstalledQueues:
        """Install the queues of an algorithm, optionally with those between all SIPs.

        Return when every PE has its queues.
        """
        spec = self.engine.spec
        edges = unite(edges_of(algorithm, spec), fabric_edges(spec) if with_fabric else ())
        queues = prepare_queues(self.engine, edges, algorithm.config)
        self._there.append(queues)
        self._requests.transfer(queues.messages)
        return queues

    def install_once(
        self, key: str, edges: Sequence[QueueEdge], settings: QueueSettings, slots: Mapping[str, SlotSize]
    ) -> None:
        """Install queues of a fixed pattern, unless ``key`` has been installed; they stay until the context ends.

        Return when every PE has its queues. Process groups have other queues on the same PEs.
        """
        if key not in self._fixed:
            queues = self._fixed[key] = prepare_queues(self.engine, edges, settings, slots)
            self._there.append(queues)
            self._requests.transfer(queues.messages)

    def remove(self, queues: InstalledQueues) -> None:
        """Remove queues once the kernels of their PEs have ended, free their memory, and note lost messages.

        If a rank is stopped during the removal, the next call completes the removal. Raises IpcqError if the queues
        have been removed already.
        """
        if queues not in self._there:
            raise IpcqError("the queues of this installation have been removed already")
        if id(queues) not in self._removals:
            self._removals[id(queues)] = [self._requests.submit(message) for message in queues.removals()]
        under_way = self._removals[id(queues)]
        try:
            self._requests.wait(under_way)
        finally:
            if all(handle.done for handle in under_way):  # also if kernels had to be stopped first
                del self._removals[id(queues)]
                self._there.remove(queues)
                release_rings(self.engine, queues)
                self._requests.lost.add(self.engine.unreceived(queues.pes))

    def remove_all(self, queues: Iterable[InstalledQueues] | None = None) -> None:
        """Remove the given queues that are still installed; without an argument, all queues of the context."""
        for installed in tuple(self._there if queues is None else queues):
            if installed in self._there:
                self.remove(installed)

    def forget(self) -> None:
        """Free the memory of all queues, without a request to the machine."""
        for queues in self._there:
            release_rings(self.engine, queues)
        self._there.clear()
        self._fixed.clear()
        self._removals.clear()


@state(eq=False)
class ProcessGroup:
    """A process group of ranks, each with a SIP; it exists until its last member has left.

    ``gate`` opens when all ranks have joined. ``spoilt``: ranks have failed, and their messages may remain in the
    queues. ``packaged``: the loaded collectives of the package, by name.
    """

    algorithm: Algorithm
    world_size: int
    gate: RankGate = field(init=False)
    members: dict[int, Worker] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    queues: InstalledQueues | None = None
    calls: CallBook = field(default_factory=CallBook)
    packaged: dict[str, Algorithm] = field(default_factory=dict)
    rings: dict[int, SipRing] = field(default_factory=dict)
    spoilt: bool = False

    def __post_init__(self) -> None:
        self.gate = RankGate(self._standing)

    def _standing(self) -> str:
        missing = [rank for rank in range(self.world_size) if rank not in self.members]
        who = f", which rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} never called"
        return f"init_process_group{who if missing else ''}"

    def take_in(self, workers: Iterable[Worker]) -> None:
        """Make these workers the ranks of the group."""
        self.members = {worker.rank: worker for worker in workers}
        self.calls = CallBook()

    def has_any_of(self, workers: Collection[Worker]) -> bool:
        """Return True when one of these workers is or was a member."""
        return any(worker in workers for worker in self.members.values())

    def ring_of(self, rank: int, spec: TopologySpec) -> SipRing:
        """Return the place of a rank's SIP in the ring over all ranks, as an argument of collectives."""
        if rank not in self.rings:
            has_all = self.world_size == spec.num_sips
            self.rings[rank] = ring_of_all(spec, rank) if has_all else ring_among(range(self.world_size), rank)
        return self.rings[rank]

    def algorithm_called(self, name: str) -> Algorithm:
        """Return the collective of the package whose module has this name, with the queues of the group."""
        if name not in self.packaged:
            plain = replace(self.algorithm.config, name=name, module=name, topology="none", mapper="all_pes")
            self.packaged[name] = load_algorithm(replace(plain, validator="multi_pe_sip_local", passthrough=()))
        return self.packaged[name]


class ProcessGroups:
    """The process groups of a context, and the ranks in them.

    Spawned ranks together form one group. If the program has created a group before, they are members of that group.
    """

    __slots__ = (
        "_abandoned",
        "_ccl",
        "_devices",
        "_forming",
        "_groups",
        "_installer",
        "_of_program",
        "_requests",
        "_scheduler",
        "_standing",
    )

    def __init__(
        self,
        ccl: CclLike,
        devices: Devices,
        installer: QueueInstaller,
        requests: Requests,
        scheduler: RankScheduler,
    ) -> None:
        self._ccl, self._devices, self._installer = ccl, devices, installer
        self._requests, self._scheduler = requests, scheduler
        self._forming: ProcessGroup | None = None
        self._of_program: ProcessGroup | None = None
        self._groups: dict[Worker, ProcessGroup] = {}
        self._standing: list[ProcessGroup] = []
        self._abandoned: list[ProcessGroup] = []

    @property
    def world_size(self) -> int:
        """The number of ranks of a group, which is the number of SIPs."""
        return self._installer.engine.spec.num_sips

    def of(self, worker: Worker) -> ProcessGroup | None:
        """Return the group of a rank; None without a group."""
        return self._groups.get(worker)

    def check_size(self, nprocs: int) -> None:
        """Raise InputError when ``nprocs`` ranks do not fit the group that the program has created."""
        group = self._of_program
        if group is not None and nprocs != group.world_size:
            raise InputError(
                f"spawn: nprocs={nprocs}, but the process group of the program has {group.world_size} ranks, one for "
                f"each SIP: spawn {group.world_size}, or call torch.distributed.destroy_process_group() first"
            )

    def begin(self, workers: Sequence[Worker]) -> None:
        """Add ranks that are about to run to the group that the program has created, if any."""
        group = self._of_program
        if group is None:
            return
        if group.spoilt and group.queues is not None:
            self._installer.remove(group.queues)
            group.queues = self._installer.install(group.algorithm, with_fabric=True)
            group.spoilt = False
        group.take_in(workers)
        self._groups |= dict.fromkeys(workers, group)

    def join(self, worker: Worker) -> None:
        """Join the group of the spawned ranks; return when all ranks have joined and every PE has its queues.

        A call by the program itself creates the group of the ranks that it will spawn. For these ranks the group exists
        already.
        """
        self._scheduler.check()
        if worker.spawned and self._of_program is not None:
            self._groups[worker] = self._of_program
            return
        if worker in self._groups:
            raise InputError(f"{worker} has a process group already; destroy_process_group() ends it")
        if not worker.spawned:
            self._make_for(worker)
            return
        group = self._forming or self._make_group(worker.n_ranks if worker.has_process else None)
        _check_ranks(worker, group.world_size)
        group.members[worker.rank] = worker
        self._forming = group
        if len(group.members) < group.world_size:
            self._scheduler.pass_through(group.gate)
        else:
            self._forming = None
            self._install(group)
            self._standing.append(group)
            # Enter all ranks at once: a rank may be stopped before it has passed the gate.
            self._groups |= dict.fromkeys(group.members.values(), group)
            group.gate.open()

    def _make_for(self, program: Worker) -> None:
        if self._scheduler.busy:
            raise InputError(
                "init_process_group: the program's ranks run already; call it before spawn, or in the ranks"
            )
        group = self._make_group()
        self._install(group)
        group.take_in([program])
        self._groups[program] = self._of_program = group

    def leave(self, worker: Worker) -> None:
        """Wait for the rank's requests in flight, and leave; the last rank removes the queues.

        Queues of a group that the program has created remain until the program leaves it.
        """
        self._scheduler.check()
        group = self._groups.get(worker)
        if group is None:
            raise InputError(f"{worker} has no process group; init_process_group('ahbm') makes it")
        if not worker.spawned:
            self._end(worker, group)
            return
        self._requests.drain(worker)
        del self._groups[worker]
        group.left.add(worker.rank)
        if group is not self._of_program and len(group.left) == group.world_size:
            self._remove(group)
            self._standing.remove(group)

    def _end(self, program: Worker, group: ProcessGroup) -> None:
        if self._scheduler.busy:
            raise InputError(
                "destroy_process_group: ranks of the group still run; join() the result of spawn(join=False) first"
            )
        self.settle()
        self._requests.drain(program)
        del self._groups[program]
        self._of_program = None
        self._remove(group)
        self._requests.lost.raise_new_if_well()

    def note_end(self, workers: Collection[Worker]) -> tuple[str, ...]:
        """Note that ranks have ended, and describe the groups that they did not leave.

        Queues of these groups remain until their PEs are needed.
        """
        group = self._of_program
        if group is not None and not group.calls.is_even:
            group.spoilt = True
        apart = [worker for worker in workers if not worker.spawned or self._groups.get(worker) is not group]
        staying = [worker for worker in apart if worker in self._groups]
        self._abandoned += [group for group in self._standing if group.has_any_of(workers)]
        self._standing = [group for group in self._standing if not group.has_any_of(workers)]
        self._groups = {worker: group for worker, group in self._groups.items() if worker not in workers}
        self._forming = None
        return (f"process group of {', '.join(map(str, staying))}, not destroyed",) if staying else ()

    def spoil(self) -> None:
        """Note that ranks have failed: the program's group needs new queues before other ranks run."""
        if self._of_program is not None:
            self._of_program.spoilt = True

    def settle(self) -> None:
        """Wait for the requests in flight of groups that their ranks did not leave, since other ranks need the PEs.

        Requests that can never end are abandoned.
        """
        groups = list(self._abandoned)
        if self._of_program is not None and not self._scheduler.busy:
            groups.append(self._of_program)
        workers = [worker for group in groups for worker in group.members.values()]
        try:
            for worker in workers:
                self._requests.drain(worker)
        except SimulationDeadlock:
            self._requests.abandon(workers, blamed=False)
            self.spoil()

    def finish(self) -> tuple[str, ...]:
        """Remove every queue at the end of the program, and describe the groups that still exist."""
        left = self.note_end(tuple(self._groups))
        self._of_program = None
        self._installer.remove_all()
        return left

    def load_configured(self) -> Algorithm:
        """Load the algorithm that ccl.yaml configures for all-reduce."""
        return find_algorithm(None, None, self._ccl)

    def plan(self, algorithm: str | AlgorithmConfig | Mapping[str, Any] | None, world_size: int | None) -> IpcqPlan:
        """Install the queues of an algorithm for kernels that use them directly."""
        chosen = find_algorithm(algorithm, world_size, self._ccl)
        layout = layout_of(chosen, self._installer.engine.spec)
        self._clear()
        return plan_of(chosen.config, layout, self._installer.install(chosen, with_fabric=False))

    def _install(self, group: ProcessGroup) -> None:
        self._clear()
        group.queues = self._installer.install(group.algorithm, with_fabric=True)

    def _remove(self, group: ProcessGroup) -> None:
        if group.queues is not None:
            self._installer.remove(group.queues)

    def _clear(self) -> None:
        """Remove the queues of groups whose ranks have ended without leaving them."""
        self.settle()
        self._installer.remove_all(group.queues for group in self._abandoned if group.queues is not None)
        self._abandoned.clear()

    def _make_group(self, n_ranks: int | None = None) -> ProcessGroup:
        """Create a group of ``n_ranks``, by default one for each SIP."""
        spec = self._installer.engine.spec
        algorithm = self.load_configured()
        wanted = world_size_of(spec, algorithm.config)
        if wanted != spec.num_sips:
            config = algorithm.config
            place = f" ({config.place})" if config.place else ""
            raise InputError(
                f"torch.distributed needs rank = SIP: algorithm {config.name!r} has world_size={wanted}{place}, "
                f"this machine {spec.num_sips} SIPs. For ranks that are PEs use torch.install_ipcq and raw queues"
            )
        if len(self._devices.selected) != spec.num_sips:
            selected = ", ".join(map(str, self._devices.selected))
            raise InputError(
                f"torch.distributed needs rank = SIP, all {spec.num_sips} SIPs; this run has SIP {selected}: select all"
            )
        return ProcessGroup(algorithm, n_ranks or spec.num_sips)


def _check_ranks(worker: Worker, world_size: int) -> None:
    if worker.n_ranks != world_size:
        raise InputError(
            f"torch.distributed needs rank = SIP: {worker.n_ranks} rank{'s' if worker.n_ranks > 1 else ''} for "
            f"{world_size} SIPs; torch.multiprocessing.spawn(fn, args, nprocs={world_size}) makes one for each"
        )
