"""Classes of fields, ``@value`` and ``@state``: dataclasses that take a tenth of the time to make.

``dataclass`` compiles up to ten functions a class, which was a fifth of a start. Here only ``__init__`` is compiled;
the other functions are shared. ``fields``, ``replace``, ``asdict``, ``copy``, ``pickle`` and ``match`` treat these
classes as dataclasses, and a dataclass may inherit from them.
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

Fields = dict[str, "Field[Any]"]
FieldsOf = Callable[[Any], tuple[Any, ...]]


class Options(NamedTuple):
    """The options of a class: ``dataclass``'s own, and ``guarded`` for its ``frozen``.

    ``hashed``: equal objects have one hash. ``compiled``: ``==`` and ``hash`` are compiled for the class.
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

    ``guarded=False`` is for objects that are made or compared by the million: only the type checker refuses an
    assignment, which halves the time of ``__init__``, and ``==`` and ``hash`` are compiled for the class.
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
    """Return ``plain`` again with slots and methods: slots cannot be added to a class that is there."""
    own = _list_own_fields(plain, options.kw_only)
    fields: Fields = {}
    for base in reversed(plain.__mro__):
        fields.update(vars(base).get("__dataclass_fields__", ()))
    fields.update(own)
    inherited = {slot for base in plain.__mro__[1:-1] for slot in _list_slots(base)}
    compiled = _compile(plain, fields, options)
    members = {name: member for name, member in vars(plain).items() if name not in own}
    for name in ("__dict__", "__weakref__"):
        members.pop(name, None)
    if "__eq__" in members and members["__hash__"] is None:
        del members["__hash__"]  # Python's, not the author's.
    # What the author wrote stays.
    made = compiled | dict(_list_methods(fields, options)) | members
    made["__slots__"] = tuple(name for name in fields if name not in inherited)
    made["__dataclass_fields__"] = fields
    made["__dataclass_params__"] = _make_params(options)
    made.setdefault("__match_args__", tuple(f.name for f in fields.values() if f.init and not f.kw_only))
    make: Callable[..., type[T]] = type(plain)
    cls = make(plain.__name__, plain.__bases__, made)
    cls.__qualname__ = plain.__qualname__
    if options.guarded:
        # The setters of slots pass the guard by.
        compiled["__init__"].__globals__.update({f"_set_{name}": getattr(cls, name).__set__ for name in fields})
    return cls


def _list_own_fields(plain: type, kw_only: bool) -> Fields:
    """Return the fields that the class itself declares, in order."""
    own: Fields = {}
    for name, kind in plain.__annotations__.items():
        if str(kind).startswith(("ClassVar", "typing.ClassVar")):
            continue
        default = vars(plain).get(name, MISSING)
        found: Field[Any] = default if isinstance(default, Field) else field(default=default)
        if type(found.default).__hash__ is None:
            raise ValueError(f"field {name}: a {type(found.default).__name__} is no default, use default_factory")
        found.name, found.type = name, kind
        found.kw_only = kw_only if found.kw_only is MISSING else found.kw_only
        found._field_type = _FIELD  # type: ignore[attr-defined]  # noqa: SLF001 - ``fields`` looks for it
        own[name] = found
    return own


def _list_slots(cls: type) -> Iterable[str]:
    slots: str | Iterable[str] = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def _compile(plain: type, fields: Fields, options: Options) -> dict[str, Any]:
    """Return the methods that are written for this class, by name."""
    names: dict[str, Any] = {"__name__": plain.__module__, "_MISSING": MISSING}
    exec("\n".join(_compile_source(plain, fields, options, names)), names)
    methods: dict[str, Any] = {name: names[name] for name in ("__init__", "__eq__", "__hash__") if name in names}
    for name, method in methods.items():
        method.__qualname__ = f"{plain.__qualname__}.{name}"
    methods["__init__"].__annotations__ = {f.name: f.type for f in fields.values() if f.init} | {"return": None}
    return methods


def _compile_source(plain: type, fields: Fields, options: Options, names: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the compiled methods; defaults and factories go into ``names``."""
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
        mine, others = (", ".join(f"{of}.{f.name}" for f in fields.values() if f.compare) for of in ("self", "other"))
        hashed = ", ".join(f"self.{name}" for name in _hash_fields(fields))
        yield "def __eq__(self, other):"
        yield f" return ({mine},) == ({others},) if other.__class__ is self.__class__ else NotImplemented"
        yield "def __hash__(self):"
        yield f" return hash(({hashed},))"


def _hash_fields(fields: Fields) -> Iterator[str]:
    return (f.name for f in fields.values() if (f.compare if f.hash is None else f.hash))


def _list_methods(fields: Fields, options: Options) -> Iterator[tuple[str, Any]]:
    """Yield the methods that need no compiler, by name."""
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
    """Return what gives the fields of an object as a tuple."""
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
    """Return True for a field; a plain class that inherits from one of fields may have attributes beside them."""
    return name in self.__dataclass_fields__ or "__dataclass_fields__" in vars(type(self))


def _get_contents(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _fill(self: Any, contents: list[Any]) -> None:
    for f, content in zip(dataclasses.fields(self), contents, strict=True):
        object.__setattr__(self, f.name, content)


@dataclass
class _Template:
    """A dataclass, for the marks that the library puts on its own."""

    field: int


_FIELD = dataclasses.fields(_Template)[0]._field_type  # type: ignore[attr-defined]  # noqa: SLF001


@lru_cache
def _make_params(options: Options) -> object:
    """Return what ``dataclass`` asks of a class that it inherits from."""
    params = copy.copy(vars(_Template)["__dataclass_params__"])
    set_here = {"frozen": options.guarded, "eq": options.eq, "order": options.order, "repr": options.repr}
    for name, setting in (set_here | {"kw_only": options.kw_only, "slots": True}).items():
        if name in type(params).__slots__:
            setattr(params, name, setting)
    return params
