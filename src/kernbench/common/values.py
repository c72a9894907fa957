"""Class decorators ``@value`` and ``@state``: dataclasses whose classes are created in a tenth of the time.

``dataclass`` compiles up to ten functions for each class, which took a fifth of the start of a process. Here only
``__init__`` is compiled, before its first use: a run makes objects of half of the classes that it imports. All classes
share the other functions. ``fields``, ``replace``, ``asdict``, ``copy``, ``pickle`` and ``match`` treat these classes
as dataclasses, and a dataclass may inherit from them.
"""

from __future__ import annotations

import copy
import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from functools import lru_cache
from operator import attrgetter, ge, gt, le, lt
from typing import Any, NamedTuple, TypeVar, dataclass_transform, overload

T = TypeVar("T")
_COMPILED = ("__init__", "__eq__", "__hash__")
"""Methods that are compiled for a class: the first for each class, the others for those without a guard"""

Fields = dict[str, "Field[Any]"]
FieldsOf = Callable[[Any], tuple[Any, ...]]


class Options(NamedTuple):
    """The options of a class: those of ``dataclass``, with ``guarded`` in place of ``frozen``.

    ``hashed``: equal objects have equal hashes. ``compiled``: ``==`` and ``hash`` are compiled for the class.
    """

    kw_only: bool
    eq: bool
    order: bool
    repr: bool
    guarded: bool
    hashed: bool
    compiled: bool


@overload
def value(cls: type[T], /) -> type[T]: ...


@overload
def value(
    *, kw_only: bool = False, eq: bool = True, order: bool = False, repr: bool = True, guarded: bool = True
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def value(
    cls: type[T] | None = None,
    /,
    *,
    kw_only: bool = False,
    eq: bool = True,
    order: bool = False,
    repr: bool = True,  # noqa: A002 - dataclass's name
    guarded: bool = True,
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class whose fields never change: ``dataclass(frozen=True, slots=True)``.

    ``guarded=False`` is for classes with millions of objects or comparisons: only the type checker then refuses
    assignments, and ``__init__`` runs in half the time. ``==`` and ``hash`` are compiled for the class.
    """
    options = Options(kw_only, eq, order, repr, guarded, hashed=eq, compiled=eq and not guarded)
    return _decorate(cls, options)


@overload
def state(cls: type[T], /) -> type[T]: ...


@overload
def state(*, kw_only: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(field, Field))
def state(
    cls: type[T] | None = None, /, *, kw_only: bool = False, eq: bool = True
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class whose fields change: ``dataclass(slots=True)``."""
    options = Options(kw_only, eq, order=False, repr=True, guarded=False, hashed=False, compiled=False)
    return _decorate(cls, options)


def _decorate(cls: type[T] | None, options: Options) -> type[T] | Callable[[type[T]], type[T]]:
    def decorate(plain: type[T]) -> type[T]:
        return _make_class(plain, options)

    return decorate if cls is None else decorate(cls)


def _make_class(plain: type[T], options: Options) -> type[T]:
    """Return a copy of ``plain`` with slots and methods: Python cannot add slots to an existing class."""
    declared = _list_declared_fields(plain, options.kw_only)
    fields: Fields = {}
    for base in reversed(plain.__mro__):
        fields.update(vars(base).get("__dataclass_fields__", ()))
    fields.update(declared)
    inherited = {slot for base in plain.__mro__[1:-1] for slot in _list_slots(base)}
    members = {name: member for name, member in vars(plain).items() if name not in declared}
    for name in ("__dict__", "__weakref__"):
        members.pop(name, None)
    if "__eq__" in members and members["__hash__"] is None:
        del members["__hash__"]  # Python set it, not the author of the class.
    late = {name: _Uncompiled(plain, fields, options) for name in _COMPILED[: None if options.compiled else 1]}
    # Methods that the author wrote are not replaced.
    namespace = late | dict(_list_methods(fields, options)) | members
    namespace["__slots__"] = tuple(name for name in fields if name not in inherited)
    namespace["__dataclass_fields__"] = fields
    namespace["__dataclass_params__"] = _make_params(options)
    namespace.setdefault("__match_args__", tuple(f.name for f in fields.values() if f.init and not f.kw_only))
    make: Callable[..., type[T]] = type(plain)
    cls = make(plain.__name__, plain.__bases__, namespace)
    cls.__qualname__ = plain.__qualname__
    return cls


class _Uncompiled:
    """A method before its first use, which compiles this method and the others of the class."""

    __slots__ = ("_cls", "_fields", "_name", "_options", "_plain")

    def __init__(self, plain: type, fields: Fields, options: Options) -> None:
        self._plain, self._fields, self._options = plain, fields, options

    def __set_name__(self, cls: type, name: str) -> None:
        self._cls, self._name = cls, name

    def __get__(self, thing: object, _: type | None = None) -> Any:
        cls = self._cls
        methods = _compile(self._plain, self._fields, self._options)
        if self._options.guarded:
            # The setters of slots bypass the guard.
            setters = {f"_set_{name}": getattr(cls, name).__set__ for name in self._fields}
            methods["__init__"].__globals__.update(setters)
        for name, method in methods.items():
            if isinstance(vars(cls).get(name), _Uncompiled):
                setattr(cls, name, method)
        return methods[self._name].__get__(thing, cls)


def _list_declared_fields(plain: type, kw_only: bool) -> Fields:
    """Return the fields that this class declares, without inherited ones, in order."""
    declared: Fields = {}
    for name, kind in plain.__annotations__.items():
        if str(kind).startswith(("ClassVar", "typing.ClassVar")):
            continue
        default = vars(plain).get(name, MISSING)
        entry: Field[Any] = default if isinstance(default, Field) else field(default=default)
        if type(entry.default).__hash__ is None:
            raise ValueError(f"field {name}: a {type(entry.default).__name__} is no default, use default_factory")
        entry.name, entry.type = name, kind
        entry.kw_only = kw_only if entry.kw_only is MISSING else entry.kw_only
        entry._field_type = _FIELD  # type: ignore[attr-defined]  # noqa: SLF001 - ``fields`` reads this attribute
        declared[name] = entry
    return declared


def _list_slots(cls: type) -> Iterable[str]:
    slots: str | Iterable[str] = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def _compile(plain: type, fields: Fields, options: Options) -> dict[str, Any]:
    """Return the methods that are compiled for this class, by name."""
    names: dict[str, Any] = {"__name__": plain.__module__, "_MISSING": MISSING}
    exec("\n".join(_compile_source(plain, fields, options, names)), names)
    methods: dict[str, Any] = {name: names[name] for name in _COMPILED if name in names}
    for name, method in methods.items():
        method.__qualname__ = f"{plain.__qualname__}.{name}"
    methods["__init__"].__annotations__ = {f.name: f.type for f in fields.values() if f.init} | {"return": None}
    return methods


def _compile_source(plain: type, fields: Fields, options: Options, names: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the compiled methods; store defaults and factories in ``names``."""
    ordered = sorted((f for f in fields.values() if f.init), key=lambda f: bool(f.kw_only))
    parameters = ["self"]
    for f in ordered:
        if f.kw_only and "*" not in parameters:
            parameters.append("*")
        default = "_MISSING" if f.default_factory is not MISSING else f"_default_{f.name}"
        parameters.append(f.name if f.default is f.default_factory is MISSING else f"{f.name}={default}")
    yield f"def __init__({', '.join(parameters)}):"
    yield " pass"
    for f in fields.values():
        content = f.name if f.init else f"_default_{f.name}"
        if f.default_factory is not MISSING:
            names[f"_make_{f.name}"] = f.default_factory
            content = f"_make_{f.name}() if {f.name} is _MISSING else {f.name}" if f.init else f"_make_{f.name}()"
        elif f.default is not MISSING:
            names[f"_default_{f.name}"] = f.default
        elif not f.init:
            continue
        yield f" _set_{f.name}(self, {content})" if options.guarded else f" self.{f.name} = {content}"
    if any("__post_init__" in vars(base) for base in plain.__mro__):
        yield " self.__post_init__()"
    if options.compiled:
        self_key, other_key = (
            ", ".join(f"{of}.{f.name}" for f in fields.values() if f.compare) for of in ("self", "other")
        )
        hashed = ", ".join(f"self.{name}" for name in _hash_fields(fields))
        yield "def __eq__(self, other):"
        yield f" return ({self_key},) == ({other_key},) if other.__class__ is self.__class__ else NotImplemented"
        yield "def __hash__(self):"
        yield f" return hash(({hashed},))"


def _hash_fields(fields: Fields) -> Iterator[str]:
    return (f.name for f in fields.values() if (f.compare if f.hash is None else f.hash))


def _list_methods(fields: Fields, options: Options) -> Iterator[tuple[str, Any]]:
    """Yield the methods that need no compilation, by name."""
    yield "__replace__", dataclasses.replace
    if options.repr:
        yield "__repr__", _show
    if options.guarded:
        yield "__setattr__", _refuse_assignment
        yield "__delattr__", _refuse_deletion
        yield "__getstate__", _get_contents
        yield "__setstate__", _fill
    if options.eq and not options.compiled:
        key = _make_key(f.name for f in fields.values() if f.compare)
        yield "__eq__", _make_equality(key)
        if options.hashed:
            yield "__hash__", _make_hashing(_make_key(_hash_fields(fields)))
        if options.order:
            yield from ((f"__{compare.__name__}__", _make_ordering(key, compare)) for compare in (lt, le, gt, ge))


def _make_key(names: Iterable[str]) -> FieldsOf:
    """Return a function from an object to the tuple of its fields."""
    wanted = tuple(names)
    if len(wanted) > 1:
        return attrgetter(*wanted)
    return lambda thing: tuple(getattr(thing, name) for name in wanted)


def _make_equality(key: FieldsOf) -> Callable[[Any, Any], bool]:
    def equal(self: Any, other: Any) -> bool:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return equal


def _make_hashing(key: FieldsOf) -> Callable[[Any], int]:
    def compute_hash(self: Any) -> int:
        return hash(key(self))

    return compute_hash


def _make_ordering(key: FieldsOf, compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare_order(self: Any, other: Any) -> bool:
        return compare(key(self), key(other)) if other.__class__ is self.__class__ else NotImplemented

    return compare_order


@reprlib.recursive_repr()
def _show(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse_assignment(self: Any, name: str, new: object) -> None:
    if _is_guarded(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, new)


def _refuse_deletion(self: Any, name: str) -> None:
    if _is_guarded(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_guarded(self: Any, name: str) -> bool:
    """Return True for a field. A plain subclass may have further attributes, which are not guarded."""
    return name in self.__dataclass_fields__ or "__dataclass_fields__" in vars(type(self))


def _get_contents(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _fill(self: Any, contents: list[Any]) -> None:
    for f, content in zip(dataclasses.fields(self), contents, strict=True):
        object.__setattr__(self, f.name, content)


@dataclass
class _Template:
    """A dataclass from which this file copies the markers that the standard library sets."""

    field: int


_FIELD = dataclasses.fields(_Template)[0]._field_type  # type: ignore[attr-defined]  # noqa: SLF001


@lru_cache
def _make_params(options: Options) -> object:
    """Return the parameters that ``dataclass`` reads from a base class."""
    params = copy.copy(vars(_Template)["__dataclass_params__"])
    set_here = {"frozen": options.guarded, "eq": options.eq, "order": options.order, "repr": options.repr}
    for name, setting in (set_here | {"kw_only": options.kw_only, "slots": True}).items():
        if name in type(params).__slots__:
            setattr(params, name, setting)
    return params
