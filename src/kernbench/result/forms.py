"""Plain data of typed results, and results of plain data: both derived from the types.

A dataclass is a mapping of its figures in order, a tuple is a list, an enumeration its value. Readers accept documents
of other versions: a missing key has the default of its field, and an unknown key has no effect.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from kernbench.common.complaints import show
from kernbench.common.figures import Entry, entries_of, figure_of

T = TypeVar("T")


@cache
def figures_of(kind: Any) -> tuple[Entry, ...]:
    """Return the figures of a dataclass, see ``entries_of``."""
    return entries_of(kind)


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
            document |= dict.fromkeys(_keys_of(_hints(content.__class__)[entry.name]))
    return document


def _keys_of(hint: Any) -> list[str]:
    return [entry.key for entry in figures_of(_dataclass_in(hint)) if entry.forms.stored]


def read_plain(kind: type[T], document: Any) -> T:
    """Return the result of type ``kind`` that a document describes.

    Raises KeyError for a missing key without a default, TypeError for another form, and pydantic's ValidationError for
    a value of another type.
    """
    result: T = _read(kind, document)
    return result


def _read(hint: Any, content: Any) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return content if isinstance(content, hint) else _read_mapping(hint, content)
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType) and type(None) in arguments:
        (inner, *further) = (argument for argument in arguments if argument is not type(None))
        return (
            None
            if content is None
            else _read(inner, content)
            if not further
            else _adapter(hint).validate_python(content)
        )
    if get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is ... and is_dataclass(arguments[0]):
        if not isinstance(content, list | tuple):
            raise TypeError(f"found {show(content)}, must be a list")
        return tuple(_read(arguments[0], entry) for entry in content)
    return _adapter(hint).validate_python(content)


def _read_mapping(kind: type, document: Any) -> Any:
    if not isinstance(document, Mapping):
        raise TypeError(f"found {show(document)}, must be a mapping")
    hints = _hints(kind)
    arguments = {}
    for declared in fields(kind):
        forms = figure_of(declared)
        if not forms.stored or not declared.init:
            continue
        if forms.inline:
            inner = _dataclass_in(hints[declared.name])
            is_absent = all(document.get(key) is None for key in _keys_of(inner))
            arguments[declared.name] = None if is_absent else _read_mapping(inner, document)
        elif (key := forms.key or declared.name) in document:
            arguments[declared.name] = _read(hints[declared.name], document[key])
        elif _has_no_default(declared):
            raise KeyError(key)
    return kind(**arguments)


def _has_no_default(declared: Field[Any]) -> bool:
    return declared.default is MISSING and declared.default_factory is MISSING


def _dataclass_in(hint: Any) -> Any:
    """Return the dataclass of a hint such as ``Place | None``."""
    return next(argument for argument in (hint, *get_args(hint)) if is_dataclass(argument))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)
