"""Simulations of the collective evaluation, each on a new machine: collectives, messages and rings.

A collective runs in two ways: called by ranks, and launched by one program. Its values are verified. A message goes to
the next PE of its cube, by memory of the queues. A ring performs reduce-scatter and all-gather on one PE per SIP, and
its time is compared with the theory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from kernbench.ccl.config import AlgorithmConfig, CclConfig
from kernbench.ccl.install import IpcqPlan, edges_of, find_algorithm, install_edges, uninstall
from kernbench.ccl.loading import Algorithm, load_algorithm
from kernbench.ccl.rings import ring_of_all
from kernbench.ccl.topologies import QueueEdge, fabric_edges
from kernbench.common.collector import patient_collector
from kernbench.common.config import Document, Path, path_text
from kernbench.common.dtypes import Array
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.evaluation.ccl_fabrics import (
    DTYPE,
    INTERCUBE,
    ITEM_BYTES,
    KIB,
    AlgorithmName,
    Fabric,
    join_sips,
    queues_of,
    ring_of,
)
from kernbench.evaluation.ccl_results import BufferPoint, CollectivePoint, CollectiveTime, RingPoint
from kernbench.evaluation.ccl_theory import ClosedForms
from kernbench.messages.requests import BufferKind
from kernbench.policy.placement.dp import SINGLE_PE, DPPolicy
from kernbench.runtime_api.context import NoParams, RuntimeContext
from kernbench.runtime_api.launch_report import launches_of
from kernbench.runtime_api.layout import shard_table
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.spec import PACKETS_PER_FIFO, TopologySpec

ByRank: TypeAlias = dict[int, Array]

DISTRIBUTED, DIRECT = "all_reduce", "direct"
"""Names of launches: by torch.distributed, and by one program"""
ROW_PER_CUBE = DPPolicy(cube="row_wise", num_pes=1)
# These values reveal a misplaced piece and a double addition. Their sums are exact in f32.
PATTERN = 7


@value(kw_only=True)
class CollectiveRun:
    """One simulation: an algorithm of ``ccl`` for some sizes, on ``machine`` with its SIPs joined as ``fabric``."""

    machine: Document
    ccl: CclConfig
    algorithm: AlgorithmName
    fabric: Fabric
    sizes: tuple[int, ...]
    root_cube: int

    def run(self) -> list[CollectivePoint]:
        """Simulate each size with values, on a new machine each, because banks keep state. Errors are raised."""
        return [self._point(nbytes) for nbytes in self.sizes]

    def _point(self, nbytes: int) -> CollectivePoint:
        engine = GraphEngine(join_sips(self.machine, self.fabric))
        program = _HostProgram(self, nbytes, find_algorithm(self.algorithm, None, self.ccl), engine.spec)
        with patient_collector(), RuntimeContext[NoParams](engine, ccl=self.ccl) as torch:
            by_ranks = program.by_ranks(torch, engine)
            directly = program.directly(torch, engine)
        config = program.algorithm.config
        return CollectivePoint(
            algorithm=self.algorithm,
            fabric=self.fabric,
            buffer_kind=config.buffer_kind,
            nbytes=nbytes,
            distributed=_time_of(engine.handles, DISTRIBUTED),
            direct=_time_of(engine.handles, DIRECT),
            closed_ns=self._theory_ns(engine, config, nbytes) if config.buffer_kind == "tcm" else None,
            contributions=program.contributions,
            right=min(program.count_right(result) for result in (by_ranks, directly)),
            same=all(by_ranks[rank].tobytes() == directly[rank].tobytes() for rank in by_ranks),
        )

    def _theory_ns(self, engine: GraphEngine, config: AlgorithmConfig, nbytes: int) -> float:
        """Return the closed form of the kernel in ns; for the algorithm over cubes, a lower bound."""
        forms = ClosedForms(engine.machine, queues_of(config))
        if self.algorithm == INTERCUBE:
            return forms.intercube_bound_ns(nbytes, self.root_cube)
        return forms.sip_ns([(0, 0)], nbytes)


@value
class _HostProgram:
    """The host program of a collective of ``nbytes``. It returns the final contents of each rank's tensor."""

    run: CollectiveRun
    nbytes: int
    algorithm: Algorithm
    spec: TopologySpec

    @property
    def rows(self) -> int:
        """The number of contributions of one rank."""
        return self.spec.cubes_per_sip if self.run.algorithm == INTERCUBE else 1

    @property
    def contributions(self) -> int:
        """The number of contributions of all ranks."""
        return self.rows * self.run.fabric.sips

    def by_ranks(self, torch: RuntimeContext[Any], engine: GraphEngine) -> ByRank:
        """Run one rank per SIP. All ranks call the collective at about the same time, after a barrier."""
        results: ByRank = {}

        def rank_program(rank: int) -> None:
            dist = torch.distributed
            torch.ahbm.set_device(rank)
            dist.init_process_group("ahbm")
            tensor = self._tensor(torch, rank)
            dist.barrier()
            dist.all_reduce(tensor)
            results[rank] = _read_tensor(engine, tensor)
            tensor.free()
            dist.destroy_process_group()

        torch.multiprocessing.spawn(rank_program, nprocs=self.run.fabric.sips)
        return results

    def directly(self, torch: RuntimeContext[Any], engine: GraphEngine) -> ByRank:
        """Run one program, which installs queues and then launches on every SIP at once."""
        queues = install_edges(engine, self._edges(), self.algorithm.config)
        tensors = []
        for sip in range(self.run.fabric.sips):
            torch.ahbm.set_device(sip)
            tensors.append(self._tensor(torch, sip))
        works = [
            torch.launch(DIRECT, self.algorithm.kernel, tensor, *self._args(tensor), async_op=True)
            for tensor in tensors
        ]
        for work in works:
            work.wait()
        results = {tensor.sip: _read_tensor(engine, tensor) for tensor in tensors}
        for tensor in tensors:
            tensor.free()
        uninstall(engine, queues)
        return results

    def count_right(self, result: Mapping[int, Array]) -> int:
        """Count the contributions that equal the complete sum."""
        total = self.rows * sum(rank + 1 for rank in range(self.run.fabric.sips))
        return sum(bool(np.all(row == total * _pattern(row.size))) for held in result.values() for row in held)

    def _tensor(self, torch: RuntimeContext[Any], rank: int) -> Tensor:
        data = np.tile((rank + 1) * _pattern(self.nbytes // ITEM_BYTES), (self.rows, 1))
        return torch.tensor(data, dtype=DTYPE, dp=ROW_PER_CUBE if self.run.algorithm == INTERCUBE else SINGLE_PE)

    def _edges(self) -> Sequence[QueueEdge]:
        """Return the queue edges of the algorithm. With ranks: those of PE 0 of cube 0 between SIPs."""
        edges = edges_of(self.algorithm, self.spec)
        return edges or [edge for edge in fabric_edges(self.spec) if edge[0][1:] == (0, 0)]

    def _args(self, tensor: Tensor) -> tuple[Any, ...]:
        return self.algorithm.args_for(
            self.spec,
            n_elem=tensor.shape[-1],
            sip_rank=tensor.sip,
            dtype=DTYPE,
            shards=shard_table(tensor.layout),
            sips=ring_of_all(self.spec, tensor.sip),
        )


def _read_tensor(engine: GraphEngine, tensor: Tensor) -> Array:
    """Read a tensor directly from memory, one row per shard. A read through the host would dominate the run time."""
    shards = [engine.read_memory(shard.pa, shard.nbytes) for shard in tensor.layout.shards]
    return np.stack(shards).view(np.float32)


def _pattern(n: int) -> Array:
    return (1 + np.arange(n) % PATTERN).astype(np.float32)


def _time_of(handles: Sequence[RequestHandle], name: str) -> CollectiveTime:
    """Return the time of the collective called ``name``, which consists of one launch per SIP."""
    launches = [launch for launch in launches_of(handles) if launch.msg.name == name]
    kernels = [launch.outcome.reports for launch in launches if launch.outcome is not None]
    begin = max(min(report.start_ps for report in reports) for reports in kernels)
    end = max(report.end_ps for reports in kernels for report in reports)
    called, over = max(launch.submitted_ps for launch in launches), max(launch.ended_ps for launch in launches)
    return CollectiveTime(latency_ns=ps_to_ns(over - called), kernel_ns=ps_to_ns(end - begin))


KINDS: tuple[BufferKind, ...] = ("tcm", "sram", "hbm")
MESSAGE_SIZES = (64, 256, 1024, 4096)
MESSAGES = "pass on"
"""Name of the launches that send messages"""


def pass_on(t_ptr: int, n: int, senders: int, dtype: str, *, tl: Any) -> None:
    """Send ``n`` elements from each of the first ``senders`` PEs of a ring to the next PE, which adds its elements."""
    here, pes = tl.program_id(0), tl.num_programs(0)
    at = t_ptr + here * n * tl.itemsize(dtype)
    block = tl.load(at, n, dtype)
    tl.wait(block)
    if here < senders:
        tl.send("E", block)
    if (here - 1) % pes < senders:
        tl.store(at, block + tl.recv("W", n, dtype))


@value(kw_only=True)
class BufferRun:
    """One simulation: messages between the PEs of a cube of ``machine``, with ring buffers in one type of memory."""

    machine: Document
    ccl: CclConfig
    buffer_kind: BufferKind
    sizes: tuple[int, ...] = MESSAGE_SIZES

    def run(self) -> list[BufferPoint]:
        """Simulate one sender, then all PEs as senders. Values are computed."""
        engine = GraphEngine(join_sips(self.machine, ring_of(1)))
        pes = engine.spec.pes_per_cube
        points = []
        with RuntimeContext[NoParams](engine, ccl=self.ccl) as torch:
            torch.install_ipcq(f"ring_allreduce_{self.buffer_kind}", pes)
            for senders in dict.fromkeys((1, pes)):
                points += [self._point(torch, engine, senders, nbytes) for nbytes in self.sizes]
        return points

    def _point(self, torch: RuntimeContext[Any], engine: GraphEngine, senders: int, nbytes: int) -> BufferPoint:
        n, pes = nbytes // ITEM_BYTES, engine.spec.pes_per_cube
        data = np.arange(pes * n, dtype=np.float32).reshape(pes, n)
        tensor = torch.tensor(data, dtype=DTYPE, dp=DPPolicy(pe="row_wise", num_cubes=1))
        first = len(engine.op_log)
        torch.launch(MESSAGES, pass_on, tensor, n, senders, DTYPE)
        records = [record for record in engine.op_log if record.seq >= first and record.kind in ("ipcq_copy", "math")]
        sent = min(record.t_start_ps for record in records if record.kind == "ipcq_copy")
        added = max(record.t_end_ps for record in records if record.kind == "math")
        expected = data + np.where((np.arange(pes)[:, None] - 1) % pes < senders, np.roll(data, 1, axis=0), 0)
        right = int(np.all(tensor.numpy() == expected, axis=1).sum()) - (pes - senders)
        tensor.free()
        return BufferPoint(
            buffer_kind=self.buffer_kind,
            senders=senders,
            nbytes=nbytes,
            latency_ns=ps_to_ns(added - sent),
            right=right,
        )


def least_slot(ccl: CclConfig) -> int:
    """Return the largest message that fits the queues of all kinds."""
    return min(find_algorithm(f"ring_allreduce_{kind}", None, ccl).config.slot_size for kind in KINDS)


RING = "ring_allreduce_rs_ag"
RANKS = (2, 4, 8, 16)
MIB = 1 << 20
LARGE_SLOT = 64 * KIB
RING_SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 4 * MIB, 16 * MIB)
SMALL_SLOT_SIZES = tuple(size for size in RING_SIZES if size <= 256 * KIB)
"""Sizes that are also simulated with default slots, where the cost of credits is visible"""
BULK_BYTES = 4096
"""Packet size of these simulations: it needs a quarter of the events, and changes times by at most 0.1 %"""

LINK_SECTIONS: tuple[Path, ...] = (("system", "links"), ("sip", "links"), ("cube", "links"))


@value(kw_only=True)
class RingRun:
    """One timing-only simulation of a ring for some sizes, on PE 0 of cube 0 of ``ranks`` SIPs."""

    machine: Document
    ccl: CclConfig
    ranks: int
    sizes: tuple[int, ...]

    def run(self) -> list[RingPoint]:
        """Simulate one size after another."""
        topology = join_sips(self.machine, ring_of(self.ranks), *_bulk_packets(self.machine))
        engine = GraphEngine(topology, enable_data=False)
        with patient_collector(), RuntimeContext[NoParams](engine, ccl=self.ccl) as torch:
            plan = torch.install_ipcq(RING)
            return [self._point(torch, engine, plan, nbytes) for nbytes in self.sizes]

    def _point(self, torch: RuntimeContext[Any], engine: GraphEngine, plan: IpcqPlan, nbytes: int) -> RingPoint:
        tensors = []
        for sip in range(self.ranks):
            torch.ahbm.set_device(sip)
            tensors.append(torch.empty(nbytes // ITEM_BYTES, dtype=DTYPE))
        algorithm = load_algorithm(plan.config)
        args = algorithm.args_for(engine.spec, n_elem=nbytes // ITEM_BYTES, dtype=DTYPE)
        torch.launch(RING, algorithm.kernel, tensors, *args)
        reports = [
            report
            for launch in launches_of(engine.handles)[-self.ranks :]
            if launch.outcome is not None
            for report in launch.outcome.reports
        ]
        for tensor in tensors:
            tensor.free()
        forms = ClosedForms(engine.machine, queues_of(plan.queues.settings))
        ring = forms.sip_round()
        return RingPoint(
            ranks=self.ranks,
            nbytes=nbytes,
            slot_size=plan.config.slot_size,
            n_slots=plan.config.n_slots,
            packet_bytes=engine.spec.transport.packet_bytes,
            hop_ns=ring.step.latency_ns,
            bw_gbs=ring.step.bw_gbs,
            kernel_ns=ps_to_ns(max(report.end_ps for report in reports) - min(report.start_ps for report in reports)),
            theory=forms.ring(self.ranks, nbytes, ring),
        )


def _bulk_packets(machine: Document) -> Iterator[str]:
    """Yield settings that enlarge the packets of a machine, and its FIFOs of fixed size."""
    links = ((*section, name) for section in LINK_SECTIONS for name in machine.get(section))
    fifos = [(*link, "fifo_bytes") for link in links]
    fifos += [("transport", "fifo_bytes"), ("transport", "long_link_fifo_bytes")]
    least = {("transport", "packet_bytes"): BULK_BYTES} | dict.fromkeys(fifos, PACKETS_PER_FIFO * BULK_BYTES)
    for path, nbytes in least.items():
        present = machine.get(path)
        if present is not None:
            yield f"{path_text(path)}={max(present, nbytes)}"
