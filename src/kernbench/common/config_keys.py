"""Descriptions of the keys of a configuration: docstrings below its fields, types, units, defaults and bounds.

The walk through a model follows the values of a machine, if there is one. If a type does not fix the keys, as for
``attrs`` of a user's class, the keys are those of the values.
"""

from __future__ import annotations

import ast
import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path as FilePath
from types import NoneType
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticUndefined, to_jsonable_python

from kernbench.common.config import path_of
from kernbench.common.errors import InputError, UnknownNameError
from kernbench.common.field_types import alternatives, find_model, item_type, mapping_types, type_of_field
from kernbench.common.units import format_size, unit_of_key
from kernbench.common.values import value
from kernbench.common.yaml_document import Path, path_text

Schema = Mapping[str, Any]


@value(kw_only=True)
class ConfigKey:
    """A key: its meaning and its allowed values.

    ``type`` and ``allowed`` are texts for a reader, ``choices`` are the allowed names. ``content`` is the value in the
    current machine, if the key is ``present`` there; a section has no content. ``entries`` are the keys below this key.
    """

    path: str
    meaning: str
    type: str
    unit: str
    section: bool
    required: bool
    default: Any
    allowed: str
    choices: tuple[str, ...]
    content: Any
    present: bool
    entries: tuple[ConfigKey, ...] = ()

    @property
    def name(self) -> str:
        """The last step of the path."""
        return self.path.rpartition(".")[2]

    @property
    def default_text(self) -> str:
        """The default as YAML text, ``required`` if there is none; empty for a section."""
        return "" if self.section else "required" if self.required else self._write(self.default)

    @property
    def content_text(self) -> str:
        """The content as YAML text; empty for a section and for a key that is not present."""
        return "" if self.section or not self.present else self._write(self.content)

    def to_dict(self) -> dict[str, Any]:
        """Return the key and the keys below it as plain data."""
        return {
            "path": self.path,
            "meaning": self.meaning,
            "type": self.type,
            "unit": self.unit or None,
            "required": self.required,
            "default": self.default,
            "allowed": self.allowed or None,
            "choices": list(self.choices),
            "value": self.content,
            "keys": [entry.to_dict() for entry in self.entries],
        }

    def _write(self, content: Any) -> str:
        is_size = self.unit == "bytes" and isinstance(content, int)
        return format_size(content).replace(" ", "") if is_size else yaml_text(content)


def describe_key(model: type[BaseModel], path: str = "", content: BaseModel | None = None) -> ConfigKey:
    """Return the description of the key at ``path`` and of the keys below it; an empty path means the whole file.

    Raises InputError if ``path`` is no path, and UnknownNameError, which lists the keys, if it leads to no key.
    """
    try:
        steps = path_of(path) if path else ()
    except ValueError as error:
        raise InputError(str(error)) from error
    root = entry = _KeyEntry((), model, content=content)
    for end, part in enumerate(steps):
        child = entry.child(part)
        if child is None:
            raise _unknown_key(root, entry, steps[end:])
        entry = child
    return replace(entry.describe(), entries=tuple(child_entry.describe() for child_entry in entry.list_below()))


def list_paths(model: type[BaseModel], content: BaseModel | None = None) -> list[str]:
    """Return the paths of all keys that can have a value, in the order of the file."""
    return [path_text(entry.path) for entry in _KeyEntry((), model, content=content).leaves()]


@value
class _KeyEntry:
    """An entry of a configuration: its type with bounds, its docstring, its default, and its content."""

    path: Path
    annotation: Any
    meaning: str = ""
    default: object = PydanticUndefined
    content: object = PydanticUndefined

    @property
    def model(self) -> type[BaseModel] | None:
        """The model of a section: the type of its content, which may be more specific than the annotation."""
        return type(self.content) if isinstance(self.content, BaseModel) else find_model(self.annotation)

    @property
    def has_value(self) -> bool:
        """True for an entry that can be a number, a name or a list, not only a section."""
        return any(
            find_model(alternative) is None and mapping_types(alternative) is None and alternative is not NoneType
            for alternative in alternatives(self.annotation)
        )

    def children(self) -> dict[str, _KeyEntry]:
        """Return the entries of a section by key; a mapping has the entries of its content."""
        model = self.model
        if model is None:
            names = self.content if isinstance(self.content, Mapping) else ()
            return {name: entry for name in names if (entry := self._entry_of_mapping(name)) is not None}
        content = dict(self.content) if isinstance(self.content, BaseModel) else {}
        defaults = dict(self.default) if isinstance(self.default, BaseModel) else {}
        meanings = meanings_of(model)
        return {
            name: _KeyEntry(
                (*self.path, name),
                type_of_field(field),
                meanings.get(name, ""),
                defaults.get(name, field.get_default(call_default_factory=True, validated_data={})),
                content.get(name, PydanticUndefined),
            )
            for name, field in model.model_fields.items()
        }

    def child(self, part: str | int) -> _KeyEntry | None:
        """Return the entry of a key or an index, or None if no such entry can exist."""
        if isinstance(part, str):
            return self.children().get(part) or self._entry_of_mapping(part)
        inner = item_type(self.annotation)
        items = self.content if isinstance(self.content, list | tuple) else ()
        content = items[part] if part < len(items) else PydanticUndefined
        return None if inner is None else _KeyEntry((*self.path, part), inner, self.meaning, content=content)

    def list_below(self) -> Iterator[_KeyEntry]:
        """Yield the entries to show below this one: its children, or those of one of its items."""
        children = self.children()
        if not children:
            mapping, item = mapping_types(self.annotation), self.child(0)
            if mapping is not None and find_model(mapping[1]) is not None:
                item = _KeyEntry((*self.path, "name"), mapping[1])
            children = {} if item is None else item.children()
        yield from children.values()

    def leaves(self) -> Iterator[_KeyEntry]:
        """Yield the entries below this one that can have a value."""
        for child in self.children().values():
            if child.has_value:
                yield child
            if not child.has_value or isinstance(child.content, BaseModel):
                yield from child.leaves()

    def _entry_of_mapping(self, name: str) -> _KeyEntry | None:
        types = None if self.model else mapping_types(self.annotation)
        if types is None or not _is_valid(types[0], name):
            return None
        default, content = (
            entries.get(name, PydanticUndefined) if isinstance(entries, Mapping) else PydanticUndefined
            for entries in (self.default, self.content)
        )
        return _KeyEntry((*self.path, name), types[1], self.meaning, default, content)

    def describe(self) -> ConfigKey:
        """Return the entry's meaning and allowed values as a ``ConfigKey``."""
        schema = TypeAdapter(self.annotation).json_schema()
        shapes = [_resolve(alternative, schema) for alternative in schema.get("anyOf", [schema])]
        units = (unit_of_key(part) for part in self.path if isinstance(part, str))
        unit = next(filter(None, units), "") if self.has_value else ""
        model = self.model
        required, present = self.default is PydanticUndefined, self.content is not PydanticUndefined
        return ConfigKey(
            path=path_text(self.path),
            meaning=self.meaning or ("" if model is None else _plain((inspect.getdoc(model) or "").split("\n\n")[0])),
            type=" or ".join(dict.fromkeys(_name_type(shape, unit) for shape in shapes)),
            unit=unit,
            section=not self.has_value,
            required=required and bool(self.path),
            default=None if required else to_jsonable_python(self.default),
            allowed="; ".join(filter(None, (_describe_bounds(shape, unit) for shape in shapes))),
            choices=tuple(name for shape in shapes for name in _choices(shape)),
            content=to_jsonable_python(self.content) if self.has_value and present else None,
            present=present,
        )


def _unknown_key(root: _KeyEntry, entry: _KeyEntry, remaining: Path) -> InputError:
    """Return the error for a path that ends at ``entry``, which has no entry at ``remaining``."""
    place, keys = path_text(entry.path), tuple(entry.children())
    if not keys:
        return InputError(f"{place} has no key {path_text(remaining[:1])!r}: it is a {entry.describe().type}")
    wanted = f".{path_text(remaining)}."
    paths = [f".{path_text(leaf.path)}." for leaf in root.leaves()]
    same = dict.fromkeys(path[1 : path.index(wanted) + len(wanted) - 1] for path in paths if wanted in path)
    hint = f"elsewhere: {', '.join(list(same)[:3])}" if same else ""
    return UnknownNameError(f"key of {place}:" if place else "key", path_text(remaining[:1]), keys, hint)


def _is_valid(annotation: Any, name: str) -> bool:
    try:
        TypeAdapter(annotation).validate_python(name)
    except ValidationError:
        return False
    return True


@cache
def meanings_of(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstrings below the fields of a model and its bases, by field; fields without one are omitted."""
    meanings: dict[str, str] = {}
    for cls in reversed(model.__mro__[: model.__mro__.index(BaseModel)]):
        body = _class_bodies(cls.__module__).get(cls.__qualname__, [])
        for statement, following in pairwise(body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    meanings[name] = _plain(text)
    return meanings


@cache
def _class_bodies(module: str) -> Mapping[str, list[ast.stmt]]:
    """Return the statements of each top-level class of a module; empty if the module has no source."""
    file = vars(sys.modules[module]).get("__file__") if module in sys.modules else None
    if file is None or not FilePath(file).is_file():
        return {}
    tree = ast.parse(FilePath(file).read_bytes())
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "").split())


def _resolve(shape: Schema, schema: Schema) -> Schema:
    """Return a part of a JSON schema with its reference resolved."""
    reference = shape.get("$ref")
    resolved: Schema = shape if reference is None else schema["$defs"][reference.rpartition("/")[2]]
    return resolved


_TYPE_NAMES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "array": "list",
    "object": "mapping",
    "null": "null",
}


def _name_type(shape: Schema, unit: str) -> str:
    if _choices(shape):
        return "name"
    is_size = shape.get("type") == "integer" and unit == "bytes"
    return "size" if is_size else _TYPE_NAMES.get(shape.get("type", ""), "value")


def _choices(shape: Schema) -> tuple[str, ...]:
    return tuple(map(str, shape.get("enum", [shape["const"]] if "const" in shape else [])))


def _describe_bounds(shape: Schema, unit: str) -> str:
    """Return the bounds or names allowed for a number, a name or the items of a list, in words."""
    if _choices(shape):
        return ", ".join(_choices(shape))
    if "items" in shape:
        return _describe_bounds(shape["items"], unit)
    least, most = shape.get("minimum", shape.get("ge")), shape.get("maximum", shape.get("le"))
    show = format_size if shape.get("type") == "integer" and unit == "bytes" else _show_number
    above = shape.get("exclusiveMinimum")
    lower = f"at least {show(least)}" if least is not None else f"more than {show(above)}" if above is not None else ""
    if least is not None and most is not None:
        return f"{show(least)} to {show(most)}"
    return ", ".join(filter(None, (lower, "" if most is None else f"at most {show(most)}")))


def _show_number(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and abs(number) <= 1e6 else f"{number:g}"


def yaml_text(content: Any) -> str:
    """Return a value as YAML, on one line."""
    text = yaml.safe_dump(content, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.removesuffix("...\n").rstrip("\n")
