"""Metadata of a result's fields, from which every other form of a figure (JSON, table, column) is derived.

In JSON a dataclass is a mapping of its figures in order, a tuple is a list, an enumeration its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Generic, Self, TypeVar, get_args, get_type_hints, overload

from kernbench.common.values import value

T = TypeVar("T")
_KEY = "kernbench.figure"


@value(kw_only=True)
class Figure:
    """The forms of a field.

    - ``about``: its description, for columns of tables; empty for a field without a column in tables
    - ``key``: its key in JSON if the name of the field is none, such as ``for``
    - ``fallback``: the key to read if documents of earlier versions lack ``key``
    - ``column``: its column in sweeps and comparisons; empty: the section and the field, ``energy.total_pj``
    - ``swept``: False keeps a number or text out of sweeps and comparisons
    - ``optional``: an empty value has no key in JSON
    - ``inline``: the fields of the value are keys beside the other fields
    - ``stored``: False for a field that only the process of the run has
    - ``show``: the text of a cell
    """

    about: str = ""
    key: str = ""
    fallback: str = ""
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
    fallback: str = "",
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
        fallback=fallback,
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


class Derived(Generic[T]):
    """A property that JSON and tables have, as if it were a field after field ``after``; None: before all fields."""

    def __init__(self, getter: Callable[[Any], T], after: str | None, forms: Figure) -> None:
        self._getter, self.after, self.forms = getter, after, forms
        self.__doc__ = getter.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | Self:
        return self if instance is None else self._getter(instance)


def derived_after(
    name: str | None, about: str = "", show: Callable[[Any], object] | None = None
) -> Callable[[Callable[[Any], T]], Derived[T]]:
    """Return a decorator for a property that JSON and tables have after field ``name``; None: before all fields."""
    return lambda getter: Derived(getter, name, Figure(about=about, show=show))


@value
class DeclaredFigure:
    """A figure of a class: a field with its type, or a derived property. ``derived``: it is not read from JSON."""

    name: str
    forms: Figure
    derived: bool = False

    @property
    def key(self) -> str:
        """The key in JSON."""
        return self.forms.key or self.name


@cache
def figures_of(kind: Any) -> tuple[DeclaredFigure, ...]:
    """Return the figures of a dataclass in the order of its document."""
    computed = {
        name: member
        for base in reversed(kind.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, Derived)
    }
    entries = [DeclaredFigure(name, member.forms, True) for name, member in computed.items() if member.after is None]
    for declared in fields(kind):
        entries.append(DeclaredFigure(declared.name, figure_of(declared)))
        entries += [
            DeclaredFigure(name, member.forms, True)
            for name, member in computed.items()
            if member.after == declared.name
        ]
    return tuple(entries)


def to_plain(content: Any) -> Any:
    """Return a result as mappings, lists, numbers and texts."""
    if is_dataclass(content) and not isinstance(content, type):
        return _to_mapping(content)
    if isinstance(content, Mapping):
        return {key: to_plain(entry) for key, entry in content.items()}
    if isinstance(content, tuple | list):
        return [to_plain(entry) for entry in content]
    return content.value if isinstance(content, Enum) else content


def _to_mapping(content: Any) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for entry in figures_of(content.__class__):
        forms, figure = entry.forms, getattr(content, entry.name)
        if not forms.stored or (forms.optional and not figure):
            continue
        if not forms.inline:
            document[entry.key] = to_plain(figure)
        elif figure is not None:
            document |= _to_mapping(figure)
        else:
            document |= dict.fromkeys(keys_of(hints_of(content.__class__)[entry.name]))
    return document


def keys_of(hint: Any) -> list[str]:
    """Return the keys in JSON of the dataclass in a hint."""
    return [entry.key for entry in figures_of(dataclass_in(hint)) if entry.forms.stored]


def dataclass_in(hint: Any) -> Any:
    """Return the dataclass of a hint such as ``Place | None``."""
    return next(argument for argument in (hint, *get_args(hint)) if is_dataclass(argument))


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    return get_type_hints(kind)
