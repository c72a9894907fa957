"""The results of a sweep as one Parquet file.

It depends on nothing but the sweep: neither on who ran it, nor on when, nor on how often it was interrupted. What it
starts from (bench, grid, the resolved base machine) is in its metadata.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kernbench.common.errors import InputError
from kernbench.common.files import replacing
from kernbench.evaluation.sweep_measure import COLUMNS
from kernbench.evaluation.sweep_table import POINT, SweepTable, kind_of

_METADATA = b"kernbench.sweep"
_TYPES: dict[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def write_sweep_table(table: SweepTable, path: Path) -> None:
    """Write the Parquet file; columns that no row has are left out. Equal tables give identical files."""
    kinds = {POINT: int, **{axis: kind_of([row[axis] for row in table.rows]) for axis in table.axes}, **COLUMNS}
    there = set(table.columns)
    fields = [(name, _TYPES[kind]) for name, kind in kinds.items() if name in there]
    about = json.dumps({"axes": table.axes, **table.about}, sort_keys=True)
    schema = pa.schema(fields, metadata={_METADATA: about.encode()})
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(table.rows), schema), temporary, compression="zstd")


def read_sweep_table(path: Path) -> SweepTable:
    """A table that ``write_sweep_table`` wrote. InputError for any other file."""
    try:
        found = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {_first_line(error)}") from error
    about = (found.schema.metadata or {}).get(_METADATA)
    if about is None:
        raise InputError(f"{path}: Parquet, but not the results of a sweep")
    known = json.loads(about)
    return SweepTable(tuple(known.pop("axes")), tuple(found.to_pylist()), known)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
