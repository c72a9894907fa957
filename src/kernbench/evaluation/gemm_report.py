"""The GEMM evaluation from end to end: simulate, write results, draw figures, tell the reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernbench.common.errors import VerificationError
from kernbench.evaluation.gemm_figures import draw_large, draw_stages, draw_theory, draw_utilisation
from kernbench.evaluation.gemm_measure import GemmStudy
from kernbench.evaluation.gemm_results import (
    CSV_FILE,
    DATA_FILE,
    PARQUET_FILE,
    GemmRun,
    GemmSweep,
    read_sweep,
    sweep_document,
    write_sweep,
)
from kernbench.evaluation.gemm_shapes import LARGEST
from kernbench.evaluation.outputs import (
    CONFIGURATION_FILE,
    PROVENANCE_FILE,
    Summary,
    TableColumn,
    drawing_from,
    output_folder,
    provenance_of,
    write_provenance,
)

STAGES_FIGURE, LARGE_FIGURE = "gemm_stages.png", "gemm_512.png"
UTILISATION_FIGURE, THEORY_FIGURE = "gemm_utilisation.png", "gemm_theory.png"
COLUMNS = (
    TableColumn("shape M×K×N", figures=False),
    TableColumn("variant", figures=False),
    TableColumn("blocks", figures=False),
    TableColumn("tiles"),
    TableColumn("measured ns"),
    TableColumn("ideal ns"),
    TableColumn("beyond"),
    TableColumn("MACs busy"),
    TableColumn("useful"),
    TableColumn("ideal is bound by", figures=False),
    TableColumn("numbers", figures=False),
)


def evaluate_gemm(study: GemmStudy, folder: str, made_by: str, parameters: Mapping[str, Any]) -> Summary:
    """Simulate all of ``study``; results and figures go to ``folder``.

    VerificationError, when everything is written, for numbers that are wrong.
    """
    place = output_folder(folder)
    sweep = study.run()
    write_sweep(sweep, place)
    write_provenance(place, provenance_of(study.topology, made_by, parameters), study.topology)
    figures = draw_figures(sweep, place)
    check_numbers(sweep)
    data = (DATA_FILE, CSV_FILE, PARQUET_FILE, PROVENANCE_FILE, CONFIGURATION_FILE)
    return _summary(sweep, place, (*data, *figures))


def redraw_gemm(folder: str, made_by: str) -> Summary:
    """Draw the figures again from the results in ``folder``. InputError when it has none."""
    place = Path(folder)
    sweep = read_sweep(place, made_by)
    with drawing_from(place / DATA_FILE):
        return _summary(sweep, place, draw_figures(sweep, place))


def draw_figures(sweep: GemmSweep, folder: Path) -> tuple[str, ...]:
    """Draw everything; the names of the figures. The largest shape has one of its own."""
    draw_utilisation(sweep, folder / UTILISATION_FIGURE)
    draw_theory(sweep, folder / THEORY_FIGURE)
    drawn = [UTILISATION_FIGURE, THEORY_FIGURE]
    if set(sweep.shapes) != {LARGEST}:
        draw_stages(sweep, folder / STAGES_FIGURE)
        drawn.append(STAGES_FIGURE)
    if LARGEST in sweep.shapes:
        draw_large(sweep.of(LARGEST), folder / LARGE_FIGURE)
        drawn.append(LARGE_FIGURE)
    return tuple(drawn)


def check_numbers(sweep: GemmSweep) -> None:
    """VerificationError, which names them, when some results were not what the host computed."""
    wrong = [run.title for run in sweep.runs if not run.verified.passed]
    if wrong:
        raise VerificationError(f"{len(wrong)} of {len(sweep.runs)} products are wrong: {', '.join(wrong)}")


def _summary(sweep: GemmSweep, folder: Path, files: tuple[str, ...]) -> Summary:
    return Summary(
        title="GEMM by tile plan on one PE: the kernel as measured, and the ideal pipeline",
        columns=COLUMNS,
        rows=tuple(_row(run) for run in sweep.runs),
        notes=(
            "* under-tile: M, K or N is below the tile, so that every tile is partly empty",
            "blocks: M×K×N of the blocks that a product went by; without, operands are streamed or staged",
            "beyond: how much longer than the ideal the kernel took",
            "MACs busy: the part of the kernel's time in which the matrix unit worked (MAC utilisation)",
            "useful: the MACs of the product over what the unit could have done in the kernel's time",
            f"{len(sweep.runs)} simulations, all numbers verified",
        ),
        results=sweep_document(sweep),
        folder=folder,
        files=files,
    )


def _row(run: GemmRun) -> tuple[str, ...]:
    return (
        f"{run.shape}{' *' if run.under_tile else ''}",
        run.variant,
        run.blocks,
        f"{run.tiles:,}",
        f"{run.pe.ns:,.3f}",
        f"{run.ideal.ns:,.3f}",
        f"{run.beyond_ideal:.1%}",
        f"{run.mac_utilisation:.1%}",
        f"{run.useful_efficiency:.1%}",
        run.ideal.longest if run.tiles > 1 else "latency: one tile",
        "PASS" if run.verified.passed else "FAIL",
    )
