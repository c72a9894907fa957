"""Runs of a collective's kernel without simulated time: the same kernel, NumPy arrays, and queues without latency.

``check_schedule`` executes a schedule on a memory that stores the origins of each array in place of numbers. A rank
blocks for two reasons only: a send to a full queue, or a receive without a message. The order in which ranks run
therefore changes no result.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.install import check_count, edges_of
from kernbench.ccl.layouts import leader_only, nth_pe, single_shard_per_rank
from kernbench.ccl.loading import Algorithm, KernelArgs
from kernbench.ccl.mock import MockMachine, kernel_name
from kernbench.ccl.rings import ring_of_all
from kernbench.ccl.topologies import TOPOLOGIES, Edges, QueueEdge, TopologyFunction, fabric_edges
from kernbench.common.dtypes import Array
from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import InputError, IpcqError
from kernbench.messages.commands import STORE, Command, MemoryRef, Opcode, Operand
from kernbench.messages.requests import PeCoord
from kernbench.messages.steps import Chunk, Step
from kernbench.topology.builder import resolve_topology
from kernbench.topology.cube_spec import PeLayoutSpec
from kernbench.topology.spec import CubeMeshSpec, SipsSpec, TopologySpec, current_topology_name
from kernbench.triton_emu.schedules import ScheduledKernel

__all__ = ["MockMachine", "check_schedule", "mock_spec", "run_kernel_in_mock"]

RankTable: TypeAlias = Mapping[int, Mapping[str, int]]
"""rank -> direction -> rank"""


def run_kernel_in_mock(
    kernel_fn: Callable[..., object],
    world_size: int,
    topology: str | TopologyFunction | RankTable,
    inputs: Sequence[Array],
    kernel_args: Sequence[Any] = (),
    algo_module: object | None = None,
    pes_per_cube: int = 0,
    *,
    ranks_are_sips: bool = False,
    n_slots: int = 4,
    slot_size: int = 4096,
    **config: Any,
) -> list[Array]:
    """Run a kernel or a schedule on ``world_size`` ranks and return the final contents of ``inputs``.

    ``kernel_fn`` is called as ``kernel_fn(t_ptr, *kernel_args, tl=…)``.

    - ``inputs``: one array for each rank. Ranks that are PEs need arrays of one shape and dtype.
    - ``ranks_are_sips``: False (the default) makes ranks PEs of one SIP, with ``pes_per_cube`` ranks in each cube (0:
      all in one cube). Their arrays follow each other in memory, and the kernel's pointer is that of the first array.
      True makes each rank the only PE of a SIP, with an array of its own.
    - ``topology``: a name of ``kernbench.ccl.topologies``, a function ``f(topology, config)``, or a table
      rank -> direction -> rank. With ``none``, ranks that are SIPs have the queues that ``torch.distributed`` installs
      between SIPs. A function ``neighbors`` of ``algo_module`` changes the topology.
    - ``kernel_args``: default to those of ``algo_module`` for this machine and ``config``. ``config`` has the keys that
      ``ccl.yaml`` would pass through.
    - ``n_slots``, ``slot_size``: slots of a queue, and bytes of a slot.

    Raises the kernel's errors, and InputError for inputs that do not fit. Raises IpcqInvalidDirection for a queue that
    a rank does not have, and IpcqDeadlock if ranks wait for each other. Raises IpcqError for messages that are never
    received.
    """
    arrays = [np.asarray(array) for array in inputs]
    world_size = check_count("world_size", world_size, 1)
    pes_per_cube = check_count("pes_per_cube", pes_per_cube, 0)
    _check(world_size, arrays, pes_per_cube, ranks_are_sips=ranks_are_sips)
    spec = mock_spec(world_size, pes_per_cube, ranks_are_sips=ranks_are_sips)
    settings = {"ranks_are_pes": not ranks_are_sips, "n_slots": n_slots, "slot_size": slot_size}
    algorithm = _algorithm(kernel_fn, topology, algo_module, world_size, config, settings)
    edges = fabric_edges(spec) if topology == "none" and ranks_are_sips else edges_of(algorithm, spec)
    names = _rank_names(spec, world_size)
    machine = MockMachine(spec, edges, n_slots=n_slots, slot_size=slot_size, names=names)
    pes = list(names)
    places = _place_inputs(machine, pes, arrays, shared=not ranks_are_sips)
    computed = not kernel_args and (algo_module is not None or isinstance(algorithm.kernel, ScheduledKernel))
    args: dict[PeCoord, tuple[Any, ...]] = {}
    for pe, place, array in zip(pes, places, arrays, strict=True):
        further = _compute_args(algorithm, spec, pe[0], array, config) if computed else kernel_args
        args[pe] = (place if ranks_are_sips else places[0], *further)
    machine.run(algorithm.kernel, args)
    memories = [machine.memory[pe[0]] for pe in pes]
    return [
        memory.read(place, array.shape, array.dtype)
        for memory, place, array in zip(memories, places, arrays, strict=True)
    ]


def check_schedule(
    schedule: Callable[..., Sequence[Step]] | ScheduledKernel,
    world_size: int,
    topology: str | TopologyFunction | RankTable,
    n_elem: int,
    pes_per_cube: int = 0,
    *,
    n_slots: int = 4,
    slot_size: int = 4096,
    **config: Any,
) -> list[dict[Chunk, Counter[tuple[int, Chunk]]]]:
    """Count the contributions of each rank's chunks to each chunk that a rank stored.

    The result has a dictionary for each rank: stored chunk -> Counter of (rank, chunk). No numbers are computed and no
    time is simulated. Ranks are PEs. ``topology``, ``config`` and errors are as for ``run_kernel_in_mock``: a schedule
    that blocks with ``n_slots`` slots raises IpcqDeadlock. Errors name the rank and the step.
    """
    spec = mock_spec(check_count("world_size", world_size, 1), check_count("pes_per_cube", pes_per_cube, 0))
    kernel = schedule if isinstance(schedule, ScheduledKernel) else ScheduledKernel(schedule)
    settings = {"ranks_are_pes": True, "n_slots": n_slots, "slot_size": slot_size}
    algorithm = _algorithm(kernel, topology, None, world_size, config, settings)
    args = algorithm.args_for(spec, n_elem=n_elem, **config)
    names = _rank_names(spec, world_size)
    pes = {pe: rank for rank, pe in enumerate(names)}
    queues = {"n_slots": n_slots, "slot_size": slot_size, "names": names}
    stored = play_schedules(kernel, dict.fromkeys(pes, args), spec, edges_of(algorithm, spec), **queues)
    item = element_type(config.get("dtype", "f32")).itemsize

    def chunk(pe: PeCoord, place: MemoryChunk) -> tuple[int, Chunk]:
        tensor, first, nbytes = place
        return pes[pe], Chunk(first // item - pes[pe] * n_elem, nbytes // item, tensor)

    return [
        {
            chunk(pe, place)[1]: Counter({chunk(origin.pe, origin[1:]): n for origin, n in content.items()})
            for place, content in stored[pe].items()
        }
        for pe in pes
    ]


@cache
def _default_spec() -> TopologySpec:
    return resolve_topology("default").spec


def mock_spec(world_size: int, pes_per_cube: int = 0, *, ranks_are_sips: bool = False) -> TopologySpec:
    """Return the machine of ``run_kernel_in_mock``.

    The machine is one SIP with cubes of ``pes_per_cube`` PEs, or a SIP with one PE for each rank. It is not validated
    and may have more parts than addresses can distinguish, because the mock has no physical addresses.
    """
    in_cube = 1 if ranks_are_sips else pes_per_cube or world_size
    sips = world_size if ranks_are_sips else 1
    base = _default_spec()
    joined = base.system.model_copy(update={"sips": SipsSpec(count=sips, topology="ring_1d")})
    mesh = CubeMeshSpec(w=-(-world_size // (sips * in_cube)), h=1)
    layout = PeLayoutSpec(pe_per_corner=in_cube, corners=("NW",))
    return base.model_copy(
        update={
            "system": joined,
            "sip": base.sip.model_copy(update={"cube_mesh": mesh}),
            "cube": base.cube.model_copy(update={"pe_layout": layout}),
        }
    )


def _check(world_size: int, inputs: Sequence[Array], pes_per_cube: int, *, ranks_are_sips: bool) -> None:
    if ranks_are_sips and pes_per_cube:
        raise InputError(f"pes_per_cube={pes_per_cube}: ranks that are SIPs have one PE each; leave one of both out")
    if len(inputs) != world_size:
        raise InputError(f"{len(inputs)} inputs for world_size={world_size}: one array for each rank is needed")
    kinds = {(array.shape, element_type(array.dtype.name).name) for array in inputs}
    if not ranks_are_sips and len(kinds) > 1:
        shapes = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in sorted(kinds))
        raise InputError(f"ranks that are PEs have parts of one tensor, of one shape and dtype, not {shapes}")
    if any(array.size == 0 for array in inputs):
        raise InputError("every input must have at least one element")


def _algorithm(
    kernel: Callable[..., Any],
    topology: str | TopologyFunction | RankTable,
    module: object | None,
    world_size: int,
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Algorithm:
    """Create an algorithm without ``ccl.yaml``: ``config`` passes through, ``settings`` are of ``AlgorithmConfig``."""
    if not isinstance(kernel, ScheduledKernel) and "rank" in inspect.signature(kernel).parameters:
        kernel = ScheduledKernel(kernel)
    make_args: KernelArgs = lambda **_: ()  # noqa: E731
    name = kernel_name(kernel)
    if isinstance(kernel, ScheduledKernel):
        make_args, name = kernel.args, kernel.name
    functions = {} if module is None else vars(module)
    algorithm_config = AlgorithmConfig(
        name=name,
        module="given",
        topology=topology if isinstance(topology, str) else "given",
        world_size=world_size,
        passthrough=tuple(sorted(config.items())),
        **settings,
    )
    return Algorithm(
        config=algorithm_config,
        kernel=kernel,
        kernel_args=functions.get("kernel_args", make_args),
        topology_fn=_topology(topology, algorithm_config),
        mapper_fn=leader_only,
        validator_fn=single_shard_per_rank,
        neighbors=functions.get("neighbors"),
    )


def _rank_names(spec: TopologySpec, world_size: int) -> dict[PeCoord, str]:
    """Return the name of each rank for errors, keyed by the PE of the rank."""
    return {nth_pe(spec, rank): f"rank {rank}" for rank in range(world_size)}


def _topology(topology: str | TopologyFunction | RankTable, config: AlgorithmConfig) -> TopologyFunction:
    if isinstance(topology, str):
        return config.find_named("topology", current_topology_name(topology), TOPOLOGIES)
    if callable(topology):
        return topology
    if not isinstance(topology, Mapping) or not all(isinstance(row, Mapping) for row in topology.values()):
        raise InputError(f"topology={topology!r}: must be a name, a function or a table rank -> direction -> rank")
    return partial(_by_table, topology)


def _by_table(table: RankTable, spec: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Return the edges of a table of ranks that have one PE each."""
    n = config.world_size or 0
    outside = sorted({rank for pair in table.items() for rank in (pair[0], *pair[1].values())} - set(range(n)))
    if outside:
        raise InputError(f"the topology names ranks {outside}: there are ranks 0..{n - 1}")
    return [
        (nth_pe(spec, rank), direction, nth_pe(spec, peer))
        for rank, directions in table.items()
        for direction, peer in directions.items()
    ]


def _place_inputs(machine: MockMachine, pes: Sequence[PeCoord], inputs: Sequence[Array], shared: bool) -> list[int]:
    """Place the arrays of all ranks, each in its SIP or all in one stack, and return the addresses."""
    if not shared:
        return [machine.memory[pe[0]].place(array) for pe, array in zip(pes, inputs, strict=True)]
    base = machine.memory[0].place(np.stack(inputs))
    return [base + rank * array.nbytes for rank, array in enumerate(inputs)]


def _compute_args(
    algorithm: Algorithm, spec: TopologySpec, sip: int, array: Array, config: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments that the algorithm computes for one rank."""
    ring = {} if algorithm.config.ranks_are_pes else {"sips": ring_of_all(spec, sip)}
    values = {"dtype": element_type(array.dtype).name, **ring, **config}
    return algorithm.args_for(spec, n_elem=array.size, sip_rank=sip, **values)


_TENSOR_BITS = 48  # each tensor has an address range of its own


class Origin(NamedTuple):
    """A piece of a PE's initial memory: ``nbytes`` bytes of one of its tensors from byte ``offset`` on."""

    pe: PeCoord
    tensor: int
    offset: int
    nbytes: int


Content: TypeAlias = Counter[Origin]
"""The number of contributions of each origin to an array"""
MemoryChunk: TypeAlias = tuple[int, int, int]
"""A chunk of memory: tensor, first byte, bytes"""


class _Contents:
    """The memory of a SIP: the origins of each array in a TCM, by address, and the stored chunks of each PE."""

    def __init__(self) -> None:
        self.stored: defaultdict[PeCoord, dict[MemoryChunk, Content]] = defaultdict(dict)
        self._arrays: dict[int, Content] = {}

    def get(self, array: Operand) -> Content:
        """Return the origins of an array."""
        return self._arrays[array.address]

    def put(self, address: int, message: Content) -> None:
        """Store an incoming message."""
        self._arrays[address] = message

    def carry_out(self, command: Command) -> None:
        """Carry out ``command`` of a schedule."""
        match command.op:
            case Opcode.LOAD:
                self._arrays[command.result.address] = self._load_chunk(command)
            case Opcode.STORE:
                src = command.array
                self.stored[_coord(src)][_place(command.ref)] = self.get(src)
            case Opcode.MATH:
                self._arrays[command.result.address] = sum(map(self.get, command.reads), Counter[Origin]())

    def meet(self, a: Command, b: Command) -> bool:
        """Return True if a load and a store, or two stores, access the same bytes."""
        if STORE not in (a.op, b.op):
            return False
        (a_at, a_size), (b_at, b_size) = _bytes_of(a), _bytes_of(b)
        return a_at < b_at + b_size and b_at < a_at + a_size

    def _load_chunk(self, command: Command) -> Content:
        """Return the contents of a chunk: the initial contents, unless an earlier step stored exactly that chunk."""
        pe, place = _coord(command.result), _place(command.ref)
        tensor, first, nbytes = place
        for stored_tensor, at, size in self.stored[pe]:
            if stored_tensor == tensor and at < first + nbytes and first < at + size and (at, size) != (first, nbytes):
                raise IpcqError(f"step {command.line} (load): part of the chunk was stored by an earlier step")
        return self.stored[pe].get(place) or Counter({Origin(pe, *place): 1})


def _coord(array: Operand) -> PeCoord:
    sip, cube, pe = array.owner
    return sip, cube, pe


def _place(ref: MemoryRef) -> MemoryChunk:
    nbytes = prod(ref.shape) * ref.dtype.itemsize
    return ref.va >> _TENSOR_BITS, ref.va & (1 << _TENSOR_BITS) - 1, nbytes


def _bytes_of(command: Command) -> tuple[int, int]:
    if command.op in (Opcode.LOAD, Opcode.STORE):
        return command.ref.va, command.array.nbytes
    return 0, 0


def play_schedules(
    kernel: ScheduledKernel,
    args: Mapping[PeCoord, Sequence[Any]],
    spec: TopologySpec,
    edges: Sequence[QueueEdge],
    **queues: Any,
) -> dict[PeCoord, dict[MemoryChunk, Content]]:
    """Execute schedules and return the contents of each chunk that PEs stored.

    ``args`` has the arguments of each PE after its tensors. ``queues`` are ``n_slots``, ``slot_size`` and ``names`` of
    ``MockMachine``. Errors name the rank and the step.
    """
    memory = [_Contents() for _ in range(spec.num_sips)]
    pointers = [tensor << _TENSOR_BITS for tensor in range(kernel.tensors)]
    machine = MockMachine(spec, edges, works_on=memory, **queues)
    machine.run(kernel, {pe: (*pointers, *arguments) for pe, arguments in args.items()})
    return {pe: memory[pe[0]].stored[pe] for pe in args}
