"""All-reduce as in a PyTorch program: one rank per SIP, with the algorithm of ccl.yaml between them."""

from __future__ import annotations

from pydantic import PositiveInt

from kernbench.benches.shared import Contribution, FloatName, compare_contributions, reduce_values, spread_rows
from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.layouts import all_pes, pe0_of_every_cube
from kernbench.common.config import ConfigModel
from kernbench.messages.steps import ReduceName
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.spec import TopologySpec

DEFAULT_ELEMENTS = 8
ANY_LAYOUT = "sip_allreduce"
OVER_PES = ("intercube_allreduce", "hierarchical_allreduce")
"""Algorithms that also reduce over the PEs of a rank"""


class CclAllReduceParams(ConfigModel):
    """The contribution of each rank, and the reduction."""

    n_elem: PositiveInt | None = None
    """Elements of a contribution; null: n_elem of ccl.yaml, else 8."""
    dtype: FloatName = "f32"
    """Type of the elements."""
    op: ReduceName | None = None
    """Reduction; null: as in ccl.yaml, else the sum."""


@bench(
    "ccl-allreduce",
    "ccl.yaml's all-reduce through torch.distributed, a rank for every SIP",
    params=CclAllReduceParams,
)
def run(torch: RuntimeContext[CclAllReduceParams]) -> str:
    """Reduce rows, with contribution r+1 of rank r."""
    tensors: list[Tensor] = []
    world_size = torch.topology.num_sips
    torch.multiprocessing.spawn(_rank, args=(torch, tensors), nprocs=world_size)
    ran = next(trace.algorithm for trace in torch.traces if trace.name == "all_reduce")
    config = torch.distributed.algorithm
    over_pes = ran == config.name and (config.module in OVER_PES or config.validator == "row_per_cube")
    values = [float(rank + 1) for rank in range(world_size) for _ in range(tensors[0].shape[0] if over_pes else 1)]
    expected = reduce_values(torch.params.op or config.reduce_op, values)
    return compare_contributions(torch, str(ran), world_size, [Contribution(tensor, expected) for tensor in tensors])


def _rank(rank: int, torch: RuntimeContext[CclAllReduceParams], tensors: list[Tensor]) -> None:
    dist, p = torch.distributed, torch.params
    torch.ahbm.set_device(rank)
    dist.init_process_group("ahbm")
    config = dist.algorithm
    rows, policy = spread_rows([(rank, *pe) for pe in _owners(config, torch.topology)])
    n_elem = p.n_elem or config.n_elem or DEFAULT_ELEMENTS
    tensor = torch.full((rows, n_elem), rank + 1, dtype=p.dtype, dp=policy, name=f"rank{rank}")
    dist.all_reduce(tensor, op=p.op)
    tensors.append(tensor)
    dist.barrier()
    dist.destroy_process_group()


def _owners(config: AlgorithmConfig, machine: TopologySpec) -> list[tuple[int, int]]:
    """Return the PEs (cube, pe) of a SIP that each have a row of a tensor that the algorithm accepts."""
    if config.validator == "row_per_cube":
        return pe0_of_every_cube(machine, 0)
    if config.validator == "multi_pe_sip_local" and config.module != ANY_LAYOUT:
        return all_pes(machine, 0)
    return [(0, 0)]
