"""Metadata of a result's fields: every other form of a figure (JSON, table, column) is derived from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from typing import Any

from kernbench.common.values import value

_KEY = "kernbench.figure"


@value(kw_only=True)
class Figure:
    """The forms of a field.

    - ``about``: its description, for columns of tables; empty for a field without a column in tables
    - ``key``: its key in JSON if the name of the field is none, such as ``for``
    - ``column``: its column in sweeps and comparisons; empty: the section and the field, ``energy.total_pj``
    - ``swept``: False keeps a number or text out of sweeps and comparisons
    - ``optional``: an empty value has no key in JSON
    - ``inline``: the fields of the value are keys beside the other fields
    - ``stored``: False for a field that only the process of the run has
    - ``show``: the text of a cell
    """

    about: str = ""
    key: str = ""
    column: str = ""
    swept: bool = True
    optional: bool = False
    inline: bool = False
    stored: bool = True
    show: Callable[[Any], object] | None = None


_PLAIN = Figure()


def figure(
    about: str = "",
    *,
    key: str = "",
    column: str | bool = "",
    optional: bool = False,
    inline: bool = False,
    stored: bool = True,
    show: Callable[[Any], object] | None = None,
    default: Any = MISSING,
    default_factory: Any = MISSING,
) -> Any:
    """Return a dataclass field with its forms, see Figure. ``column=False`` keeps it out of sweeps and comparisons."""
    forms = Figure(
        about=about,
        key=key,
        column=column if isinstance(column, str) else "",
        swept=column is not False,
        optional=optional,
        inline=inline,
        stored=stored,
        show=show,
    )
    if default_factory is not MISSING:
        return field(default_factory=default_factory, metadata={_KEY: forms})
    return field(default=default, metadata={_KEY: forms})


def figure_of(declared: Field[Any]) -> Figure:
    """Return the forms of a dataclass field."""
    forms: Figure = declared.metadata.get(_KEY, _PLAIN)
    return forms


class derived(property):  # noqa: N801 - a decorator, as ``property``
    """A property that JSON and tables have, as if it were a field; made by ``derived_after``."""

    after: str | None = None
    forms: Figure = _PLAIN


def derived_after(name: str | None, about: str = "", show: Callable[[Any], object] | None = None) -> Callable[..., Any]:
    """Return a decorator for a derived property that stands after field ``name``; None: before all fields."""

    def decorate(getter: Callable[[Any], Any]) -> derived:
        result = derived(getter)
        result.after, result.forms = name, Figure(about=about, show=show)
        return result

    return decorate


@value
class Entry:
    """A figure of a class: a field with its type, or a derived property. ``derived``: it is not read from JSON."""

    name: str
    forms: Figure
    derived: bool = False

    @property
    def key(self) -> str:
        """The key in JSON."""
        return self.forms.key or self.name


def entries_of(kind: type) -> tuple[Entry, ...]:
    """Return the figures of a dataclass in the order of its document."""
    computed = {
        name: member
        for base in reversed(kind.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, derived)
    }
    entries = [Entry(name, member.forms, True) for name, member in computed.items() if member.after is None]
    for declared in fields(kind):
        entries.append(Entry(declared.name, figure_of(declared)))
        entries += [
            Entry(name, member.forms, True) for name, member in computed.items() if member.after == declared.name
        ]
    return tuple(entries)
