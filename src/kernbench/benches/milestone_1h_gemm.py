"""The GEMM evaluation: 8 shapes in 4 variants, each in a separate simulation, with results and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pydantic import Field, PositiveInt

from kernbench.benches.shared import FloatName
from kernbench.common.config import ConfigModel
from kernbench.evaluation.gemm_shapes import SHAPES, GemmShape
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology
from kernbench.topology.elaborate import elaborate

if TYPE_CHECKING:
    from kernbench.evaluation.study_report import Summary

NAME = "milestone-1h-gemm"
Extents: TypeAlias = tuple[PositiveInt, PositiveInt, PositiveInt]


class GemmEvaluationParams(ConfigModel):
    """The products of the evaluation, and the folder of its results."""

    shapes: tuple[Extents, ...] = Field(default=tuple((shape.m, shape.k, shape.n) for shape in SHAPES), min_length=1)
    """Products, as (m, k, n)."""
    dtype: FloatName = "f16"
    """Type of the operands."""
    out: str = f"results/{NAME}"
    """Folder of results."""
    render_only: bool = False
    """Only redraw the figures from existing results."""


@bench(
    NAME,
    "evaluation: 8 GEMMs in 4 variants, measured and ideal, with figures",
    params=GemmEvaluationParams,
    evaluation=True,
)
def run(torch: RuntimeContext[GemmEvaluationParams]) -> Summary:
    """Evaluate GEMMs on the machine of this run. Numbers are always verified."""
    # They draw figures. Their import takes as long as that of all benches, so only an evaluation imports them.
    from kernbench.evaluation import gemm_measure, gemm_report  # noqa: PLC0415

    p = torch.params
    command = f"kernbench run --bench {NAME}"
    if p.render_only:
        return gemm_report.GEMM_REPORT.redraw(p.out, command)
    study = gemm_measure.GemmStudy(
        topology=Topology(elaborate(torch.topology), "the machine of the run, in topology.resolved.yaml"),
        shapes=tuple(dict.fromkeys(GemmShape(*extents) for extents in p.shapes)),
        dtype=p.dtype,
        sip=torch.devices.current,
    )
    return gemm_report.GEMM_REPORT.evaluate(study, p.out, command, p.model_dump(mode="json"))
