"""Output files of an evaluation in one folder, each written atomically: JSON, CSV, Parquet, provenance."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kernbench.common import __version__
from kernbench.common.errors import InputError, UnreadableFileError
from kernbench.common.files import json_text, parse_json, read_input, replacing
from kernbench.common.values import value
from kernbench.topology.builder import Topology

TableValue: TypeAlias = "str | int | float | bool | None"
TableRow: TypeAlias = Mapping[str, TableValue]


def output_folder(path: str | Path) -> Path:
    """Return the folder ``path`` and create it if needed. Raises InputError if this is impossible."""
    place = Path(path)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot create the folder: {error.strerror}") from error
    return place


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, document: object) -> None:
    """Write a JSON document. Equal documents give identical files."""
    write_text(path, json_text(document, indent=1) + "\n")


def read_json(path: Path, made_by: str) -> Any:
    """Read a document of ``write_json``. Raises InputError, which names the command ``made_by``, for other files."""
    try:
        return parse_json(read_input(path))
    except UnreadableFileError as error:
        raise InputError(f"{path}: cannot be read: {error.why}; write it with: {made_by}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}; write it with: {made_by}") from error


def write_csv(path: Path, rows: Sequence[TableRow]) -> None:
    """Write rows with equal columns as CSV with a header line, without rounding."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: Sequence[TableRow]) -> None:
    """Write rows with equal columns as Parquet, with the types of the values."""
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows)), temporary, compression="zstd")


PROVENANCE_FILE = "provenance.json"
CONFIGURATION_FILE = "topology.resolved.yaml"
# Versions of these packages may change values (phase 2) or figures.
_LIBRARIES = ("numpy", "ml_dtypes", "scipy", "simpy", "matplotlib", "pyarrow")


@value(kw_only=True)
class Computer:
    """The computer that made results. No simulated time depends on it."""

    system: str = field(default_factory=platform.platform)
    processor: str = field(default_factory=platform.machine)
    cpus: int = field(default_factory=lambda: os.cpu_count() or 0)
    python: str = field(default_factory=platform.python_version)
    libraries: Mapping[str, str] = field(default_factory=lambda: {name: version(name) for name in _LIBRARIES})


@value(kw_only=True)
class Provenance:
    """The origin of results.

    ``topology_hash``: hash of the resolved configuration, see ``Topology.digest``. ``date``: UTC, ISO 8601.
    ``machine``: the computer, not the simulated machine.
    """

    made_by: str
    topology: str
    topology_hash: str
    parameters: Mapping[str, Any]
    kernbench_version: str = __version__
    machine: Computer = field(default_factory=Computer)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def provenance_of(topology: Topology, made_by: str, parameters: Mapping[str, Any]) -> Provenance:
    """Return the provenance of a result that this computer makes now. ``made_by``: a bench or a command."""
    return Provenance(
        made_by=made_by, topology=topology.source, topology_hash=topology.digest, parameters=dict(parameters)
    )


def write_provenance(folder: Path, provenance: Provenance, topology: Topology) -> None:
    """Write ``provenance.json`` and, beside it, the complete machine as a file for ``--topology``."""
    write_json(folder / PROVENANCE_FILE, asdict(provenance))
    head = f"# kernbench {provenance.kernbench_version}: the machine of {provenance.made_by}, {provenance.date}\n"
    write_text(folder / CONFIGURATION_FILE, head + topology.resolved_yaml())
