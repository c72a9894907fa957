"""Tables of results: typed rows with named columns, for pandas, Arrow, plain Python and notebooks."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from kernbench.common.errors import InputError
from kernbench.common.late import late
from kernbench.common.values import value

if TYPE_CHECKING:
    import pandas
    import pyarrow

R = TypeVar("R")
TableCell: TypeAlias = "str | int | float | bool | None"

SHOWN_ROWS = 6
"""Number of rows that a ``repr`` shows. With its head, the ``repr`` has at most ten lines."""
HTML_ROWS = 60
LONGEST_CELL = 48


@value
class NamedColumn(Generic[R]):
    """A column: its name, its description, and a reader of its cells. The name ends with the unit, if any."""

    name: str
    about: str
    read: Callable[[R], object]


@value(repr=False, eq=False)
class Table(Generic[R]):
    """Rows of one type with columns. Iteration yields the rows; ``columns`` describes each column.

    ``kind``: the name of the row type, such as ``phases``.
    """

    kind: str
    rows: tuple[R, ...]
    headings: tuple[NamedColumn[R], ...]

    @property
    def columns(self) -> dict[str, str]:
        """The names and descriptions of the columns."""
        return {each.name: each.about for each in self.headings}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[R]:
        return iter(self.rows)

    @overload
    def __getitem__(self, at: int) -> R: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[R, ...]: ...

    def __getitem__(self, at: int | slice) -> R | tuple[R, ...]:
        return self.rows[at]

    def column(self, name: str) -> list[TableCell]:
        """Return the cells of a column. Raises InputError, with the available columns, for an unknown name."""
        found = next((each for each in self.headings if each.name == name), None)
        if found is None:
            raise InputError(f"{self.kind} have no column {name!r}; there are: {', '.join(self.columns)}")
        return [cell_of(found.read(row)) for row in self.rows]

    def to_dicts(self) -> list[dict[str, TableCell]]:
        """Return each row as a mapping of its cells."""
        return [{each.name: cell_of(each.read(row)) for each in self.headings} for row in self.rows]

    def to_arrow(self) -> pyarrow.Table:
        """Return the table as an Arrow table. Field metadata ``about`` is the description of a column."""
        return arrow_table({each.name: self.column(each.name) for each in self.headings}, self.columns)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a pandas table. Raises InputError, with the install command, if pandas is missing."""
        return to_pandas(self.to_arrow())

    def __repr__(self) -> str:
        names = list(self.columns)
        body = [[_text(each.read(row)) for each in self.headings] for row in islice(self.rows, SHOWN_ROWS)]
        lines = _align([names, *body]) if self.rows else []
        more = [f"… {len(self) - SHOWN_ROWS:,} more"] if len(self) > SHOWN_ROWS else []
        return "\n".join([f"{self.kind}: {len(self):,} × {', '.join(names)}"[:LINE], *lines, *more])

    def to_html(self, most: int = HTML_ROWS) -> str:
        """Return the first rows as an HTML table. The description of a column is its tooltip."""
        cells = ((each.read(row) for each in self.headings) for row in islice(self.rows, most))
        more = f"… {len(self) - most:,} more rows" if len(self) > most else ""
        return _html_table(self.kind, self.columns, cells, more)

    def _repr_html_(self) -> str:
        return self.to_html()


LINE = 120
"""Maximum number of characters in a line of a ``repr``"""


def make_table(kind: str, rows: Sequence[R], about: Mapping[str, str | tuple[str, Callable[[R], object]]]) -> Table[R]:
    """Make a table. ``about``: the description of each column, with a reader if no attribute has the column's name."""
    headings = []
    for name, said in about.items():
        text, read = (said, _reader(name)) if isinstance(said, str) else said
        headings.append(NamedColumn(name, text, read))
    return Table(kind, tuple(rows), tuple(headings))


def _reader(name: str) -> Callable[[Any], object]:
    return lambda row: row.get(name) if isinstance(row, Mapping) else getattr(row, name)


def cell_of(content: object) -> TableCell:
    """Return the content of a cell: numbers and texts unchanged, anything else as text."""
    if isinstance(content, Enum):
        return str(content.value)
    return content if content is None or isinstance(content, str | int | float | bool) else str(content)


def _text(given: object) -> str:
    cell = cell_of(given)
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.6g}" if abs(cell) < 1e6 else f"{cell:,.0f}"
    text = f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip()[:LINE] for row in rows]


def _html_table(title: str, columns: Mapping[str, str], rows: Iterable[Iterable[object]], more: str) -> str:
    head = "".join(
        f'<th title="{html.escape(about)}" style="text-align:left">{html.escape(name)}</th>'
        for name, about in columns.items()
    )
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
    note = f"<p>{html.escape(more)}</p>" if more else ""
    return (
        f'<table><caption style="text-align:left"><b>{html.escape(title)}</b></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"
    )


def _html_cell(given: object) -> str:
    """Return an HTML cell: numbers right-aligned, texts left-aligned."""
    side = "right" if isinstance(given, int | float) and not isinstance(given, bool) else "left"
    return f'<td style="text-align:{side}">{html.escape(_text(given))}</td>'


def text_html(text: str, *more: str) -> str:
    """Return a text as HTML, followed by more HTML."""
    return "".join([f'<pre style="font-family:monospace">{html.escape(text)}</pre>', *more])


def arrow_table(columns: Mapping[str, Sequence[TableCell]], about: Mapping[str, str]) -> pyarrow.Table:
    """Return columns as an Arrow table with descriptions in its field metadata."""
    table, field = late("pyarrow", "table"), late("pyarrow", "field")
    plain = table({name: list(cells) for name, cells in columns.items()})
    fields = [field(each.name, each.type, metadata={"about": about.get(each.name, "")}) for each in plain.schema]
    return plain.cast(late("pyarrow", "schema")(fields))


def to_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Return an Arrow table as a pandas table. Raises InputError if pandas is not installed."""
    try:
        late("pandas", "DataFrame")
    except ImportError as error:
        raise InputError(f"{error}; install it: pip install 'kernbench[notebook]'") from error
    return table.to_pandas()
