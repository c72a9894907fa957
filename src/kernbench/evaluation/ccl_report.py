"""The evaluation of collectives from end to end: simulate, write results, draw figures, tell the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernbench.common.errors import VerificationError
from kernbench.evaluation.ccl_fabrics import AlgorithmName, Fabric
from kernbench.evaluation.ccl_latency_figures import draw_control, draw_latency
from kernbench.evaluation.ccl_reference import CclReference, SizeComparison, compared, largest_error, read_reference
from kernbench.evaluation.ccl_results import (
    DATA_FILE,
    CclSweep,
    CollectivePoint,
    read_sweep,
    sweep_document,
    write_sweep,
)
from kernbench.evaluation.ccl_ring_figures import draw_buffers, draw_rings
from kernbench.evaluation.ccl_study import CclStudy
from kernbench.evaluation.ccl_topology_figure import draw_topologies
from kernbench.evaluation.figure_style import size_title
from kernbench.evaluation.outputs import (
    CONFIGURATION_FILE,
    PROVENANCE_FILE,
    Summary,
    TableColumn,
    drawing_from,
    output_folder,
    provenance_of,
    write_csv,
    write_provenance,
)

LATENCY_FIGURE, CONTROL_FIGURE, BUFFERS_FIGURE = "ccl_latency.png", "ccl_control.png", "ccl_buffers.png"
RING_FIGURE, TOPOLOGY_FIGURE = "ccl_ring.png", "ccl_topologies.png"
REFERENCE_FILE = "ccl_reference.csv"


def evaluate_ccl(
    study: CclStudy, folder: str, made_by: str, parameters: Mapping[str, Any], reference: str | None = None
) -> Summary:
    """Simulate all of ``study``; results and figures go to ``folder``. ``reference``: a CSV file to compare with.

    VerificationError, when everything is written, for numbers that are wrong.
    """
    table = None if reference is None else read_reference(reference)
    place = output_folder(folder)
    if table is not None:
        study = replace(study, own_sizes=table.sizes)
    sweep = study.run()
    data = write_sweep(sweep, place)
    write_provenance(place, provenance_of(study.topology, made_by, parameters), study.topology)
    errors = _compare(sweep, table, place)
    figures = draw_figures(sweep, place, errors)
    check_numbers(sweep)
    files = (*data, *((REFERENCE_FILE,) if errors else ()), PROVENANCE_FILE, CONFIGURATION_FILE, *figures)
    return _summary(sweep, errors, table, place, files)


def redraw_ccl(folder: str, made_by: str, reference: str | None = None) -> Summary:
    """Draw the figures again from the results in ``folder``. InputError when it has none."""
    place = Path(folder)
    sweep = read_sweep(place, made_by)
    table = None if reference is None else read_reference(reference)
    with drawing_from(place / DATA_FILE):
        errors = _compare(sweep, table, place)
        figures = draw_figures(sweep, place, errors)
        return _summary(sweep, errors, table, place, (*((REFERENCE_FILE,) if errors else ()), *figures))


def draw_figures(sweep: CclSweep, folder: Path, reference: Sequence[SizeComparison] = ()) -> tuple[str, ...]:
    """Draw everything that there are results for; the names of the figures."""
    draw_latency(sweep, reference, folder / LATENCY_FIGURE)
    draw_control(sweep, folder / CONTROL_FIGURE)
    draw_topologies(sweep.fabrics, sweep.cubes, sweep.root_cube, folder / TOPOLOGY_FIGURE)
    drawn = [LATENCY_FIGURE, CONTROL_FIGURE, TOPOLOGY_FIGURE]
    if sweep.buffers:
        draw_buffers(sweep, folder / BUFFERS_FIGURE)
        drawn.append(BUFFERS_FIGURE)
    if sweep.rings:
        draw_rings(sweep, folder / RING_FIGURE)
        drawn.append(RING_FIGURE)
    return tuple(drawn)


def check_numbers(sweep: CclSweep) -> None:
    """VerificationError, which names them, when some results are not the sums that they should be."""
    wrong = [point.title for point in sweep.collectives if not point.passed]
    wrong += [
        f"message in {point.buffer_kind}, {point.senders} at once, {point.nbytes} bytes"
        for point in sweep.buffers
        if point.right != point.senders
    ]
    if wrong:
        total = len(sweep.collectives) + len(sweep.buffers)
        raise VerificationError(f"{len(wrong)} of {total} results are wrong: {'; '.join(wrong)}")


def _compare(sweep: CclSweep, reference: CclReference | None, folder: Path) -> tuple[SizeComparison, ...]:
    if reference is None:
        return ()
    errors = compared(sweep, reference)
    write_csv(folder / REFERENCE_FILE, [each.row for each in errors])
    return errors


def _summary(
    sweep: CclSweep,
    errors: Sequence[SizeComparison],
    reference: CclReference | None,
    folder: Path,
    files: tuple[str, ...],
) -> Summary:
    sizes = _common_sizes(sweep)
    return Summary(
        title="All-reduce by SIP topology: latency in µs by size of a contribution",
        columns=(
            TableColumn("algorithm", figures=False),
            TableColumn("SIPs", figures=False),
            *(TableColumn(size_title(nbytes)) for nbytes in sizes),
            TableColumn("control ns"),
            TableColumn("by ranks ns"),
            TableColumn("beyond closed form"),
            TableColumn("numbers", figures=False),
        ),
        rows=tuple(_row(sweep, a, f, sizes) for a in sweep.algorithms for f in sweep.fabrics),
        notes=(*_notes(sweep), *_reference_notes(errors, reference)),
        results=sweep_document(sweep),
        folder=folder,
        files=files,
    )


def _common_sizes(sweep: CclSweep) -> list[int]:
    """Return the sizes that every collective has."""
    curves = (sweep.curve(a, f) for a in sweep.algorithms for f in sweep.fabrics)
    return sorted(set.intersection(*({point.nbytes for point in curve} for curve in curves)))


def _row(sweep: CclSweep, algorithm: AlgorithmName, fabric: Fabric, sizes: Sequence[int]) -> tuple[str, ...]:
    curve = sweep.curve(algorithm, fabric)
    by_size = {point.nbytes: point for point in curve}
    right, of = min(point.right for point in curve), curve[0].contributions
    verdict = "PASS" if all(point.passed for point in curve) else "FAIL"
    return (
        algorithm,
        fabric.title,
        *(f"{by_size[nbytes].direct.latency_ns / 1000:,.3f}" for nbytes in sizes),
        _span((point.direct.control_ns for point in curve), ",.0f"),
        _span((point.distributed.control_ns for point in curve), ",.0f"),
        _beyond(curve),
        f"{verdict} {right} of {of}",
    )


def _beyond(curve: Iterable[CollectivePoint]) -> str:
    shares = [point.direct.kernel_ns / point.closed_ns - 1 for point in curve if point.closed_ns is not None]
    return _span(shares, ".1%") if shares else ""


def _span(values: Iterable[float], form: str) -> str:
    texts = [format(value, form) for value in sorted(values)]
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} … {texts[-1]}"


def _notes(sweep: CclSweep) -> tuple[str, ...]:
    kept = sum(point.same for point in sweep.collectives)
    notes = [
        "launched on all SIPs at once, until the last has ended; a contribution is a row of a cube "
        "(intercube_allreduce) or the tensor of a SIP (sip_allreduce)",
        "control: the part of it that is no kernel; by ranks: the same of dist.all_reduce behind a barrier",
        "beyond closed form: the kernels, over all sizes; of intercube_allreduce beyond its bound",
        f"{len(sweep.collectives)} collectives, each both ways: {kept} with the same bits both ways",
    ]
    if sweep.rings:
        worst = max(sweep.rings, key=lambda point: abs(point.beyond_theory))
        notes.append(
            f"ring oracle: {len(sweep.rings)} rings of {min(p.ranks for p in sweep.rings)} to "
            f"{max(p.ranks for p in sweep.rings)} SIPs, at most {abs(worst.beyond_theory):.1%} from theory with its "
            f"end terms (times only)"
        )
    return tuple(notes)


def _reference_notes(errors: Sequence[SizeComparison], reference: CclReference | None) -> tuple[str, ...]:
    if reference is None or not errors:
        return ()
    lines = [
        f"  {size_title(each.nbytes)}: {each.reference_ns:,.0f} ns, simulated {each.latency_ns:,.0f}, {each.error:+.1%}"
        for each in errors
    ]
    return (f"reference {reference.name}, largest error {largest_error(errors):.1%}:", *lines)
