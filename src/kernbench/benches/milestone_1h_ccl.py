"""The evaluation of collectives: verified all-reduces over several SIP topologies, with results and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, PositiveInt

from kernbench.common.config import ConfigModel
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology
from kernbench.topology.elaborate import elaborate

if TYPE_CHECKING:
    from kernbench.evaluation.study_report import Summary

NAME = "milestone-1h-ccl"
WORKERS = 2


class CclEvaluationParams(ConfigModel):
    """The extent of the evaluation, and the folder of its results."""

    sizes: tuple[PositiveInt, ...] = ()
    """Sizes of contributions in bytes; none: the usual sizes."""
    full: bool = False
    """Include more sizes, up to 1 MiB."""
    rings: bool = True
    """Include the ring that others are compared with."""
    reference: str | None = None
    """CSV file (size_bytes, latency_ns) to compare with; null: none."""
    ccl: str | None = None
    """File with the configuration of collectives; null: ./ccl.yaml, else the packaged one."""
    jobs: int = Field(default=WORKERS, ge=1, le=256)
    """Number of processes."""
    out: str = f"results/{NAME}"
    """Folder of results."""
    render_only: bool = False
    """Only redraw the figures from existing results."""


@bench(
    NAME,
    "evaluation: all-reduce by SIP topology, size and buffer kind, beside closed forms, with figures",
    params=CclEvaluationParams,
    evaluation=True,
)
def run(torch: RuntimeContext[CclEvaluationParams]) -> Summary:
    """Evaluate collectives on machines derived from the machine of this run. Numbers are always verified."""
    # They draw figures. Their import takes as long as that of all benches, so only an evaluation imports them.
    from kernbench.evaluation import ccl_fabrics, ccl_report, ccl_runs, ccl_study  # noqa: PLC0415

    p = torch.params
    command = f"kernbench run --bench {NAME}"
    reference = None if p.reference is None else ccl_report.read_reference(p.reference)
    report = ccl_report.report_ccl(reference)
    if p.render_only:
        return report.redraw(p.out, command)
    study = ccl_study.CclStudy(
        topology=Topology(elaborate(torch.topology), "the machine of the run, in topology.resolved.yaml"),
        sizes=p.sizes or (ccl_fabrics.FULL_SIZES if p.full else ccl_fabrics.SIZES),
        own_sizes=() if reference is None else reference.sizes,
        ranks=ccl_runs.RANKS if p.rings else (),
        ccl=p.ccl,
        jobs=p.jobs,
    )
    return report.evaluate(study, p.out, command, p.model_dump(mode="json"))
