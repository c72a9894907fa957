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

from kernbench.common.complaints import one_line, show
from kernbench.common.dtypes import dtype
from kernbench.common.errors import InputError
from kernbench.common.files import parse_json, replacing, writable
from kernbench.core.op_log import OpRecord
from kernbench.messages.commands import ArrayPlace, Epilogue, MemoryRef, Operand, Params

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
# The columns of plain values, without lists and structures.
_PLAIN: dict[str, type] = {
    field.name: str if field.type == pa.string() else int for field in SCHEMA if not pa.types.is_nested(field.type)
}
_LATER: OpRow = {"order": ""}
"""Columns that older files lack, with their values there"""
_LATER_PARAMS: OpRow = {"old": None}
_ROWS_PER_GROUP = 50_000


def write_op_log(records: Iterable[OpRecord], path: str | Path) -> None:
    """Write ``records`` to ``path``: Parquet for ``.parquet``, JSON Lines for ``.jsonl``.

    Equal logs give identical files. Raises InputError for another suffix.
    """
    _format(path, _WRITERS)(records, Path(path))


def op_log_table(records: Iterable[OpRecord]) -> pa.Table:
    """Return ``records`` as an Arrow table of ``SCHEMA``, with the same rows as the files."""
    return pa.concat_tables([pa.Table.from_pylist([], SCHEMA), *_tables(records)])


def read_op_log(path: str | Path) -> list[OpRecord]:
    """Return the records of a file that ``write_op_log`` wrote, without host arrays.

    Raises InputError for another suffix, for a file that cannot be read, and for a file that is no op-log.
    """
    records: list[OpRecord] = []
    try:
        for row in _format(path, _READERS)(Path(path)):
            records.append(_record(row))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or one_line(error)}") from error
    except pa.ArrowException as error:
        raise InputError(f"{path}: cannot be read as Parquet: {one_line(error)}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise InputError(f"{path}: row {len(records) + 1} is no row of an op-log: {one_line(why)}") from error
    return records


def write_jsonl(records: Iterable[OpRecord], path: Path) -> None:
    """Write one JSON object per line."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(_line(_row(r)) for r in records)


def write_parquet(records: Iterable[OpRecord], path: Path) -> None:
    """Write a Parquet file of ``SCHEMA``."""
    with replacing(path) as temporary, pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as file:
        for group in _tables(records):
            file.write_table(group)


def _read_jsonl(path: Path) -> Iterator[OpRow]:
    with path.open("rb") as file:
        for line in file:
            yield parse_json(line)


def _read_parquet(path: Path) -> Iterator[OpRow]:
    with path.open("rb") as raw, pq.ParquetFile(raw) as file:
        file_schema = file.schema_arrow
        for column in SCHEMA:
            if column.name in _LATER and column.name not in file_schema.names:
                continue
            kind = file_schema.field(column.name).type if file_schema.names.count(column.name) == 1 else "not there"
            if kind != column.type:
                raise InputError(f"{path}: no op-log: column {column.name} is {one_line(kind)}, must be {column.type}")
        for batch in file.iter_batches():
            yield from batch.to_pylist()


_WRITERS: dict[str, Callable[[Iterable[OpRecord], Path], None]] = {".jsonl": write_jsonl, ".parquet": write_parquet}
_READERS: dict[str, Callable[[Path], Iterator[OpRow]]] = {".jsonl": _read_jsonl, ".parquet": _read_parquet}


def _format(path: str | Path, formats: dict[str, Any]) -> Any:
    function = formats.get(Path(path).suffix)
    if function is None:
        raise InputError(f"{path}: the suffix of an op-log is one of {', '.join(formats)}")
    return function


def check_path(path: str | Path) -> Path:
    """Return ``path`` if an op-log can be written there.

    Raises InputError for another suffix, or a folder that does not exist.
    """
    _format(path, _WRITERS)
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
    """Replace infinities and NaN, which JSON lacks, by texts that ``float`` reads back."""
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


def _record(row: OpRow) -> OpRecord:
    if not isinstance(row, dict):
        raise TypeError(f"found {show(row)}, must be a mapping")
    row = _LATER | row
    plain = {name: row[name] for name in _PLAIN}
    for name, kind in _PLAIN.items():
        if type(plain[name]) is not kind:
            raise TypeError(f"{name} is {show(plain[name])}, must be {'text' if kind is str else 'a whole number'}")
    return OpRecord(
        **plain,
        tile=_tuple(row["tile"]),
        inputs=tuple(_input(x) for x in row["inputs"]),
        output=_operand(row["output"]) if row["output"] is not None else None,
        params=_params(row["params"]),
    )


def _input(row: OpRow) -> Any:
    if row["operand"] is not None:
        return _operand(row["operand"])
    return None if row["number"] is None else float(row["number"])


def _operand(row: OpRow) -> Operand:
    return Operand(
        space=row["space"],
        owner=tuple(row["owner"]),
        address=row["address"],
        nbytes=row["nbytes"],
        shape=tuple(row["shape"]),
        dtype=dtype(row["dtype"]),
        strides=_tuple(row["strides"]),
        segments=tuple((s["address"], s["nbytes"]) for s in row["segments"]),
        valid=_tuple(row["valid"]),
        other=float(row["other"]),
    )


def _params(row: OpRow) -> Params:
    row = _LATER_PARAMS | row
    return Params(
        axis=row["axis"],
        perm=_tuple(row["perm"]),
        trans_a=row["trans_a"],
        trans_b=row["trans_b"],
        epilogue=tuple(Epilogue(e["name"], _input(e)) for e in row["epilogue"]),
        tile_sizes=_tile_sizes(row["tile_sizes"]),
        pattern=None if row["pattern"] is None else bytes.fromhex(row["pattern"]),
        old=None if row["old"] is None else _operand(row["old"]),
    )


def _tile_sizes(values: list[int] | None) -> tuple[int, int, int] | None:
    if values is None:
        return None
    m, k, n = values
    return m, k, n


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
