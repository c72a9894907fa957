"""Print the output of a command: tables on stdout, progress on stderr, JSON as one document.

Names come from users. Control characters in names are printed as escapes and never reach a terminal.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import rich_click as click
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from kernbench.cli.options import current_session
from kernbench.common.files import FIGURES, json_text
from kernbench.library.progress import ProgressDisplay
from kernbench.result.table import Table as Listing

if TYPE_CHECKING:
    from kernbench.common.config_keys import ConfigKey

ReportLine: TypeAlias = tuple[str, str]
"""A line of a report, and its style"""
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
# Used where no terminal reports a width: wide enough for every table.
PAGE_WIDTH = 120
# Control characters except line ends and tabs, characters that change the writing direction, and surrogates.
_ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return ``text`` with terminal control characters written as escapes such as ``\x1b``. Line ends and tabs stay."""
    return _ACTED_ON.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(text: str, *, newline: bool = True) -> None:
    """Print a message for the user on stderr."""
    click.echo(printable(text), err=True, nl=newline)


def show_progress() -> ProgressDisplay:
    """Return a context manager that shows progress on stderr."""
    return ProgressDisplay(say, stderr())


class SafeConsole(Console):
    """A console that prints every text through ``printable``."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Parse the markup of a text as rich does."""
        return super().render_str(printable(text), **options)


def stdout() -> Console:
    """Return the console of results. Rich prints no colours without a terminal or with NO_COLOR."""
    session = current_session()
    file = sys.stdout if session is None else session.output.results
    width = None if file.isatty() or "COLUMNS" in os.environ else PAGE_WIDTH
    return SafeConsole(file=file, width=width, markup=False, highlight=False, emoji=False)


def stderr() -> Console:
    """Return the console of progress."""
    return SafeConsole(stderr=True, markup=False, highlight=False, emoji=False)


def text(header: str) -> Column:
    """Return a column of words."""
    return Column(header, justify="left", overflow="fold")


def number(header: str) -> Column:
    """Return a column of numbers."""
    return Column(header, justify="right", overflow="fold")


def table(title: str, *columns: Column) -> Table:
    """Return a table with its title at the top left."""
    return Table(
        *columns,
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold cyan",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )


def render(listing: Listing[Any]) -> Table:
    """Return a table of results for the terminal."""
    headings = listing.terminal_columns
    rendered = table(
        listing.title, *((number if column.is_number else text)(column.heading or "") for column in headings)
    )
    for line in listing.lines():
        rendered.add_row(*line.cells, style=line.style or None)
    return rendered


def render_report(parts: Iterable[str | Listing[Any]]) -> Iterator[Table | ReportLine]:
    """Yield the sentences of a report in bold, and its tables."""
    for part in parts:
        yield (part, "bold") if isinstance(part, str) else render(part)


def facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    listing = Table(
        Column(style="cyan", no_wrap=True),
        Column(overflow="fold"),
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        show_header=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name, value in rows:
        listing.add_row(name, value)
    return listing


def show(console: Console, *tables: Table | None) -> None:
    """Print the tables that have rows, with a blank line between tables."""
    for listing in tables:
        if listing is not None and listing.row_count:
            console.print(listing)
            console.print()


MOST_LINES = 40
"""Lines of a report without ``-v``"""


def show_report(
    console: Console,
    head: Iterable[ReportLine],
    tables: Iterable[Table | ReportLine | None],
    first: Iterable[Table] = (),
) -> None:
    """Print a report: head lines first, then as many tables and lines by rank as fit; ``-v`` prints all.

    ``first``: tables that the user requested. They come first and do not count towards the limit. The last line names
    the omitted tables.
    """
    session = current_session()
    used, omitted = 0, list[str]()
    for line, style in head:
        used += _print_counted(console, Text(printable(line), style=style))
    console.print()
    for requested in first:
        _print_table(console, requested, math.inf)
    most = math.inf if session is not None and session.verbose else MOST_LINES - 2
    for part in tables:
        if isinstance(part, tuple):
            used += _print_counted(console, Text(printable(part[0]), style=part[1])) if used < most else 0
        elif part is not None and part.row_count:
            printed = _print_table(console, part, most - used)
            used += printed
            omitted += [] if printed else [str(part.title).partition("  ")[0]]
    if omitted:
        names = list(dict.fromkeys(omitted))
        more = f"; and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
        named = "; ".join(names[:MOST_NAMES])
        console.print(f"not shown, -v prints all: {named}{more}", style="dim", soft_wrap=True)


MOST_NAMES = 5
"""Most omitted tables that a report names"""
TABLE_HEAD = 4
"""Lines of a table besides its rows: title, column names, a rule, and a blank line"""


def _print_table(console: Console, listing: Table, most: float) -> int:
    """Print a table of at most ``most`` lines. Return the number of printed lines: 0 if the table is longer."""
    if listing.row_count + TABLE_HEAD > most:
        return 0
    with console.capture() as captured:
        console.print(listing)
        console.print()
    printed = captured.get()
    lines = printed.count("\n")
    if lines > most:
        return 0
    console.file.write(printed)
    return lines


def _print_counted(console: Console, line: Text) -> int:
    console.print(line, soft_wrap=True)
    return 1 + line.plain.count("\n")


def key_tables(key: ConfigKey, machine: str) -> list[Table]:
    """Return the description of a key and the keys below it as tables."""
    rows = [("type", type_text(key)), ("allowed", key.allowed), ("default", key.default_text)]
    here = [] if key.section else [(f"in {machine}", key.content_text)]
    about = facts(key.path, [("is", key.meaning), *((name, words) for name, words in rows if words), *here])
    below = key_table(f"Keys of {key.path}" if key.path else "Sections", key, f"in {machine}")
    return [about, below] if key.path else [below]


def key_table(title: str, section: ConfigKey, here: str | None = None) -> Table:
    """Return the keys of a section as a table with one row per key. ``here``: title of the column of current values."""
    listing = table(title, text("key"), *([text(here)] if here else []), text("default"), text("type"), text("is"))
    for key in section.entries:
        values = [*([key.content_text] if here else []), key.default_text]
        kind = type_text(key).replace("name", ", ".join(key.choices), 1) if key.choices else type_text(key)
        listing.add_row(key.name, *values, kind, "" if key.meaning == section.meaning else key.meaning)
    return listing


def type_text(key: ConfigKey) -> str:
    """Return the type of a key with its unit."""
    return f"{key.type}, {key.unit}" if key.unit and key.unit != "bytes" else key.type


def print_json(document: Json) -> None:
    """Print a document as JSON. Infinities and NaN become texts."""
    print_document(document_text(document))


def document_text(document: Json) -> str:
    """Return a document as JSON text without terminal control characters."""
    return _ACTED_ON.sub(_in_json, json_text(finite(document), indent=2, decimals=FIGURES))


def print_document(text: str) -> None:
    """Print the single document of a command."""
    session = current_session()
    if session is None:
        click.echo(text)
    else:
        session.output.print_document(text)


def _in_json(match: re.Match[str]) -> str:
    """Return a character as its JSON escape."""
    return f"\\u{ord(match[0]):04x}"


def finite(value: Json) -> Json:
    """Return ``value`` with infinities and NaN as texts."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [finite(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
