"""Typed results read from plain data, as ``to_plain`` wrote it.

Documents of other versions are accepted: a missing key has the default of its field, an unknown key has no effect.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from kernbench.common.complaints import describe_error, show
from kernbench.common.config import Path, path_text
from kernbench.common.figures import dataclass_in, figure_of, hints_of, keys_of


class FormError(ValueError):
    """A document that does not have the form of its type: the place in the document, and the fault."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(path, message)
        self.path, self.message = path, message

    def __str__(self) -> str:
        return f"{path_text(self.path)}: {self.message}" if self.path else self.message


def read_plain(kind: Any, document: Any, path: Path = ()) -> Any:
    """Return the result of type ``kind`` that a document describes; ``path`` is the place of the document in its file.

    Raises FormError for a missing key without a default, and for a value of another type.
    """
    if is_dataclass(kind):
        return document if type(document) is kind else _read_mapping(kind, document, path)
    arguments = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return _read_union(kind, document, path)
    if get_origin(kind) is tuple and len(arguments) == 2 and arguments[1] is ...:
        if not isinstance(document, list | tuple):
            raise FormError(path, f"found {show(document)}, must be a list")
        return tuple(read_plain(arguments[0], entry, (*path, at)) for at, entry in enumerate(document))
    if kind is float and document in _UNBOUNDED:
        return float(document)
    return _read_leaf(kind, document, path)


def _read_leaf(kind: Any, document: Any, path: Path) -> Any:
    try:
        return _adapter(kind).validate_python(document, strict=kind in _SCALARS)
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        raise FormError((*path, *item["loc"]), describe_error(item, path)) from error


_SCALARS = (str, int, float, bool)
_UNBOUNDED = ("nan", "inf", "-inf")
"""Texts of JSON in place of numbers that it does not have"""


def _read_union(hint: Any, document: Any, path: Path) -> Any:
    """Read a value of the first type whose needed keys the document has; None for nothing."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    if document is None and len(kinds) < len(get_args(hint)):
        return None
    if len(kinds) > 1 and isinstance(document, Mapping):
        kinds = [kind for kind in kinds if is_dataclass(kind) and _needed_keys(kind) <= document.keys()] or kinds
    if len(kinds) == 1 or is_dataclass(kinds[0]):
        return read_plain(kinds[0], document, path)
    return _read_leaf(hint, document, path)


def _needed_keys(kind: Any) -> set[str]:
    return {figure_of(declared).key or declared.name for declared in fields(kind) if _has_no_default(declared)}


def _read_mapping(kind: Any, document: Any, path: Path) -> Any:
    if not isinstance(document, Mapping):
        raise FormError(path, f"found {show(document)}, must be a mapping")
    hints = hints_of(kind)
    arguments = {}
    for declared in fields(kind):
        forms = figure_of(declared)
        if not forms.stored or not declared.init:
            continue
        hint, key = hints[declared.name], forms.key or declared.name
        key = key if key in document or not forms.fallback else forms.fallback
        if forms.inline:
            inner = dataclass_in(hint)
            is_absent = all(document.get(key) is None for key in keys_of(inner)) and hint is not inner
            arguments[declared.name] = None if is_absent else _read_mapping(inner, document, path)
        elif key in document:
            arguments[declared.name] = read_plain(hint, document[key], (*path, key))
        elif _has_no_default(declared):
            raise FormError(path, f"missing key {key!r}")
    return kind(**arguments)


def _has_no_default(declared: Field[Any]) -> bool:
    return declared.default is MISSING and declared.default_factory is MISSING


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)
