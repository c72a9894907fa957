"""The types of entries in a configuration: the alternatives of an annotation, and the types below an entry."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kernbench.common.yaml_document import Path


def type_of_field(field: FieldInfo) -> object:
    """Return the annotation of a field together with its constraints, which pydantic stores apart."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def alternatives(annotation: object) -> Iterator[object]:
    """Yield the types inside ``Annotated`` and unions, in order."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        yield from alternatives(typing.get_args(annotation)[0])
    elif origin in {typing.Union, types.UnionType}:
        for argument in typing.get_args(annotation):
            yield from alternatives(argument)
    else:
        yield annotation


def find_model(annotation: object) -> type[BaseModel] | None:
    """Return the model among the alternatives of a type, or None."""
    return next(
        (
            alternative
            for alternative in alternatives(annotation)
            if isinstance(alternative, type) and issubclass(alternative, BaseModel)
        ),
        None,
    )


def mapping_types(annotation: object) -> tuple[object, object] | None:
    """Return the types of keys and values of the mapping among the alternatives, or None."""
    mapping = next(
        (alternative for alternative in alternatives(annotation) if typing.get_origin(alternative) is dict), None
    )
    return None if mapping is None else typing.get_args(mapping)[:2]


def item_type(annotation: object) -> object | None:
    """Return the type of the items of the list among the alternatives, or None."""
    sequence = next(
        (alternative for alternative in alternatives(annotation) if typing.get_origin(alternative) in {list, tuple}),
        None,
    )
    return None if sequence is None else typing.get_args(sequence)[0]


def type_at(annotation: object, path: Path) -> object | None:
    """Return the type of the entry at ``path`` below an entry of type ``annotation``, or None if none exists."""
    for part in path:
        model, mapping = find_model(annotation), mapping_types(annotation)
        if isinstance(part, int):
            annotation = item_type(annotation)
        elif model is not None:
            fields = {field.alias or name: type_of_field(field) for name, field in model.model_fields.items()}
            annotation = fields.get(part)
        else:
            annotation = None if mapping is None else mapping[1]
    return annotation


def model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """Return the model of the mapping at ``path`` below ``model``, or None if no model describes it."""
    return find_model(type_at(model, path))
