"""A copy of a sharded tensor: every PE finds its shard by ``base + program_id * stride``."""

from __future__ import annotations

from pydantic import PositiveInt

from kernbench.benches.shared import make_later_data
from kernbench.common.config import ConfigModel
from kernbench.kernels.elementwise import offset_copy
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext


class VaOffsetParams(ConfigModel):
    """A tensor with ``rows_per_pe`` rows of ``columns`` elements on each PE."""

    rows_per_pe: PositiveInt = 4
    """Rows per PE."""
    columns: PositiveInt = 256
    """Elements per row."""


@bench("va-offset-verify", "base + program_id * stride copies over a sharded tensor", params=VaOffsetParams)
def run(torch: RuntimeContext[VaOffsetParams]) -> None:
    """Copy rows. The copy is correct only if every program's virtual addresses lead to its own shard."""
    p = torch.params
    shape = (p.rows_per_pe * torch.topology.pes_per_sip, p.columns)
    by_row = DPPolicy("row_wise", "row_wise")
    host = make_later_data(shape, "f16", seed=1)
    source = torch.empty(shape, dtype=torch.f16, dp=by_row, name="source").copy_(host)
    target = torch.zeros(shape, dtype=torch.f16, dp=by_row, name="target")
    count = p.rows_per_pe * p.columns
    torch.launch("offset-copy", offset_copy, source, target, count, count * torch.f16.itemsize, torch.f16)
    torch.testing.assert_close(target, host, rtol=0, atol=0)
