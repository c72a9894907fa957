"""Print a command's output: tables to stdout, progress to stderr, JSON as one document.

Names come from users: control characters in them are shown, and never reach a terminal.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import rich_click as click
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from kernbench.cli.options import current_session
from kernbench.common.files import FIGURES, json_text
from kernbench.common.units import format_size
from kernbench.library.progress import ProgressDisplay

if TYPE_CHECKING:
    from kernbench.common.config_keys import ConfigKey
    from kernbench.observe.statistics import LinkTraffic
    from kernbench.probe.report import LinkLoad

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
# Wide enough for every table, where no terminal says how wide it is.
PAGE_WIDTH = 120
# Control characters but line ends and tabs, those that turn the direction of writing, and halves of characters.
_ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """``text`` with everything that a terminal would act on written out: ``\\x1b``. Lines and tabs stay."""
    return _ACTED_ON.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: str, *, newline: bool = True) -> None:
    """Tell the user something on stderr."""
    click.echo(printable(text), err=True, nl=newline)


def show_progress() -> ProgressDisplay:
    """Return what shows progress on stderr, a context manager."""
    return ProgressDisplay(say, stderr())


class SafeConsole(Console):
    """A console that shows every text as ``printable``."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Parse the markup of a text as rich does."""
        return super().render_str(printable(text), **options)


def stdout() -> Console:
    """The console of results. Rich leaves colours out when it is no terminal and when NO_COLOR is set."""
    session = current_session()
    file = sys.stdout if session is None else session.output.results
    width = None if file.isatty() or "COLUMNS" in os.environ else PAGE_WIDTH
    return SafeConsole(file=file, width=width, markup=False, highlight=False, emoji=False)


def stderr() -> Console:
    """The console of progress."""
    return SafeConsole(stderr=True, markup=False, highlight=False, emoji=False)


def text(header: str) -> Column:
    """A column of words."""
    return Column(header, justify="left", overflow="fold")


def number(header: str) -> Column:
    """A column of figures."""
    return Column(header, justify="right", overflow="fold")


def table(title: str, *columns: Column) -> Table:
    """A table with its title on the left above it."""
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


def facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values side by side."""
    made = Table(
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
        made.add_row(name, value)
    return made


def show(console: Console, *tables: Table | None) -> None:
    """Print tables with a line between them; those without rows are left out."""
    for each in tables:
        if each is not None and each.row_count:
            console.print(each)
            console.print()


MOST_LINES = 40
"""Of a report, unless all of it is asked for by ``-v``"""
ReportLine: TypeAlias = tuple[str, str]
"""A line of a report and its style"""


def show_report(
    console: Console,
    head: Iterable[ReportLine],
    tables: Iterable[Table | ReportLine | None],
    asked: Iterable[Table] = (),
) -> None:
    """Print a report: the lines that come first, then tables and lines by rank, as many as fit; ``-v`` prints all.

    ``asked``: the tables that the user wants, which come before the others; they take no room from these. The last line
    names the tables that are left out.
    """
    session = current_session()
    used, left = 0, list[str]()
    for line, style in head:
        used += _print_counted(console, Text(printable(line), style=style))
    console.print()
    for wanted in asked:
        _print_table(console, wanted, math.inf)
    most = math.inf if session is not None and session.verbose else MOST_LINES - 2
    for each in tables:
        if isinstance(each, tuple):
            used += _print_counted(console, Text(printable(each[0]), style=each[1])) if used < most else 0
        elif each is not None and each.row_count:
            printed = _print_table(console, each, most - used)
            used += printed
            left += [] if printed else [str(each.title).partition("  ")[0]]
    if left:
        names = list(dict.fromkeys(left))
        more = f"; and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
        named = "; ".join(names[:MOST_NAMES])
        console.print(f"not shown, -v prints all: {named}{more}", style="dim", soft_wrap=True)


MOST_NAMES = 12
"""Tables that are named when they are left out."""
TABLE_HEAD = 4
"""Lines of a table beside its rows: title, names of columns, a rule, and the line behind it"""


def _print_table(console: Console, made: Table, most: float) -> int:
    """Print a table if it has at most so many lines; return how many, 0 if it was not printed."""
    if made.row_count + TABLE_HEAD > most:
        return 0
    with console.capture() as captured:
        console.print(made)
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


def link_table(title: str, links: Sequence[LinkTraffic | LinkLoad], peaks: Sequence[int] = ()) -> Table:
    """Tabulate the loads of links; ``peaks``: the most bytes in the FIFO of each, where they are known."""
    names = ("GB/s", "carried", "busy", *(["peak FIFO"] if peaks else []))
    made = table(title, text("from"), text("to"), *(number(name) for name in names), text(""))
    for at, link in enumerate(links):
        carried, busy = format_size(link.nbytes), f"{link.utilisation:.1%}"
        peak = [format_size(peaks[at])] if peaks else []
        made.add_row(link.src, link.dst, f"{link.bw_gbs:g}", carried, busy, *peak, bar(link.utilisation))
    return made


def key_tables(key: ConfigKey, machine: str) -> list[Table]:
    """Return what is known of a key, and the keys below it, as tables."""
    rows = [("type", type_text(key)), ("allowed", key.allowed), ("default", key.default_text)]
    here = [] if key.section else [(f"in {machine}", key.content_text)]
    about = facts(key.path, [("is", key.meaning), *((name, words) for name, words in rows if words), *here])
    below = key_table(f"Keys of {key.path}" if key.path else "Sections", key, f"in {machine}")
    return [about, below] if key.path else [below]


def key_table(title: str, section: ConfigKey, here: str | None = None) -> Table:
    """Return the keys of a section as a table, a row each; ``here``: the head of the column of their values."""
    made = table(title, text("key"), *([text(here)] if here else []), text("default"), text("type"), text("is"))
    for key in section.entries:
        values = [*([key.content_text] if here else []), key.default_text]
        kind = type_text(key).replace("name", ", ".join(key.choices), 1) if key.choices else type_text(key)
        made.add_row(key.name, *values, kind, "" if key.meaning == section.meaning else key.meaning)
    return made


def type_text(key: ConfigKey) -> str:
    """Return the type of a key with its unit."""
    return f"{key.type}, {key.unit}" if key.unit and key.unit != "bytes" else key.type


def time_cells(ns: float, share: float) -> tuple[str, str, str]:
    """A time, its share of the whole, and that as a bar."""
    return f"{ns:,.3f}", f"{share:.1%}", bar(share)


def bar(share: float, width: int = 24) -> str:
    """A share as a bar of blocks, to an eighth of one."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


def print_json(document: Json) -> None:
    """Print a document; numbers that JSON does not have become texts."""
    print_document(document_text(document))


def document_text(document: Json) -> str:
    """A document as text, without characters that a terminal would act on."""
    return _ACTED_ON.sub(_in_json, json_text(finite(document), indent=2, decimals=FIGURES))


def print_document(text: str) -> None:
    """Print the one document that a command was asked for."""
    session = current_session()
    if session is None:
        click.echo(text)
    else:
        session.output.print_document(text)


def _in_json(found: re.Match[str]) -> str:
    """A character as JSON writes it."""
    return f"\\u{ord(found[0]):04x}"


def finite(value: Json) -> Json:
    """``value`` with infinities and NaN as texts."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
