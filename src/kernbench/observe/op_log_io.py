"""Files of the op-log: JSON Lines or Parquet, with the same rows. A file is written to a temporary name, then moved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from kernbench.common.errors import InputError
from kernbench.common.files import replacing, writable
from kernbench.core.op_log import OpRecord
from kernbench.messages.commands import ArrayPlace, MemoryRef, Operand, Params

OpRow: TypeAlias = dict[str, Any]

_INTS = pa.list_(pa.int64())
_OPERAND = pa.struct(
    [
        ("space", pa.string()),
        ("owner", _INTS),
        ("address", pa.uint64()),
        ("nbytes", pa.int64()),
        ("shape", _INTS),
        ("dtype", pa.string()),
        ("strides", _INTS),
        ("segments", pa.list_(pa.struct([("address", pa.uint64()), ("nbytes", pa.int64())]))),
        ("valid", _INTS),
        ("other", pa.float64()),
    ]
)
_PARTS = [part.name for part in _OPERAND]
_parts_of = attrgetter(*_PARTS)
_INPUT = [("operand", _OPERAND), ("number", pa.float64())]
_PARAMS = pa.struct(
    [
        ("axis", pa.int64()),
        ("perm", _INTS),
        ("trans_a", pa.bool_()),
        ("trans_b", pa.bool_()),
        ("epilogue", pa.list_(pa.struct([("name", pa.string()), *_INPUT]))),
        ("tile_sizes", _INTS),
        ("pattern", pa.string()),
        ("old", _OPERAND),
    ]
)
SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("component", pa.string()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("t_start_ps", pa.int64()),
        ("t_read_ps", pa.int64()),
        ("t_commit_ps", pa.int64()),
        ("t_end_ps", pa.int64()),
        ("kernel", pa.string()),
        ("launch_id", pa.int64()),
        ("line", pa.int64()),
        ("tile", _INTS),
        ("parent", pa.int64()),
        ("inputs", pa.list_(pa.struct(_INPUT))),
        ("output", _OPERAND),
        ("params", _PARAMS),
        ("data", pa.struct([("shape", _INTS), ("dtype", pa.string())])),
        ("order", pa.string()),
    ]
)
"""Columns of a row. Host arrays are described in ``data``, not stored; a pattern is in hexadecimal."""

_columns_of = attrgetter(*SCHEMA.names)
_ROWS_PER_GROUP = 50_000


def write_op_log(records: Iterable[OpRecord], path: str | Path) -> None:
    """Write ``records`` to ``path``: Parquet for ``.parquet``, JSON Lines for ``.jsonl``.

    Equal logs give identical files. Raises InputError for another suffix.
    """
    _writer_of(path)(records, Path(path))


def op_log_table(records: Iterable[OpRecord]) -> pa.Table:
    """Return ``records`` as an Arrow table of ``SCHEMA``, with the same rows as the files."""
    return pa.concat_tables([pa.Table.from_pylist([], SCHEMA), *_tables(records)])


def write_jsonl(records: Iterable[OpRecord], path: Path) -> None:
    """Write one JSON object per line."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(_line(_row(r)) for r in records)


def write_parquet(records: Iterable[OpRecord], path: Path) -> None:
    """Write a Parquet file of ``SCHEMA``."""
    with replacing(path) as temporary, pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as file:
        for group in _tables(records):
            file.write_table(group)


_WRITERS: dict[str, Callable[[Iterable[OpRecord], Path], None]] = {".jsonl": write_jsonl, ".parquet": write_parquet}


def _writer_of(path: str | Path) -> Callable[[Iterable[OpRecord], Path], None]:
    writer = _WRITERS.get(Path(path).suffix)
    if writer is None:
        raise InputError(f"{path}: the suffix of an op-log is one of {', '.join(_WRITERS)}")
    return writer


def check_path(path: str | Path) -> Path:
    """Return ``path`` if an op-log can be written there.

    Raises InputError for another suffix, or a folder that does not exist.
    """
    _writer_of(path)
    return writable(path)


def _tables(records: Iterable[OpRecord]) -> Iterator[pa.Table]:
    """Yield the rows of records as tables of at most ``_ROWS_PER_GROUP`` rows."""
    remaining = iter(records)
    while group := [_row(record) for record in islice(remaining, _ROWS_PER_GROUP)]:
        yield pa.Table.from_pylist(group, SCHEMA)


def _line(row: OpRow) -> str:
    try:
        return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"
    except ValueError:
        return json.dumps(_finite(row), separators=(",", ":")) + "\n"


def _finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON lacks, by texts that ``float`` reads."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _row(record: OpRecord) -> OpRow:
    row = dict(zip(SCHEMA.names, _columns_of(record), strict=True))
    return row | {
        "inputs": [_input_row(x) for x in record.inputs],
        "output": _operand_row(record.output) if record.output is not None else None,
        "params": _params_row(record.params),
        "data": _data_row(record),
    }


def _data_row(record: OpRecord) -> OpRow | None:
    """Describe the array of a record.

    The replay removes the array of a host write; the output then describes it.
    """
    out = record.output
    if record.data is not None:
        return {"shape": record.data.shape, "dtype": record.data.dtype.name}
    if record.kind == "memory_write" and out is not None and record.params.pattern is None:
        return {"shape": out.shape, "dtype": out.dtype.numpy.name}
    return None


def _input_row(x: ArrayPlace | float | None) -> OpRow:
    assert not isinstance(x, MemoryRef), "a record has operands instead"
    if isinstance(x, Operand):
        return {"operand": _operand_row(x), "number": None}
    return {"operand": None, "number": x}


def _operand_row(operand: Operand) -> OpRow:
    row = dict(zip(_PARTS, _parts_of(operand), strict=True))
    segments = [{"address": a, "nbytes": n} for a, n in operand.segments]
    return row | {"dtype": operand.dtype.name, "segments": segments}


def _params_row(params: Params) -> OpRow:
    return {
        "axis": params.axis,
        "perm": params.perm,
        "trans_a": params.trans_a,
        "trans_b": params.trans_b,
        "epilogue": [{"name": e.name} | _input_row(e.operand) for e in params.epilogue],
        "tile_sizes": params.tile_sizes,
        "pattern": None if params.pattern is None else params.pattern.hex(),
        "old": None if params.old is None else _operand_row(params.old),
    }
