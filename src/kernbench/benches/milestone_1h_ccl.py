"""The evaluation of collectives: all-reduce over SIPs joined in several ways, verified, with results and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, PositiveInt

from kernbench.common.config import ConfigModel
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology
from kernbench.topology.elaborate import elaborate

if TYPE_CHECKING:
    from kernbench.evaluation.outputs import Summary

NAME = "milestone-1h-ccl"
WORKERS = 2


class CclEvaluationParams(ConfigModel):
    """``sizes``: of contributions, in bytes, none: the usual ones; ``full``: more of those, up to 1 MiB.

    ``rings``: the ring oracle too. ``reference``: a CSV file (size_bytes, latency_ns) to compare with; ``ccl``: the
    file that configures collectives. ``jobs``: processes. ``out``: the folder of results; ``render_only``: draw again.
    """

    sizes: tuple[PositiveInt, ...] = ()
    full: bool = False
    rings: bool = True
    reference: str | None = None
    ccl: str | None = None
    jobs: int = Field(default=WORKERS, ge=1, le=256)
    out: str = f"results/{NAME}"
    render_only: bool = False


@bench(
    NAME,
    "evaluation: all-reduce by SIP topology, size and buffer kind, beside closed forms, with figures",
    params=CclEvaluationParams,
    evaluation=True,
)
def run(torch: RuntimeContext[CclEvaluationParams]) -> Summary:
    """Evaluate collectives on machines made of that of this run; numbers are always verified."""
    # They draw, and to import that takes as long as to import all benches: only who evaluates shall wait for it.
    from kernbench.evaluation import ccl_fabrics, ccl_report, ccl_rings, ccl_study  # noqa: PLC0415

    p = torch.params
    command = f"kernbench run --bench {NAME}"
    if p.render_only:
        return ccl_report.redraw_ccl(p.out, command, p.reference)
    study = ccl_study.CclStudy(
        topology=Topology(elaborate(torch.topology), "the machine of the run, in topology.resolved.yaml"),
        sizes=p.sizes or (ccl_fabrics.FULL_SIZES if p.full else ccl_fabrics.SIZES),
        ranks=ccl_rings.RANKS if p.rings else (),
        ccl=p.ccl,
        jobs=p.jobs,
    )
    return ccl_report.evaluate_ccl(study, p.out, command, p.model_dump(mode="json"), p.reference)
