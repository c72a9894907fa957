"""Results of an evaluation as files in one folder, each whole or not at all: JSON, CSV, Parquet, where they come from;
and what a reader is told at the end."""

from __future__ import annotations

import argparse
import csv
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from kernbench.common import __version__
from kernbench.common.complaints import one_line
from kernbench.common.errors import InputError, KernbenchError, UnreadableFileError
from kernbench.common.files import json_text, parse_json, read_input, replacing
from kernbench.common.values import value
from kernbench.topology.builder import Topology

T = TypeVar("T")
TableValue: TypeAlias = "str | int | float | bool | None"
TableRow: TypeAlias = Mapping[str, TableValue]


def output_folder(path: str | Path) -> Path:
    """The folder ``path``, made if there is none. InputError when that is not possible."""
    place = Path(path)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: no folder can be made there: {error.strerror}") from error
    return place


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, document: object) -> None:
    """Write a JSON document; equal documents give identical files."""
    write_text(path, json_text(document, indent=1) + "\n")


def read_json(path: Path, made_by: str) -> Any:
    """A document that ``write_json`` wrote. InputError, which names the command ``made_by``, when there is none."""
    try:
        return parse_json(read_input(path))
    except UnreadableFileError as error:
        raise InputError(f"{path}: cannot be read: {error.why}; it is made by: {made_by}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}; it is made by: {made_by}") from error


def read_results(path: Path, made_by: str, form: TypeAdapter[T], check: Callable[[T], str]) -> T:
    """The results of a ``form`` in the JSON file ``path``, which ``made_by`` makes.

    ``check``: what is wrong with results that have the form, or nothing. InputError for anything else in the file.
    """
    try:
        found = form.validate_python(read_json(path, made_by))
        why = check(found)
    except ValidationError as error:
        first, at = error.errors()[0], ".".join(map(str, error.errors()[0]["loc"]))
        why = f"{at}: {first['msg']}"
    if why:
        raise InputError(f"{path}: not the results of this version: {one_line(why)}; it is made by: {made_by}")
    return found


@contextmanager
def drawing_from(path: Path) -> Iterator[None]:
    """While figures are drawn of results that were read from ``path``: InputError for numbers that none can be of."""
    try:
        yield
    except KernbenchError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
        why = one_line(f"{type(error).__name__}: {error}")
        raise InputError(f"{path}: no figure can be drawn of these results: {why}") from error


def write_csv(path: Path, rows: Sequence[TableRow]) -> None:
    """Write rows of the same columns as CSV with a header line; numbers in full."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: Sequence[TableRow]) -> None:
    """Write the same rows as Parquet; types are those of the values."""
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows)), temporary, compression="zstd")


PROVENANCE_FILE = "provenance.json"
CONFIGURATION_FILE = "topology.resolved.yaml"
# Their versions may change numbers (phase 2) or figures.
_LIBRARIES = ("numpy", "ml_dtypes", "simpy", "matplotlib", "pyarrow")


@value(kw_only=True)
class Computer:
    """The computer that made results; no simulated time depends on it."""

    system: str = field(default_factory=platform.platform)
    processor: str = field(default_factory=platform.machine)
    cpus: int = field(default_factory=lambda: os.cpu_count() or 0)
    python: str = field(default_factory=platform.python_version)
    libraries: Mapping[str, str] = field(default_factory=lambda: {name: version(name) for name in _LIBRARIES})


@value(kw_only=True)
class Provenance:
    """The origin of results. ``topology_hash``: of the resolved configuration, see ``Topology.digest``.

    ``date``: UTC, ISO 8601. ``machine``: the computer, not the simulated one.
    """

    made_by: str
    topology: str
    topology_hash: str
    parameters: Mapping[str, Any]
    kernbench_version: str = __version__
    machine: Computer = field(default_factory=Computer)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def provenance_of(topology: Topology, made_by: str, parameters: Mapping[str, Any]) -> Provenance:
    """The provenance of something made here and now; ``made_by``: a bench or a command."""
    return Provenance(
        made_by=made_by, topology=topology.source, topology_hash=topology.digest, parameters=dict(parameters)
    )


def write_provenance(folder: Path, provenance: Provenance, topology: Topology) -> None:
    """Write ``provenance.json``, and beside it the machine in full, as ``--topology`` takes it."""
    write_json(folder / PROVENANCE_FILE, asdict(provenance))
    head = f"# kernbench {provenance.kernbench_version}: the machine of {provenance.made_by}, {provenance.date}\n"
    write_text(folder / CONFIGURATION_FILE, head + topology.resolved_yaml())


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


def run_script(description: str | None, draw: Callable[[bool], None]) -> int:
    """Parse the arguments and ``draw``; the exit code. ``draw(render_only)`` writes results, unless those that are
    there shall be drawn, and the figures."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render-only", action="store_true")
    try:
        draw(parser.parse_args().render_only)
    except KernbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
