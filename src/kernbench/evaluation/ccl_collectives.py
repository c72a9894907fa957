"""Simulate, time and verify collectives in two ways on one machine: called by ranks, and launched by one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from kernbench.ccl.config import AlgorithmConfig, CclConfig
from kernbench.ccl.install import edges_of, find_algorithm, install_edges, uninstall
from kernbench.ccl.loading import Algorithm
from kernbench.ccl.rings import ring_of_all
from kernbench.ccl.topologies import QueueEdge, fabric_edges
from kernbench.common.collector import patient_collector
from kernbench.common.config import Document
from kernbench.common.dtypes import Array
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.evaluation.ccl_fabrics import DTYPE, INTERCUBE, ITEM_BYTES, AlgorithmName, Fabric, join_sips, queues_of
from kernbench.evaluation.ccl_results import CollectivePoint, CollectiveTime
from kernbench.evaluation.ccl_theory import ClosedForms, CollectiveBounds
from kernbench.policy.placement.dp import SINGLE_PE, DPPolicy
from kernbench.runtime_api.context import NoParams, RuntimeContext
from kernbench.runtime_api.launch_report import launches_of
from kernbench.runtime_api.layout import shard_table
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.spec import TopologySpec

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
        return [replace(self, sizes=(nbytes,)).point() for nbytes in self.sizes]

    def point(self) -> CollectivePoint:
        """Simulate one size."""
        (nbytes,) = self.sizes
        engine = GraphEngine(join_sips(self.machine, self.fabric))
        program = _HostProgram(self, find_algorithm(self.algorithm, None, self.ccl), engine.spec)
        with patient_collector(), RuntimeContext[NoParams](engine, ccl=self.ccl) as torch:
            by_ranks = program.by_ranks(torch, engine)
            directly = program.directly(torch, engine)
        timings = {name: _timings(engine.handles, name, self.fabric.sips) for name in (DISTRIBUTED, DIRECT)}
        config = program.algorithm.config
        return CollectivePoint(
            algorithm=self.algorithm,
            fabric=self.fabric,
            buffer_kind=config.buffer_kind,
            nbytes=nbytes,
            distributed=timings[DISTRIBUTED][0],
            direct=timings[DIRECT][0],
            closed_ns=self._theory_ns(engine, config, nbytes) if config.buffer_kind == "tcm" else None,
            contributions=program.contributions,
            right=min(program.count_right(result[nbytes]) for result in (by_ranks, directly)),
            same=all(by_ranks[nbytes][rank].tobytes() == directly[nbytes][rank].tobytes() for rank in by_ranks[nbytes]),
        )

    def _theory_ns(self, engine: GraphEngine, config: AlgorithmConfig, nbytes: int) -> float:
        """Return the closed form of the kernel in ns; for the algorithm over cubes, a lower bound."""
        queues = queues_of(config)
        if self.algorithm == INTERCUBE:
            return CollectiveBounds(engine.machine, queues).intercube_ns(nbytes, self.root_cube)
        return ClosedForms(engine.machine, queues).sip_ns([(0, 0)], nbytes)


@value
class _HostProgram:
    """The host program of a run. The program returns the final contents of each rank's tensor, by size."""

    run: CollectiveRun
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

    def by_ranks(self, torch: RuntimeContext[Any], engine: GraphEngine) -> dict[int, ByRank]:
        """Run one rank per SIP. All ranks call the collective at about the same time, after a barrier."""
        results: dict[int, ByRank] = {nbytes: {} for nbytes in self.run.sizes}

        def rank_program(rank: int) -> None:
            dist = torch.distributed
            torch.ahbm.set_device(rank)
            dist.init_process_group("ahbm")
            for nbytes in self.run.sizes:
                tensor = self._tensor(torch, rank, nbytes)
                dist.barrier()
                dist.all_reduce(tensor)
                results[nbytes][rank] = _read_tensor(engine, tensor)
                tensor.free()
            dist.destroy_process_group()

        torch.multiprocessing.spawn(rank_program, nprocs=self.run.fabric.sips)
        return results

    def directly(self, torch: RuntimeContext[Any], engine: GraphEngine) -> dict[int, ByRank]:
        """Run one program, which installs queues and then launches on every SIP at once."""
        queues = install_edges(engine, self._edges(), self.algorithm.config)
        results: dict[int, ByRank] = {}
        for nbytes in self.run.sizes:
            tensors = []
            for sip in range(self.run.fabric.sips):
                torch.ahbm.set_device(sip)
                tensors.append(self._tensor(torch, sip, nbytes))
            works = [
                torch.launch(DIRECT, self.algorithm.kernel, tensor, *self._args(tensor), async_op=True)
                for tensor in tensors
            ]
            for work in works:
                work.wait()
            results[nbytes] = {tensor.sip: _read_tensor(engine, tensor) for tensor in tensors}
            for tensor in tensors:
                tensor.free()
        uninstall(engine, queues)
        return results

    def count_right(self, result: Mapping[int, Array]) -> int:
        """Count the contributions that equal the complete sum."""
        total = self.rows * sum(rank + 1 for rank in range(self.run.fabric.sips))
        return sum(bool(np.all(row == total * _pattern(row.size))) for held in result.values() for row in held)

    def _tensor(self, torch: RuntimeContext[Any], rank: int, nbytes: int) -> Tensor:
        data = np.tile((rank + 1) * _pattern(nbytes // ITEM_BYTES), (self.rows, 1))
        return torch.tensor(data, dtype=DTYPE, dp=ROW_PER_CUBE if self.run.algorithm == INTERCUBE else SINGLE_PE)

    def _edges(self) -> Sequence[QueueEdge]:
        """Return the queue edges of the algorithm. With ranks: those of PE 0 of cube 0 between SIPs."""
        own = edges_of(self.algorithm, self.spec)
        return own or [edge for edge in fabric_edges(self.spec) if edge[0][1:] == (0, 0)]

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


def _timings(handles: Sequence[RequestHandle], name: str, sips: int) -> list[CollectiveTime]:
    """Return the times of the collectives called ``name``, in order. Each collective consists of one launch per SIP."""
    launches = [each for each in launches_of(handles) if each.msg.name == name]
    return [_timing(launches[at : at + sips]) for at in range(0, len(launches), sips)]


def _timing(launches: Sequence[RequestHandle]) -> CollectiveTime:
    kernels = [each.outcome.reports for each in launches if each.outcome is not None]
    begin = max(min(report.start_ps for report in reports) for reports in kernels)
    end = max(report.end_ps for reports in kernels for report in reports)
    called, over = max(each.submitted_ps for each in launches), max(each.ended_ps for each in launches)
    return CollectiveTime(latency_ns=ps_to_ns(over - called), kernel_ns=ps_to_ns(end - begin))
