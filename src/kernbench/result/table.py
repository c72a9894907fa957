"""Tables of results: typed rows with columns, for the terminal, notebooks, pandas, Arrow and plain Python."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from kernbench.common.errors import InputError
from kernbench.common.figures import dataclass_in, figures_of, hints_of
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
LINE = 120
"""Maximum number of characters in a line of a ``repr``"""

count_text = "{:,}".format
fixed_text = "{:,.3f}".format
percent_text = "{:.1%}".format


def trimmed_text(content: object) -> str:
    """Return a value as text; a number has at most three decimals."""
    if content is None:
        return ""
    return f"{content:,.3f}".rstrip("0").rstrip(".") if isinstance(content, float) else str(content)


def bar_text(share: float, width: int = 24) -> str:
    """Return a share as a bar of block characters with a resolution of an eighth."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


@value
class TableColumn(Generic[R]):
    """A column, as data and on the terminal.

    - ``name``, ``about``: the name with its unit, and the description, as data; a column without a name is no data
    - ``read``: the content of a row; by default its attribute or entry ``name``
    - ``heading``: the heading on the terminal; None: the terminal does not show the column
    - ``text``: the text of a content on the terminal
    """

    name: str
    about: str = ""
    read: Callable[[R], object] | None = None
    heading: str | None = None
    text: Callable[[Any], str] = str
    is_number: bool = False

    def content(self, row: Any) -> object:
        """Return the content of a row."""
        if self.read is not None:
            return self.read(row)
        return row.get(self.name) if isinstance(row, Mapping) else getattr(row, self.name)

    def words(self, heading: str, text: Callable[[Any], str] = str) -> TableColumn[R]:
        """Return the column with its form on the terminal, left-aligned."""
        return replace(self, heading=heading, text=text, is_number=False)

    def number(self, heading: str, text: Callable[[Any], str] = str) -> TableColumn[R]:
        """Return the column with its form on the terminal, right-aligned."""
        return replace(self, heading=heading, text=text, is_number=True)


def words(heading: str, read: Callable[[Any], object]) -> TableColumn[Any]:
    """Return a left-aligned column of the terminal."""
    return TableColumn("", read=read).words(heading)


def number(heading: str, read: Callable[[Any], object], text: Callable[[Any], str] = str) -> TableColumn[Any]:
    """Return a right-aligned column of the terminal."""
    return TableColumn("", read=read).number(heading, text)


def bars(share: Callable[[Any], float | None], width: int = 24) -> TableColumn[Any]:
    """Return a column of bars on the terminal."""
    return TableColumn("", read=share).words("", partial(bar_text, width=width))


def row_texts(columns: Iterable[TableColumn[Any]], row: object) -> tuple[str, ...]:
    """Return the texts of a row on the terminal; an absent content is empty."""
    shown = ((column, column.content(row)) for column in columns if column.heading is not None)
    return tuple("" if content is None else column.text(content) for column, content in shown)


@value
class TableLine:
    """A line of a table on the terminal, with a style of rich."""

    cells: tuple[str, ...]
    style: str = ""


@value(repr=False, eq=False)
class Table(Generic[R]):
    """Rows of one type with columns. Iteration yields the rows; ``columns`` describes each column.

    ``kind``: the name of the row type, such as ``phases``. On the terminal the table has a ``title``. It consists there
    of the lines ``above``, the rows ``shown`` (by default all), and the lines ``below``. ``style``: the style of a row.
    """

    kind: str
    rows: tuple[R, ...]
    headings: tuple[TableColumn[R], ...]
    title: str = ""
    shown: tuple[R, ...] | None = None
    above: tuple[TableLine, ...] = ()
    below: tuple[TableLine, ...] = ()
    style: Callable[[R], str] | None = None

    @property
    def columns(self) -> dict[str, str]:
        """The names and descriptions of the columns."""
        return {column.name: column.about for column in self._data}

    @property
    def _data(self) -> list[TableColumn[R]]:
        return [column for column in self.headings if column.name]

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
        column = next((column for column in self._data if column.name == name), None)
        if column is None:
            raise InputError(f"{self.kind} have no column {name!r}; there are: {', '.join(self.columns)}")
        return [cell_of(column.content(row)) for row in self.rows]

    def to_dicts(self) -> list[dict[str, TableCell]]:
        """Return each row as a mapping of its cells."""
        return [{column.name: cell_of(column.content(row)) for column in self._data} for row in self.rows]

    def to_arrow(self) -> pyarrow.Table:
        """Return the table as an Arrow table. Field metadata ``about`` is the description of a column."""
        return arrow_table({name: self.column(name) for name in self.columns}, self.columns)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a pandas table. Raises InputError, with the install command, if pandas is missing."""
        return to_pandas(self.to_arrow())

    @property
    def terminal_columns(self) -> list[TableColumn[R]]:
        """The columns that the terminal shows."""
        return [column for column in self.headings if column.heading is not None]

    def lines(self) -> Iterator[TableLine]:
        """Yield the lines below the headings on the terminal."""
        yield from self.above
        for row in self.rows if self.shown is None else self.shown:
            yield TableLine(row_texts(self.headings, row), "" if self.style is None else self.style(row))
        yield from self.below

    def __repr__(self) -> str:
        names = list(self.columns)
        body = [[_text(column.content(row)) for column in self._data] for row in islice(self.rows, SHOWN_ROWS)]
        lines = _align([names, *body]) if self.rows else []
        more = [f"… {len(self) - SHOWN_ROWS:,} more"] if len(self) > SHOWN_ROWS else []
        return "\n".join([f"{self.kind}: {len(self):,} × {', '.join(names)}"[:LINE], *lines, *more])

    def to_html(self, most: int = HTML_ROWS) -> str:
        """Return the first rows as an HTML table. The description of a column is its tooltip."""
        cells = ((column.content(row) for column in self._data) for row in islice(self.rows, most))
        more = f"… {len(self) - most:,} more rows" if len(self) > most else ""
        return _html_table(self.kind, self.columns, cells, more)

    def _repr_html_(self) -> str:
        return self.to_html()


def table_columns(row_type: type) -> dict[str, TableColumn[Any]]:
    """Return a column for each described figure of a dataclass, by name: its key in documents."""
    columns: dict[str, TableColumn[Any]] = {}
    for entry in figures_of(row_type):
        forms, read = entry.forms, attrgetter(entry.name)
        if forms.about:
            columns[entry.key] = TableColumn(entry.key, forms.about, _chain(read, forms.show))
        elif forms.inline:
            inner = table_columns(dataclass_in(hints_of(row_type)[entry.name]))
            columns |= {name: replace(column, read=_chain(read, column.content)) for name, column in inner.items()}
    return columns


def _chain(first: Callable[[Any], Any], then: Callable[[Any], object] | None) -> Callable[[Any], object]:
    return first if then is None else lambda row: then(first(row))


def table_of(kind: str, rows: Sequence[R], row_type: type[R], title: str = "") -> Table[R]:
    """Return the table of a dataclass: a column for each described figure, also on the terminal."""
    columns = []
    for column in table_columns(row_type).values():
        aligned = column.number if rows and isinstance(column.content(rows[0]), int | float) else column.words
        columns.append(aligned(column.name.replace("_", " "), _text))
    return Table(kind, tuple(rows), tuple(columns), title or kind)


def cell_of(content: object) -> TableCell:
    """Return the content of a cell: numbers and texts unchanged, anything else as text."""
    if isinstance(content, Enum):
        return str(content.value)
    return content if content is None or isinstance(content, str | int | float | bool) else str(content)


def _text(content: object) -> str:
    cell = cell_of(content)
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


def _html_cell(content: object) -> str:
    """Return an HTML cell: numbers right-aligned, texts left-aligned."""
    side = "right" if isinstance(content, int | float) and not isinstance(content, bool) else "left"
    return f'<td style="text-align:{side}">{html.escape(_text(content))}</td>'


def text_html(text: str, *more: str) -> str:
    """Return a text as HTML, followed by more HTML."""
    return "".join([f'<pre style="font-family:monospace">{html.escape(text)}</pre>', *more])


def arrow_table(columns: Mapping[str, Sequence[TableCell]], about: Mapping[str, str]) -> pyarrow.Table:
    """Return columns as an Arrow table with descriptions in its field metadata."""
    table, field = late("pyarrow", "table"), late("pyarrow", "field")
    plain = table({name: list(cells) for name, cells in columns.items()})
    fields = [
        field(column.name, column.type, metadata={"about": about.get(column.name, "")}) for column in plain.schema
    ]
    return plain.cast(late("pyarrow", "schema")(fields))


def to_pandas(table: pyarrow.Table) -> pandas.DataFrame:
    """Return an Arrow table as a pandas table. Raises InputError if pandas is not installed."""
    try:
        late("pandas", "DataFrame")
    except ImportError as error:
        raise InputError(f"{error}; install it: pip install 'kernbench[notebook]'") from error
    return table.to_pandas()
