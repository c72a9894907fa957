"""Values that are made by the million: messages and commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def value(cls: type[T], /) -> type[T]: ...


@overload
def value(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
def value(cls: type[T] | None = None, /, *, kw_only: bool = True) -> type[T] | Callable[[type[T]], type[T]]:
    """A keyword-only dataclass with slots whose fields never change: the type checker sees to that.

    A frozen dataclass sees to it at run time, and takes more than twice as long to make. So do keywords: what is made
    for every message of a queue may take its fields by position (``kw_only=False``).
    """

    def decorate(plain: type[T]) -> type[T]:
        return dataclass(slots=True, kw_only=kw_only, eq=False)(plain)

    return decorate if cls is None else decorate(cls)
