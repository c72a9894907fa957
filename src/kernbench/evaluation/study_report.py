"""Evaluate: simulate a study, write its results as files and figures, and summarise them for the reader.

A study gives results made of cells. A report has what is an evaluation's own: tables of cells, figures, a summary.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
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
"""Draws a figure to a file"""


class StudyCell(Protocol):
    """One measurement of a study, with the parameters it was made with and what it is compared with."""

    @property
    def title(self) -> str:
        """Name it by its parameters."""

    @property
    def row(self) -> dict[str, TableValue]:
        """Return it as a row of a table: parameters, figures, references, verification."""

    @property
    def passed(self) -> bool | None:
        """Tell whether its numbers are correct; None: none were computed."""


class Study(Protocol[R_co]):
    """The simulations of an evaluation, on machines made of one."""

    @property
    def topology(self) -> Topology:
        """The machine."""

    def run(self) -> R_co:
        """Simulate all of it."""


@value
class TableColumn:
    """A column of the table; figures stand on the right."""

    name: str
    figures: bool = True


@value(kw_only=True)
class Summary:
    """The outcome of an evaluation bench, which returns it. Rows have a text for each column.

    ``notes`` are lines below the table; ``results`` is all of it as plain data; ``files`` are in ``folder``.
    """

    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    results: Mapping[str, Any]
    folder: Path
    files: tuple[str, ...]


@value(kw_only=True)
class StudyReport(Generic[R]):
    """The report of one kind of evaluation, whose results are ``R``: fields are its own, methods are those of all.

    ``data_file``: of the results, which are JSON in the form ``form``. ``tables``: the cells of each CSV file; the
    first has the main ones, which are written as Parquet too. ``comparisons``: the rows of each CSV file that compares
    with something from outside. ``find_gap``: what figures need and results lack, in words; empty when nothing.
    ``rows``, ``notes``: the summary's; columns of ``words`` are no figures.
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
        """Simulate all of ``study``; results and figures go to ``folder``.

        VerificationError, when everything is written, for numbers that are wrong.
        """
        place = output_folder(folder)
        results = study.run()
        data = (*self.write(results, place), *_write_tables(place, self.comparisons(results)))
        write_provenance(place, provenance_of(study.topology, made_by, parameters), study.topology)
        figures = self.draw(results, place)
        self.verify(results)
        return self._summarise(results, place, (*data, PROVENANCE_FILE, CONFIGURATION_FILE, *figures))

    def redraw(self, folder: str, made_by: str) -> Summary:
        """Draw the figures again from the results in ``folder``. InputError when it has none."""
        place = Path(folder)
        results = self.read(place, made_by)
        try:
            compared = _write_tables(place, self.comparisons(results))
            return self._summarise(results, place, (*compared, *self.draw(results, place)))
        except KernbenchError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
            why = one_line(f"{type(error).__name__}: {error}")
            raise InputError(f"{place / self.data_file}: no figure can be drawn of these results: {why}") from error

    def document(self, results: R) -> Any:
        """Return the results as plain data, as they are in the JSON file."""
        return self.form.dump_python(results, mode="json")

    def write(self, results: R, folder: Path) -> tuple[str, ...]:
        """Write all results as JSON, and the cells as tables; return the names of the files."""
        tables = {name: [cell.row for cell in cells] for name, cells in self.tables(results).items()}
        main, *others = _write_tables(folder, tables)
        parquet = Path(self.data_file).with_suffix(".parquet").name
        write_parquet(folder / parquet, tables[main])
        write_json(folder / self.data_file, self.document(results))
        return (self.data_file, main, parquet, *others)

    def read(self, folder: Path, made_by: str) -> R:
        """Read the results in ``folder``. InputError, which names the command ``made_by``, when there are none."""
        path = folder / self.data_file
        try:
            found = self.form.validate_python(read_json(path, made_by))
            why = self.find_gap(found)
        except ValidationError as error:
            first, at = error.errors()[0], ".".join(map(str, error.errors()[0]["loc"]))
            why = f"{at}: {first['msg']}"
        if why:
            raise InputError(f"{path}: not the results of this version: {one_line(why)}; it is made by: {made_by}")
        return found

    def draw(self, results: R, folder: Path) -> tuple[str, ...]:
        """Draw everything that there are results for; return the names of the figures."""
        drawings = self.drawings(results)
        for name, drawing in drawings.items():
            drawing(folder / name)
        return tuple(drawings)

    def verify(self, results: R) -> None:
        """Raise VerificationError, which names them, when numbers of some cells are wrong."""
        cells = [cell for found in self.tables(results).values() for cell in found if cell.passed is not None]
        wrong = [cell.title for cell in cells if not cell.passed]
        if wrong:
            raise VerificationError(f"{len(wrong)} of {len(cells)} results are wrong: {'; '.join(wrong)}")

    def _summarise(self, results: R, folder: Path, files: tuple[str, ...]) -> Summary:
        rows = self.rows(results)
        return Summary(
            title=self.title,
            columns=tuple(TableColumn(name, figures=name not in self.words) for name in rows[0]),
            rows=tuple(tuple(row.values()) for row in rows),
            notes=tuple(self.notes(results)),
            results=self.document(results),
            folder=folder,
            files=files,
        )


def _write_tables(folder: Path, tables: Mapping[str, Sequence[TableRow]]) -> list[str]:
    """Write CSV files; return the names of those that have rows."""
    written = [name for name, rows in tables.items() if rows]
    for name in written:
        write_csv(folder / name, tables[name])
    return written


def update_figures(
    report: StudyReport[R], make_study: Callable[[], Study[R]], folder: Path, description: str | None
) -> int:
    """Run as a script: write results to ``folder``, unless ``--render-only`` is given, and draw them; the exit code."""
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
