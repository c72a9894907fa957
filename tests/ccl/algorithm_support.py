"""Collectives on the mock and on the machine: the same ranks, data and arguments, and what NumPy expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiled import compiled
from kernbench.ccl.config import AlgorithmConfig, QueueSettings
from kernbench.ccl.install import edges_of, layout_of
from kernbench.ccl.loading import Algorithm, load_algorithm
from kernbench.ccl.queues import install_edges
from kernbench.ccl.rings import ring_of_all
from kernbench.ccl.testing import MockMachine
from kernbench.ccl.topologies import QueueEdge, fabric_edges
from kernbench.common.dtypes import dtype as element_type
from kernbench.engine.engine import GraphEngine, Observer
from kernbench.engine.queues import queue_pairs_of
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import (
    KernelLaunchMsg,
    KernelRef,
    MappedShard,
    MemoryWriteMsg,
    MmuMapMsg,
    PeCoord,
    TensorArg,
    TensorMapping,
)
from kernbench.topology.builder import Topology

Array = np.ndarray[Any, Any]
Shards = dict[PeCoord, tuple[int, Array]]
"""What each PE owns of a tensor: offset in bytes behind its SIP's pointer, and the elements."""

NUMPY = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min}
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def small(
    sips: int = 1,
    cubes: str = "2x1",
    per_corner: int = 2,
    fabric: str = "ring_1d",
    grid: str = "",
    changes: Sequence[str] = (),
) -> Topology:
    """A small machine, changed as asked; ``cubes`` and ``grid`` (of SIPs): columns x rows."""
    w, _, h = cubes.partition("x")
    overrides = [f"sip.cube_mesh.w={w}", f"sip.cube_mesh.h={h}", f"system.sips.count={sips}"]
    overrides += [f"cube.pe_layout.pe_per_corner={per_corner}", f"cube.hbm.slices={4 * per_corner}"]
    overrides.append(f"system.sips.topology={fabric}")
    if grid:
        columns, _, rows = grid.partition("x")
        overrides += [f"system.sips.w={columns}", f"system.sips.h={rows}"]
    return compiled(*overrides, *changes)


def values(rng: np.random.Generator, shape: Any, name: str) -> Array:
    """Numbers of both signs of a type."""
    if name == "i32":
        return rng.integers(-1000, 1000, shape, dtype=np.int32)
    if name == "i8":
        return rng.integers(-5, 5, shape, dtype=np.int8)
    return rng.standard_normal(shape).astype(element_type(name).numpy)


def expected(inputs: Sequence[Array], op: str) -> Array:
    """The reduction, unrounded; ``avg`` of integers towards zero."""
    wide = np.stack([x.astype(np.float64) for x in inputs])
    result = NUMPY[op](wide, axis=0)
    return np.trunc(result) if inputs[0].dtype.kind == "i" else result


def assert_reduced(outputs: Sequence[Array], inputs: Sequence[Array], op: str) -> None:
    """Each output is the reduction of all inputs, to the rounding of n-1 sums and a division in any order.

    Each rounding is at most u times a partial sum, itself at most sum |x_i| (1 + n u):
    |error| <= n u (1 + n u) sum |x_i|.
    """
    want = expected(inputs, op)
    u, n = ROUNDOFF.get(inputs[0].dtype.name, 0.0), len(inputs)
    if op in ("max", "min"):
        u = 0.0
    size = np.sum([np.abs(x.astype(np.float64)) for x in inputs], axis=0)
    allowed = n * u * (1 + n * u) * size
    for output in outputs:
        assert output.dtype == inputs[0].dtype
        assert np.all(np.abs(output.astype(np.float64) - want) <= allowed)


def assert_same_bits(outputs: Sequence[Array]) -> None:
    """All outputs are equal to the bit."""
    for output in outputs[1:]:
        assert output.tobytes() == outputs[0].tobytes()


def of_pe(tensor: Shards, pe: tuple[int, int]) -> list[Array]:
    """What a PE (cube, pe) owns, by SIP."""
    return [x for coord, (_, x) in sorted(tensor.items()) if coord[1:] == pe]


@dataclass(kw_only=True)
class Collective:
    """A kernel on ``pes``, with queues along ``edges``; ``args`` by SIP, behind a pointer to each of ``tensors``.

    ``kernels``: what runs on a SIP in its place.
    """

    topology: Topology
    kernel: Callable[..., object]
    edges: list[QueueEdge]
    pes: list[PeCoord]
    args: Mapping[int, tuple[Any, ...]]
    tensors: list[Shards]
    n_slots: int = 4
    slot_size: int = 4096
    kind: Any = "tcm"
    watch: Callable[[GraphEngine], object] = lambda engine: None
    started: Callable[[GraphEngine], object] = lambda engine: None
    enable_data: bool = True
    observers: Sequence[Observer] = ()
    kernels: Mapping[int, Callable[..., object]] = field(default_factory=dict)
    engine: GraphEngine | None = field(default=None, init=False)
    handles: list[RequestHandle] = field(default_factory=list, init=False)

    @property
    def sips(self) -> list[int]:
        return sorted({pe[0] for pe in self.pes})

    def on_mock(self) -> list[Shards]:
        """The tensors after a run in the mock."""
        machine = MockMachine(self.topology.spec, self.edges, n_slots=self.n_slots, slot_size=self.slot_size)
        pointers = {
            (i, sip): machine.memory[sip].place(_packed(shards, sip))
            for i, shards in enumerate(self.tensors)
            for sip in self.sips
        }
        args = {pe: (*(pointers[i, pe[0]] for i in range(len(self.tensors))), *self.args[pe[0]]) for pe in self.pes}
        machine.run(self.kernel, args)
        for pe in self.pes:
            for pair in machine.queues(pe).values():
                assert pair.settled, f"{pe} {pair.direction}: {pair.counters}"
        return [
            {
                pe: (at, machine.memory[pe[0]].read(pointers[i, pe[0]] + at, x.shape, x.dtype))
                for pe, (at, x) in shards.items()
            }
            for i, shards in enumerate(self.tensors)
        ]

    def on_machine(self) -> list[Shards]:
        """The tensors after a run on the machine, all of whose queues have ended empty."""
        engine = self.engine = GraphEngine(self.topology, enable_data=self.enable_data, observers=self.observers)
        self.watch(engine)
        settings = QueueSettings(n_slots=self.n_slots, slot_size=self.slot_size, buffer_kind=self.kind)
        install_edges(engine, self.edges, settings)
        placed = [_place(engine, shards, f"t{i}") for i, shards in enumerate(self.tensors)]
        self.started(engine)
        name = getattr(self.kernel, "__name__", "kernel")
        grid = len({pe[2] for pe in self.pes}), len({pe[1] for pe in self.pes}), len(self.sips)
        handles = [
            engine.submit(
                KernelLaunchMsg(
                    kernel=KernelRef(name=name, function=self.kernels.get(sip, self.kernel)),
                    args=(*(args[sip] for args, _ in placed), *self.args[sip]),
                    targets=tuple(pe for pe in self.pes if pe[0] == sip),
                    grid=grid,
                )
            )
            for sip in self.sips
        ]
        for handle in handles:
            engine.wait(handle)
        self.handles = handles
        engine.drain()
        for pe in self.pes:
            for pair in queue_pairs_of(engine.machine, pe).values():
                assert pair.settled, f"{pe} {pair.direction}: {pair.counters}"
        if not self.enable_data:
            return []
        return [
            {
                pe: (at, engine.read_memory(pas[pe], x.nbytes).view(x.dtype).reshape(x.shape))
                for pe, (at, x) in shards.items()
            }
            for shards, (_, pas) in zip(self.tensors, placed, strict=True)
        ]


def _packed(shards: Shards, sip: int) -> Array:
    """The tensor of a SIP as bytes."""
    own = [shard for pe, shard in shards.items() if pe[0] == sip]
    raw = np.zeros(max(at + x.nbytes for at, x in own), np.uint8)
    for at, x in own:
        raw[at : at + x.nbytes] = x.reshape(-1).view(np.uint8)
    return raw


def _place(engine: GraphEngine, shards: Shards, name: str) -> tuple[dict[int, TensorArg], dict[PeCoord, int]]:
    """Write every shard to the slice of its PE, and map them behind one pointer in each SIP."""
    args: dict[int, TensorArg] = {}
    pas: dict[PeCoord, int] = {}
    for sip in sorted({pe[0] for pe in shards}):
        own = {pe: shard for pe, shard in shards.items() if pe[0] == sip}
        nbytes = max(at + x.nbytes for at, x in own.values())
        va = engine.va_allocator(sip).alloc(nbytes)
        mapped = []
        for pe, (at, x) in own.items():
            pas[pe] = engine.allocators[pe].alloc_hbm(x.nbytes).encode()
            raw = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
            engine.wait(engine.submit(MemoryWriteMsg(pa=pas[pe], nbytes=x.nbytes, data=raw)))
            mapped.append(MappedShard(sip=sip, cube=pe[1], pe=pe[2], offset_bytes=at, nbytes=x.nbytes, pa=pas[pe]))
        mapping = TensorMapping(name=name, va_base=va, nbytes=nbytes, shards=tuple(mapped))
        engine.wait(engine.submit(MmuMapMsg(sip=sip, mapping=mapping)))
        first = next(iter(own.values()))[1]
        args[sip] = TensorArg(
            name=name, va=va, shape=(nbytes,), dtype=element_type(first.dtype.name), owners=tuple(own)
        )
    return args, pas


def algorithm(
    name: str, topology_name: str, world_size: int, mapper: str = "leader_only", n_slots: int = 4, **passed: Any
) -> Algorithm:
    """A shipped algorithm, configured."""
    config = AlgorithmConfig(
        name=name,
        module=name,
        topology=topology_name,
        mapper=mapper,
        world_size=world_size,
        n_slots=n_slots,
        passthrough=tuple(sorted(passed.items())),
    )
    return load_algorithm(config)


def all_reduce(
    chosen: Algorithm, machine: Topology, inputs_of: Callable[[PeCoord], Array], op: str = "sum", **more: Any
) -> Collective:
    """An all-reduce in place of the array of each PE that takes part; those of a SIP follow each other."""
    spec = machine.spec
    pes = sorted(pe for rank in layout_of(chosen, spec).ranks for pe in rank)
    shards: Shards = {}
    for sip in sorted({pe[0] for pe in pes}):
        at = 0
        for pe in [pe for pe in pes if pe[0] == sip]:
            array = inputs_of(pe)
            shards[pe] = (at, array)
            at += array.nbytes
    first = next(iter(shards.values()))[1]
    args = {
        sip: chosen.args_for(spec, n_elem=first.size, sip_rank=sip, dtype=element_type(first.dtype).name, reduce_op=op)
        for sip in {pe[0] for pe in pes}
    }
    edges = edges_of(chosen, spec)
    more.setdefault("n_slots", chosen.config.n_slots)
    return Collective(topology=machine, kernel=chosen.kernel, edges=edges, pes=pes, args=args, tensors=[shards], **more)


def shards_of(
    sips: int, owned: Mapping[tuple[int, int], int], rng: np.random.Generator, dtype: str = "f32", blocks: int = 1
) -> Shards:
    """``blocks`` times as many elements as ``owned`` says for the PEs (cube, pe) of every SIP."""
    found: Shards = {}
    for sip in range(sips):
        at = 64
        for (cube, pe), count in owned.items():
            array = values(rng, (blocks, count), dtype)
            found[sip, cube, pe] = (at, array)
            at += array.nbytes
    return found


def over_sips(name: str, machine: Topology, tensors: list[Shards], **config: Any) -> Collective:
    """A collective on the ring of SIPs: in place of one tensor, or from one to another.

    The same PEs of every SIP take part. Blocks of a rank lie one behind the other in each shard.
    """
    spec = machine.spec
    chosen = algorithm(name, "none", spec.num_sips)
    source, *target = tensors
    table: list[int] = []
    for (sip, cube, pe), (at, x) in source.items():
        if sip == 0:
            table += [cube, pe, at, x.shape[-1]]
            if target:
                table += [target[0][sip, cube, pe][0], x.itemsize * x.shape[-1]]
    args = {
        sip: chosen.args_for(spec, n_elem=1, sip_rank=sip, shards=tuple(table), sips=ring_of_all(spec, sip), **config)
        for sip in range(spec.num_sips)
    }
    taking_part = {pe[1:] for pe in source}
    edges = [edge for edge in fabric_edges(spec) if edge[0][1:] in taking_part]
    return Collective(topology=machine, kernel=chosen.kernel, edges=edges, pes=[*source], args=args, tensors=tensors)


def longest_kernel_ns(run: Collective) -> float:
    """Of a collective, timing only."""
    run.enable_data = False
    run.on_machine()
    assert run.engine is not None
    return max(ns for h in run.handles for ns in run.engine.get_completion(h)[1].pe_exec_ns.values())
