"""Report of the collective evaluation: files, figures, summary, and the comparison with a reference.

The reference is a table of latency against size, from an external simulator or a measurement.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from pydantic import TypeAdapter

from kernbench.common.errors import InputError, UnreadableFileError
from kernbench.common.files import read_input
from kernbench.common.values import value
from kernbench.evaluation.ccl_fabrics import INTERCUBE, AlgorithmName, Fabric
from kernbench.evaluation.ccl_figures import draw_buffers, draw_control, draw_latency, draw_rings
from kernbench.evaluation.ccl_results import CclSweep, CollectivePoint, SizeComparison
from kernbench.evaluation.ccl_topology_figure import draw_topologies
from kernbench.evaluation.study_report import Drawing, StudyReport
from kernbench.result.figure_style import size_title
from kernbench.topology.grid import Grid

MOST_DRAWN = 10_000
"""Maximum number of SIPs, and of cubes per SIP, that a figure draws"""


def report_ccl(reference: CclReference | None = None) -> StudyReport[CclSweep]:
    """Return the report: all-reduce by fabric, size and buffer kind, compared with closed forms and a reference."""

    def compare(sweep: CclSweep) -> tuple[SizeComparison, ...]:
        return () if reference is None else compare_sizes(sweep, reference)

    return StudyReport(
        title="All-reduce by SIP topology: latency in µs by size of a contribution",
        data_file="ccl_sweep.json",
        form=TypeAdapter(CclSweep),
        tables=lambda sweep: {
            "summary.csv": sweep.collectives,
            "ccl_buffers.csv": sweep.buffers,
            "ccl_ring.csv": sweep.rings,
        },
        comparisons=lambda sweep: {"ccl_reference.csv": [comparison.row for comparison in compare(sweep)]},
        find_gap=_find_gap,
        drawings=lambda sweep: _drawings(sweep, compare(sweep)),
        words=("algorithm", "SIPs", "numbers"),
        rows=lambda sweep: [
            _row(sweep, algorithm, fabric) for algorithm in sweep.algorithms for fabric in sweep.fabrics
        ],
        notes=lambda sweep: (*_notes(sweep), *_reference_notes(reference, compare(sweep))),
    )


def _find_gap(sweep: CclSweep) -> str:
    curves = {(a, f): sweep.curve(a, f) for a in sweep.algorithms for f in sweep.fabrics}
    missing = next((f"{algorithm} on {fabric.title}" for (algorithm, fabric), curve in curves.items() if not curve), "")
    if not curves or missing:
        return f"there are no collectives of {missing}" if missing else "there are no collectives"
    if not _can_be_drawn(sweep.cubes) or sweep.root_cube not in range(len(sweep.cubes)):
        return f"cubes are {sweep.cubes.w}×{sweep.cubes.h}, and cube {sweep.root_cube} is the root"
    for fabric in sweep.fabrics:
        if not _can_be_drawn(Grid(fabric.w, fabric.h)) or fabric.w * fabric.h != fabric.sips:
            return f"a {fabric.family} has {fabric.sips} SIPs in {fabric.w} columns and {fabric.h} rows"
    return "" if sweep.common_sizes else "there is no size with which all collectives were run"


def _can_be_drawn(grid: Grid) -> bool:
    return grid.w > 0 and grid.h > 0 and grid.w * grid.h <= MOST_DRAWN


def _drawings(sweep: CclSweep, reference: Sequence[SizeComparison]) -> dict[str, Drawing]:
    drawings: dict[str, Drawing] = {
        "ccl_latency.png": partial(draw_latency, sweep, reference),
        "ccl_control.png": partial(draw_control, sweep),
        "ccl_topologies.png": partial(draw_topologies, sweep.fabrics, sweep.cubes, sweep.root_cube),
    }
    if sweep.buffers:
        drawings["ccl_buffers.png"] = partial(draw_buffers, sweep)
    if sweep.rings:
        drawings["ccl_ring.png"] = partial(draw_rings, sweep)
    return drawings


def _row(sweep: CclSweep, algorithm: AlgorithmName, fabric: Fabric) -> dict[str, str]:
    curve = sweep.curve(algorithm, fabric)
    by_size = {point.nbytes: point for point in curve}
    right, of = min(point.right for point in curve), curve[0].contributions
    shares = [point.direct.kernel_ns / point.closed_ns - 1 for point in curve if point.closed_ns is not None]
    return {
        "algorithm": algorithm,
        "SIPs": fabric.title,
        **{size_title(size): f"{by_size[size].direct.latency_ns / 1000:,.3f}" for size in sweep.common_sizes},
        "control ns": _span((point.direct.control_ns for point in curve), ",.0f"),
        "by ranks ns": _span((point.distributed.control_ns for point in curve), ",.0f"),
        "beyond closed form": _span(shares, ".1%") if shares else "",
        "numbers": f"{'PASS' if all(point.passed for point in curve) else 'FAIL'} {right} of {of}",
    }


def _span(values: Iterable[float], form: str) -> str:
    texts = [format(value, form) for value in sorted(values)]
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} … {texts[-1]}"


def _notes(sweep: CclSweep) -> tuple[str, ...]:
    same = sum(point.same for point in sweep.collectives)
    notes = [
        "launched on all SIPs at once, until the last has ended; a contribution is a row of a cube "
        "(intercube_allreduce) or the tensor of a SIP (sip_allreduce)",
        "control: the part of it that is no kernel; by ranks: the same of dist.all_reduce behind a barrier",
        "beyond closed form: the kernels, over all sizes; of intercube_allreduce beyond its bound",
        f"{len(sweep.collectives)} collectives, each both ways: {same} with the same bits both ways",
    ]
    if sweep.rings:
        worst = max(sweep.rings, key=lambda point: abs(point.beyond_theory))
        notes.append(
            f"ring oracle: {len(sweep.rings)} rings of {min(p.ranks for p in sweep.rings)} to "
            f"{max(p.ranks for p in sweep.rings)} SIPs, at most {abs(worst.beyond_theory):.1%} from theory with its "
            f"end terms (times only)"
        )
    return tuple(notes)


def _reference_notes(reference: CclReference | None, comparisons: Sequence[SizeComparison]) -> tuple[str, ...]:
    if reference is None:
        return ()
    lines = [
        f"  {size_title(comparison.nbytes)}: {comparison.reference_ns:,.0f} ns, "
        f"simulated {comparison.latency_ns:,.0f}, {comparison.error:+.1%}"
        for comparison in comparisons
    ]
    worst = max(abs(comparison.error) for comparison in comparisons)
    return (f"reference {reference.name}, largest error {worst:.1%}:", *lines)


COLUMNS = ("size_bytes", "latency_ns")


@value
class CclReference:
    """Reference latencies from a file: latency in ns by size in bytes, in ascending order of size."""

    name: str
    latencies: tuple[tuple[int, float], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes in bytes."""
        return tuple(nbytes for nbytes, _ in self.latencies)


def read_reference(path: str) -> CclReference:
    """Read a CSV file with the columns ``size_bytes`` and ``latency_ns``; other columns are ignored.

    Raises InputError, with the line, for a missing, non-numeric, non-positive or duplicate value.
    """
    try:
        text = io.StringIO(read_input(path).decode("utf-8-sig"), newline="")
        reader = csv.DictReader(text, skipinitialspace=True)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            columns = ", ".join(reader.fieldnames or ()) or "nothing"
            raise InputError(f"{path}: no column {', '.join(missing)}; its first line has: {columns}")
        lines = [(reader.line_num, row) for row in reader]
    except UnreadableFileError as error:
        raise InputError(f"{path}: cannot be read as a reference table: {error.why}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a reference table: {error}") from error
    table: dict[int, float] = {}
    for line, row in lines:
        nbytes, ns = _numbers(path, line, row["size_bytes"], row["latency_ns"])
        if nbytes in table:
            _refuse(path, line, f"size {nbytes} again")
        table[nbytes] = ns
    if not table:
        raise InputError(f"{path}: no lines below the first; every line has a size_bytes and a latency_ns")
    return CclReference(Path(path).name, tuple(sorted(table.items())))


def _numbers(path: str, line: int, size: str | None, latency: str | None) -> tuple[int, float]:
    try:
        nbytes, ns = _whole(size or ""), float(latency or "")
    except (ValueError, OverflowError):
        _refuse(path, line, f"found {size!r}, {latency!r}: size_bytes is a whole number, latency_ns a number")
    if nbytes < 1 or not 0 < ns < float("inf"):
        _refuse(path, line, f"found {size}, {latency}: both have to be above 0")
    return nbytes, ns


def _whole(text: str) -> int:
    """Return the whole number in ``text``, also in spreadsheet notation: 4096.0, 4.096E+03."""
    number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


def _refuse(path: str, line: int, problem: str) -> NoReturn:
    raise InputError(f"{path}:{line}: {problem}")


def compare_sizes(sweep: CclSweep, reference: CclReference) -> tuple[SizeComparison, ...]:
    """Compare each reference size with the packaged default collective on the machine's SIP fabric.

    Raises InputError for a size that was not simulated, as redrawn results contain only the sizes of their run.
    """
    points = {point.nbytes: point for point in reference_curve(sweep)}
    missing = [nbytes for nbytes in reference.sizes if nbytes not in points]
    if missing:
        sizes = ", ".join(map(str, missing))
        raise InputError(f"{reference.name}: the results lack {sizes} bytes; run without --render-only")
    return tuple(SizeComparison(nbytes, ns, points[nbytes].direct.latency_ns) for nbytes, ns in reference.latencies)


def reference_curve(sweep: CclSweep) -> tuple[CollectivePoint, ...]:
    """Return the points that a reference is compared with."""
    return sweep.curve(INTERCUBE, sweep.own)
