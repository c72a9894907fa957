"""Reference latencies to compare with: a table of latency against size from an external simulator or a measurement."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NoReturn

from kernbench.common.errors import InputError, UnreadableFileError
from kernbench.common.files import read_input
from kernbench.common.values import value
from kernbench.evaluation.ccl_fabrics import INTERCUBE
from kernbench.evaluation.ccl_results import CclSweep, CollectivePoint
from kernbench.evaluation.outputs import TableValue

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


@value
class SizeComparison:
    """The reference latency and the simulated latency of one size."""

    nbytes: int
    reference_ns: float
    latency_ns: float

    @property
    def error(self) -> float:
        """The simulation error as a share of the reference."""
        return self.latency_ns / self.reference_ns - 1

    @property
    def row(self) -> dict[str, TableValue]:
        """The comparison as a table row."""
        return {
            "size_bytes": self.nbytes,
            "reference_ns": self.reference_ns,
            "latency_ns": self.latency_ns,
            "error": self.error,
        }


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
