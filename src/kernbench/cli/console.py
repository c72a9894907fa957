"""Print a command's output: tables to stdout, progress to stderr, JSON as one document.

Names come from users: control characters in them are shown, and never reach a terminal.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

import rich_click as click
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from kernbench.cli.options import current_session
from kernbench.common.files import FIGURES, json_text

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
