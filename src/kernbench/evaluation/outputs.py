"""Results of an evaluation as files in one folder: JSON, and tables as CSV and Parquet. Each whole or not at all."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from kernbench.common.complaints import one_line
from kernbench.common.errors import InputError, KernbenchError
from kernbench.common.files import replacing
from kernbench.common.json_input import parse_json
from kernbench.common.json_text import json_text

T = TypeVar("T")
Scalar: TypeAlias = "str | int | float | bool | None"
TableRow: TypeAlias = Mapping[str, Scalar]


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
        return parse_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}; it is made by: {made_by}") from error
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
