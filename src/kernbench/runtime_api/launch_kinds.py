"""Kinds of launches: two launches of one kind do the same work on the same PEs, so they take about the same time.

A kind consists of the kernel with all values that it uses, the PEs within their SIP, and the layout of each tensor.
Absolute addresses and the SIP are no part of a kind. Values are compared by content: a function by its code and by the
values that it captures.
Of a ``PartialWork``, only the part that decides the work counts.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from kernbench.kernels import PartialWork
from kernbench.messages.requests import PeCoord, TensorArg
from kernbench.runtime_api.launch import Alike, Launch
from kernbench.runtime_api.layout import TensorLayout

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range)
_SINGLE = (type, ModuleType, BuiltinFunctionType, CodeType, Enum, np.dtype, np.ufunc)
"""Types whose objects are equal only if they are the same, and that live as long as the program"""
_PACKAGE = __name__.partition(".")[0]


class FunctionStandIn(ABC):
    """An object that stands for the function ``fn``, such as a kernel that a front end compiles.

    Front ends register the classes of their compilers.
    """

    fn: object


class _NoKindError(Exception):
    """An object that has no value to compare."""


def kind_of(launch: Launch, access_bytes: int) -> Hashable | None:
    """Return the kind of a launch on one SIP; None if its kernel uses an object that can only be compared by identity.

    ``access_bytes``: the size of a memory access. Tensors of one kind begin at the same distance from a multiple.
    """
    message = launch.message
    sips = {sip for sip, _, _ in message.targets}
    if len(sips) != 1:
        return None
    (own_sip,) = sips
    layouts = {layout.va: layout for layout in launch.tensors}
    positions: dict[int, int] = {}

    def describe(argument: object) -> Hashable:
        if not isinstance(argument, TensorArg):
            return type(argument), argument
        first = positions.setdefault(argument.va, len(positions))
        layout = layouts.get(argument.va)
        if layout is None:
            raise _NoKindError
        return (
            first,
            argument.shape,
            argument.dtype,
            _relative(argument.owners, own_sip),
            _place(layout, own_sip, access_bytes),
        )

    alike = launch.alike or Alike(message.kernel.function)
    try:
        program = _Describer(alike.operands).describe(alike.program)
        arguments = tuple(describe(argument) for argument in message.args)
        keywords = tuple((name, describe(argument)) for name, argument in message.kwargs)
    except _NoKindError:
        return None
    return program, arguments, keywords, _relative(message.targets, own_sip), message.counts, message.stream


def _relative(pes: Sequence[PeCoord], own_sip: int) -> tuple[PeCoord, ...]:
    """Return ``pes`` with SIPs counted from that of the launch."""
    return tuple([(sip - own_sip, cube, pe) for sip, cube, pe in pes])


def _place(layout: TensorLayout, own_sip: int, access_bytes: int) -> Hashable:
    """Return the layout of a tensor on its PEs, without its address. SIPs count from that of the launch."""
    return tuple(
        [(s.sip - own_sip, s.cube, s.pe, s.offset_bytes, s.nbytes, s.pa % access_bytes) for s in layout.shards]
    )


def content_of(alike: Alike) -> Hashable | None:
    """Return the program of a launch with all its values; None if it can only be compared by identity."""
    try:
        return _Describer(alike.operands, all_values=True).describe(alike.program)
    except _NoKindError:
        return None


class _Describer:
    """The description of an object by its values, in which the position of an operand stands for the operand.

    ``all_values``: also those that do not decide the work.
    """

    def __init__(self, operands: Sequence[object], *, all_values: bool = False) -> None:
        self._all_values = all_values
        self._operands: dict[int, int] = {}
        for at, operand in enumerate(operands):
            self._operands.setdefault(id(operand), at)
        self._inside: set[int] = set()

    def describe(self, content: Any) -> Hashable:
        """Return a description that is equal for objects of equal content. Raises _NoKindError if there is none."""
        if isinstance(content, _PLAIN):
            return content.__class__, content
        if isinstance(content, _SINGLE):
            return content
        position = self._operands.get(id(content))
        if position is not None:
            return "operand", position
        if id(content) in self._inside:
            return "within itself"
        self._inside.add(id(content))
        try:
            return content.__class__, self._describe_parts(content)
        finally:
            self._inside.discard(id(content))

    def _describe_parts(self, content: Any) -> Hashable:
        parts: Hashable
        match content:
            case tuple() | list():
                parts = tuple(map(self.describe, content))
            case Mapping():
                parts = tuple((self.describe(key), self.describe(entry)) for key, entry in content.items())
            case Set():
                parts = frozenset(map(self.describe, content))
            case slice():
                parts = tuple(map(self.describe, (content.start, content.stop, content.step)))
            case np.ndarray() | np.generic() if not content.dtype.hasobject:
                parts = content.shape, content.dtype, content.tobytes()
            case partial():
                parts = tuple(map(self.describe, (content.func, content.args, content.keywords)))
            case MethodType():
                parts = self.describe(content.__func__), self.describe(content.__self__)
            case FunctionType() | FunctionStandIn():
                parts = tuple(self._describe_function(content))
            case PartialWork() if not self._all_values:
                parts = self.describe(content.work_key)
            case _ if is_dataclass(content) and _is_frozen(type(content)):
                parts = tuple(self.describe(getattr(content, entry.name)) for entry in fields(content))
            case Hashable() if _has_value(content):
                parts = content
            case _:
                raise _NoKindError
        return parts

    def _describe_function(self, function: FunctionType | FunctionStandIn) -> Iterator[Hashable]:
        """Yield the code of a function, its defaults, and the values that it captures."""
        if isinstance(function, FunctionStandIn):
            yield self.describe(function.fn)
            return
        yield function.__code__
        yield self.describe(function.__defaults__)
        yield self.describe(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                yield self.describe(cell.cell_contents)
            except ValueError:  # the variable has no value
                yield None
        if function.__module__ is not None and function.__module__.partition(".")[0] == _PACKAGE:
            return  # globals of the package do not change
        names = _names_of(function.__code__)
        yield from (self.describe(function.__globals__[name]) for name in names if name in function.__globals__)


def _names_of(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that a function and its inner functions use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _is_frozen(kind: Any) -> bool:
    """Return True for a dataclass whose objects do not change."""
    return bool(kind.__dataclass_params__.frozen)


def _has_value(content: object) -> bool:
    """Return True for an object that compares and hashes by content."""
    kind = type(content)
    if kind.__hash__ is None or kind.__hash__ is object.__hash__:
        return False
    return kind.__eq__ is not object.__eq__
