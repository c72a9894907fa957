"""What an evaluation tells a reader at the end: a table, some lines, and the files that it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table; figures stand on the right."""

    name: str
    figures: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The outcome of an evaluation bench, which returns it. Rows have a text for each column.

    ``notes`` are lines below the table; ``results`` is all of it as plain data; ``files`` are in ``folder``.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    results: Mapping[str, Any]
    folder: Path
    files: tuple[str, ...]
