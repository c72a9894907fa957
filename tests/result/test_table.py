"""Tests of tables: their cells in every form, and what their columns say."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

import kernbench as kb
from kernbench.cli.console import render
from kernbench.common.figures import figure
from kernbench.common.values import value
from kernbench.result.table import Table, TableColumn, TableLine, bars, number, percent_text, table_of, words


def test_a_table_in_every_form() -> None:
    benches = kb.list_benches()
    assert [row.name for row in benches] == benches.column("name") == [each["name"] for each in benches.to_dicts()]
    arrow = benches.to_arrow()
    assert arrow.column("name").to_pylist() == benches.column("name")
    assert arrow.schema.field("name").metadata == {b"about": b"the name"}
    assert benches.columns == {"name": "the name", "description": "what it is"}
    assert benches[0] is next(iter(benches))
    assert len(benches[:3]) == 3


def test_a_repr_has_ten_lines_at_most() -> None:
    lines = repr(kb.list_parts()).splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 120
    assert lines[0].startswith("parts: 2")


def test_html_escapes_what_users_call_things() -> None:
    columns = (TableColumn[Mapping[str, object]]("a_ns", "a time"), TableColumn[Mapping[str, object]]("b", "a name"))
    page = Table("things", ({"a_ns": 1.5, "b": "<b>"},), columns)._repr_html_()
    assert "&lt;b&gt;" in page
    assert '<th title="a time"' in page
    assert '<td style="text-align:right">1.5</td>' in page


def test_an_unknown_column_lists_those_there_are() -> None:
    with pytest.raises(kb.InputError, match="no column 'nam'; there are: name, description"):
        kb.list_machines().column("nam")


def test_without_pandas_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(kb.InputError, match=r"pip install 'kernbench\[notebook\]'"):
        kb.list_machines().to_pandas()


@value
class Shelf:
    """A row of a test."""

    name: str = figure("its name")
    load_ns: float = figure("its load")
    pe: tuple[int, int] = figure("its place", key="place", show=lambda place: "/".join(map(str, place)))
    hidden: int = 0


ROWS = (Shelf("a", 1234.5, (0, 1)), Shelf("b", 0.25, (2, 3)))


def test_a_table_of_a_dataclass_has_its_described_figures() -> None:
    table = table_of("shelves", ROWS, Shelf)
    assert table.columns == {"name": "its name", "load_ns": "its load", "place": "its place"}
    assert table.column("place") == ["0/1", "2/3"]
    assert [line.cells for line in table.lines()] == [("a", "1,234.5", "0/1"), ("b", "0.25", "2/3")]
    assert [column.heading for column in table.terminal_columns] == ["name", "load ns", "place"]
    assert [column.is_number for column in table.terminal_columns] == [False, True, False]


def test_the_terminal_shows_other_columns_and_rows_than_data() -> None:
    columns = (
        words("shelf", lambda row: row.name.upper()),
        TableColumn[Shelf]("load_ns", "its load").number("load", "{:,.1f}".format),
        TableColumn[Shelf]("name", "its name"),
        number("share", lambda row: None if row.name == "b" else 0.5, percent_text),
        bars(lambda row: 0.5, width=4),
    )
    total = TableLine(("ALL", "1,234.8", "", ""), "bold")
    table = Table("shelves", ROWS, columns, "Shelves", shown=ROWS[1:], below=(total,), style=lambda _: "dim")
    assert table.to_dicts() == [{"load_ns": 1234.5, "name": "a"}, {"load_ns": 0.25, "name": "b"}]
    assert list(table.lines()) == [TableLine(("B", "0.2", "", "██"), "dim"), total]
    listing = render(table)
    assert (listing.title, listing.row_count) == ("Shelves", 2)
    assert [(column.header, column.justify) for column in listing.columns] == [
        ("shelf", "left"),
        ("load", "right"),
        ("share", "right"),
        ("", "left"),
    ]
