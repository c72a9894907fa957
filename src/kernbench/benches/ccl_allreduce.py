"""All-reduce as a PyTorch program does it: a rank for every SIP, and ccl.yaml's algorithm between them."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from kernbench.benches.all_reduce import Contribution, rows_on, verdict
from kernbench.benches.operands import FloatName
from kernbench.common.config import ConfigModel
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext

DEFAULT_ELEMENTS = 8


class CclAllReduceParams(ConfigModel):
    """``n_elem`` elements a contribution (ccl.yaml's n_elem, else 8), reduced by ``op``."""

    n_elem: PositiveInt | None = None
    dtype: FloatName = "f32"
    op: Literal["sum", "max", "min", "avg"] = "sum"


@bench(
    "ccl-allreduce",
    "ccl.yaml's all-reduce through torch.distributed, a rank for every SIP",
    params=CclAllReduceParams,
)
def run(torch: RuntimeContext[CclAllReduceParams]) -> str:
    """Rank r contributes r+1 in every row."""
    made: list[Contribution] = []
    world_size = torch.topology.num_sips
    torch.multiprocessing.spawn(_rank, args=(torch, made), nprocs=world_size)
    return verdict(torch, torch.distributed.algorithm.name, world_size, made)


def _rank(rank: int, torch: RuntimeContext[CclAllReduceParams], made: list[Contribution]) -> None:
    dist, p = torch.distributed, torch.params
    torch.ahbm.set_device(rank)
    dist.init_process_group("ahbm")
    config, world_size = dist.algorithm, dist.get_world_size()
    # One row for each PE that takes part, unless the algorithm wants a single shard.
    sums_rows = config.validator == "row_per_cube"
    rows, policy = rows_on([(rank, cube, 0) for cube in range(torch.topology.cubes_per_sip if sums_rows else 1)])
    n_elem = p.n_elem or config.n_elem or DEFAULT_ELEMENTS
    tensor = torch.full((rows, n_elem), rank + 1, dtype=p.dtype, dp=policy, name=f"rank{rank}")
    dist.all_reduce(tensor, op=p.op)
    made.append(Contribution(tensor, _expected(p.op, world_size, rows if sums_rows else 1)))
    dist.barrier()
    dist.destroy_process_group()


def _expected(op: str, world_size: int, rows: int) -> float:
    """What 1, 2, … world_size, each in so many rows, reduce to."""
    total = world_size * (world_size + 1) / 2
    return {"sum": rows * total, "avg": total / world_size, "max": float(world_size), "min": 1.0}[op]
