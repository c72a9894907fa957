"""Evaluations: simulate a study, write its results as files and figures, and summarise them.

The results of a study consist of cells. A report defines the parts that are specific to an evaluation: tables of cells,
figures, and a summary.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from kernbench.common.complaints import one_line
from kernbench.common.errors import InputError, KernbenchError, VerificationError
from kernbench.common.values import value
from kernbench.evaluation.outputs import (
    CONFIGURATION_FILE,
    PROVENANCE_FILE,
    TableRow,
    TableValue,
    output_folder,
    provenance_of,
    read_json,
    write_csv,
    write_json,
    write_parquet,
    write_provenance,
)
from kernbench.topology.builder import Topology

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Drawing: TypeAlias = Callable[[Path], None]
"""Function that draws a figure to a file"""


class StudyCell(Protocol):
    """One measurement of a study, with its parameters and its reference values."""

    @property
    def title(self) -> str:
        """The title, composed of its parameters."""

    @property
    def row(self) -> dict[str, TableValue]:
        """The cell as a table row: parameters, figures, references, verification."""

    @property
    def passed(self) -> bool | None:
        """True if its values are correct; None if no values were computed."""


class Study(Protocol[R_co]):
    """The simulations of an evaluation, on variants of one machine."""

    @property
    def topology(self) -> Topology:
        """The simulated machine, without the changes of variants."""

    def run(self) -> R_co:
        """Run all simulations, and return the results."""


@value
class StudyColumn:
    """A column of the table; numbers are right-aligned."""

    name: str
    figures: bool = True


@value(kw_only=True)
class Summary:
    """The result of an evaluation bench. Each row has one text per column.

    ``notes``: lines below the table. ``results``: all results as plain data. ``files``: file names in ``folder``.
    """

    title: str
    columns: tuple[StudyColumn, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    results: Mapping[str, Any]
    folder: Path
    files: tuple[str, ...]


@value(kw_only=True)
class StudyReport(Generic[R]):
    """The report of an evaluation type with results ``R``. Fields are specific to the type, methods are common to all.

    ``data_file``: the JSON file of the results, in the form ``form``. ``tables``: the cells of each CSV file. The first
    table has the main cells and is also written as Parquet. ``comparisons``: the rows of each CSV file that compares
    results with external data. ``find_gap``: text that names data for figures that the results lack; empty if none.
    ``rows``, ``notes``: contents of the summary. ``words``: columns with text instead of numbers.
    """

    title: str
    data_file: str
    form: TypeAdapter[R]
    tables: Callable[[R], Mapping[str, Sequence[StudyCell]]]
    comparisons: Callable[[R], Mapping[str, Sequence[TableRow]]] = lambda _: {}
    find_gap: Callable[[R], str]
    drawings: Callable[[R], Mapping[str, Drawing]]
    words: tuple[str, ...]
    rows: Callable[[R], Sequence[Mapping[str, str]]]
    notes: Callable[[R], Sequence[str]]

    def evaluate(self, study: Study[R], folder: str, made_by: str, parameters: Mapping[str, Any]) -> Summary:
        """Run all simulations of ``study`` and write results and figures to ``folder``.

        Raises VerificationError for wrong values, after everything is written.
        """
        place = output_folder(folder)
        results = study.run()
        data = (*self.write(results, place), *_write_tables(place, self.comparisons(results)))
        write_provenance(place, provenance_of(study.topology, made_by, parameters), study.topology)
        figures = self.draw(results, place)
        self.verify(results)
        return self._summarise(results, place, (*data, PROVENANCE_FILE, CONFIGURATION_FILE, *figures))

    def redraw(self, folder: str, made_by: str) -> Summary:
        """Redraw the figures from the results in ``folder``. Raises InputError if there are none."""
        place = Path(folder)
        results = self.read(place, made_by)
        try:
            compared = _write_tables(place, self.comparisons(results))
            return self._summarise(results, place, (*compared, *self.draw(results, place)))
        except KernbenchError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
            why = one_line(f"{type(error).__name__}: {error}")
            raise InputError(f"{place / self.data_file}: cannot draw figures of these results: {why}") from error

    def document(self, results: R) -> Any:
        """Return the results as plain data, in the form of the JSON file."""
        return self.form.dump_python(results, mode="json")

    def write(self, results: R, folder: Path) -> tuple[str, ...]:
        """Write all results as JSON and the cells as tables; return the file names."""
        tables = {name: [cell.row for cell in cells] for name, cells in self.tables(results).items()}
        main, *further = _write_tables(folder, tables)
        parquet = Path(self.data_file).with_suffix(".parquet").name
        write_parquet(folder / parquet, tables[main])
        write_json(folder / self.data_file, self.document(results))
        return (self.data_file, main, parquet, *further)

    def read(self, folder: Path, made_by: str) -> R:
        """Read the results in ``folder``. Raises InputError, which names the command ``made_by``, if there are none."""
        path = folder / self.data_file
        try:
            results = self.form.validate_python(read_json(path, made_by))
            why = self.find_gap(results)
        except ValidationError as error:
            first, at = error.errors()[0], ".".join(map(str, error.errors()[0]["loc"]))
            why = f"{at}: {first['msg']}"
        if why:
            raise InputError(f"{path}: not the results of this version: {one_line(why)}; write it with: {made_by}")
        return results

    def draw(self, results: R, folder: Path) -> tuple[str, ...]:
        """Draw every figure for which there are results; return the file names."""
        drawings = self.drawings(results)
        for name, drawing in drawings.items():
            drawing(folder / name)
        return tuple(drawings)

    def verify(self, results: R) -> None:
        """Raise VerificationError if values of cells are wrong. The error names these cells."""
        cells = [cell for cell in chain.from_iterable(self.tables(results).values()) if cell.passed is not None]
        wrong = [cell.title for cell in cells if not cell.passed]
        if wrong:
            raise VerificationError(f"{len(wrong)} of {len(cells)} results are wrong: {'; '.join(wrong)}")

    def _summarise(self, results: R, folder: Path, files: tuple[str, ...]) -> Summary:
        rows = self.rows(results)
        return Summary(
            title=self.title,
            columns=tuple(StudyColumn(name, figures=name not in self.words) for name in rows[0]),
            rows=tuple(tuple(row.values()) for row in rows),
            notes=tuple(self.notes(results)),
            results=self.document(results),
            folder=folder,
            files=files,
        )


def _write_tables(folder: Path, tables: Mapping[str, Sequence[TableRow]]) -> list[str]:
    """Write CSV files; return the names of those with rows."""
    written = [name for name, rows in tables.items() if rows]
    for name in written:
        write_csv(folder / name, tables[name])
    return written


def update_figures(
    report: StudyReport[R], make_study: Callable[[], Study[R]], folder: Path, description: str | None
) -> int:
    """Run as a script and return the exit code: write results unless ``--render-only`` is set, then draw them."""
    script = Path(sys.argv[0]).name
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render-only", action="store_true")
    try:
        if not parser.parse_args().render_only:
            results = make_study().run()
            report.verify(results)
            write_json(folder / report.data_file, report.document(results))
        for name in report.draw(report.read(folder, f"python {script}"), folder):
            print(f"wrote {folder / name}", file=sys.stderr)
    except KernbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
