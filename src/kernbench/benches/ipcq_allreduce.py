"""All-reduce on raw queues: one program installs the queues and launches the algorithm's kernel."""

from __future__ import annotations

from pydantic import PositiveInt

from kernbench.benches.shared import Contribution, FloatName, compare_contributions, reduce_values, spread_rows
from kernbench.ccl.install import IpcqPlan
from kernbench.ccl.loading import load_algorithm
from kernbench.common.config import ConfigModel
from kernbench.common.errors import InputError
from kernbench.messages.requests import PeCoord
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext

DEFAULT_ELEMENTS = 1024


class IpcqAllReduceParams(ConfigModel):
    """An all-reduce and its participants."""

    algorithm: str = "ring_allreduce_tcm"
    """Algorithm of ccl.yaml."""
    world_size: PositiveInt | None = 8
    """Number of participating PEs, from the first on; null: as in the algorithm."""
    n_elem: PositiveInt | None = None
    """Elements per PE; null: n_elem of ccl.yaml, else 1024."""
    dtype: FloatName = "f32"
    """Type of the elements."""


@bench("ipcq-allreduce", "an all-reduce of ccl.yaml on raw queues, PEs or SIPs as ranks", params=IpcqAllReduceParams)
def run(torch: RuntimeContext[IpcqAllReduceParams]) -> str:
    """Reduce contributions: participant i contributes i+1 to every element."""
    p = torch.params
    plan = torch.install_ipcq(algorithm=p.algorithm, world_size_override=p.world_size)
    if plan.world_size > 1 and not plan.queues.edges:
        raise InputError(f"algorithm {p.algorithm!r} uses no queues (topology none): try ccl-allreduce")
    algorithm = load_algorithm(plan.config)
    n_elem = p.n_elem or plan.config.n_elem or DEFAULT_ELEMENTS
    args = algorithm.args_for(torch.topology, n_elem=n_elem, dtype=p.dtype)
    pes = sorted(pe for members in plan.rank_pes for pe in members)
    contributions = [_make_contributions(torch, plan, pes, sip, n_elem) for sip in sorted({pe[0] for pe in pes})]
    torch.launch("allreduce", algorithm.kernel, [contribution.tensor for contribution in contributions], *args)
    line = compare_contributions(torch, plan.config.name, plan.world_size, contributions)
    torch.uninstall_ipcq(plan)
    return line


def _make_contributions(
    torch: RuntimeContext[IpcqAllReduceParams], plan: IpcqPlan, pes: list[PeCoord], sip: int, n_elem: int
) -> Contribution:
    """Make a row for each participating PE of a SIP."""
    sip_pes = [pe for pe in pes if pe[0] == sip]
    rows, policy = spread_rows(sip_pes)
    if rows != len(sip_pes):
        raise InputError(
            f"world_size={plan.world_size}: {len(sip_pes)} PEs of SIP {sip} take part and do not fill complete cubes; "
            f"use up to {torch.topology.pes_per_cube} ranks or a multiple of that number"
        )
    torch.ahbm.set_device(sip)
    tensor = torch.empty(rows, n_elem, dtype=torch.params.dtype, dp=policy, name=f"t{sip}")
    for row, pe in enumerate(sip_pes):
        tensor[row] = pes.index(pe) + 1
    return Contribution(tensor, reduce_values(plan.config.reduce_op, [float(i + 1) for i in range(len(pes))]))
