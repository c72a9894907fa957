"""Tests of tables: their cells in every form, and what their columns say."""

from __future__ import annotations

import sys

import pytest

import kernbench as kb
from kernbench.result.table import make_table


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
    page = make_table("things", [{"a_ns": 1.5, "b": "<b>"}], {"a_ns": "a time", "b": "a name"})._repr_html_()
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
