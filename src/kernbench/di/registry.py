"""The registry of component implementations: it maps names in ``topology.yaml`` to classes.

A decorator registers a class under a name, for the kinds that it implements::

    @register("builtin.noc_router", kind=("noc_router", "io_noc"))
    class NocRouter(Component): ...

    @register("mine.scratch", kind="scratch", new=True)  # a new kind, for cube.extra and pe.extra
    class Scratch(Component): ...

Packages publish their classes with an entry point in the group ``kernbench.components``: a module that registers the
classes when imported. Builtin parts are loaded the same way, so nothing here imports upward. Registration is optional:
a dotted path such as ``my_pkg.routers.SlowRouter`` is imported directly.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import TypeVar

from kernbench.common.errors import InputError, UnknownNameError, close_to
from kernbench.common.imports import import_attribute, package_exists
from kernbench.di.part import COMPONENT, KINDS, Part

P = TypeVar("P", bound=Part)
ENTRY_POINT_GROUP = "kernbench.components"


class Registry:
    """Component classes by name. ``group`` is the entry-point group to load before the first look-up, if any."""

    def __init__(self, group: str | None = None) -> None:
        self._classes: dict[str, type[Part]] = {}
        self._kinds: dict[type[Part], tuple[str, ...]] = {}
        self._pending_group = group

    def register(self, name: str, *, kind: str | tuple[str, ...], new: bool = False) -> Callable[[type[P]], type[P]]:
        """Decorate a class to register it as ``name``, for one kind of part or several.

        With ``new``, the kinds are new ones, for ``cube.extra`` and ``pe.extra``. Raises UnknownNameError for an
        unknown kind, and InputError for a new kind that is builtin.
        """
        kinds = (kind,) if isinstance(kind, str) else kind
        for kind_name in kinds:
            if not new and kind_name not in KINDS:
                hint = "to register a new kind for cube.extra and pe.extra, pass new=True"
                raise UnknownNameError("component kind", kind_name, KINDS, hint)
            if new and kind_name in KINDS:
                raise InputError(f"component {name!r}: {kind_name} is a builtin kind, not a new one")

        def enter(cls: type[P]) -> type[P]:
            self._enter(name, cls, kinds)
            return cls

        return enter

    def lookup(self, impl: str) -> type[Part]:
        """Return the class that ``impl`` names: a registered class, or a class at a dotted path to import.

        Raises UnknownNameError for an unregistered name, InputError for a path that leads to no component.
        """
        self._load_group()
        cls = self._classes.get(impl)
        if cls is not None:
            return cls
        if "." not in impl or self._is_slip(impl):
            hint = "or a dotted path to a class of yours, like my_pkg.routers.SlowRouter"
            raise UnknownNameError("component", impl, self.known_impls(), hint)
        try:
            return _import_part(impl)
        except InputError as error:
            family, hint = impl.partition(".")[0], close_to(impl, self._classes)
            if not hint or not family or package_exists(family):
                raise
            raise InputError(f"{error}; {hint.rstrip()}") from error

    def kinds_of(self, cls: type[Part]) -> tuple[str, ...]:
        """Return the kinds that ``cls`` or its nearest registered base was registered for. Empty if there are none."""
        return next((self._kinds[base] for base in cls.__mro__ if base in self._kinds), ())

    def known_impls(self) -> tuple[str, ...]:
        """Return every registered name, sorted."""
        self._load_group()
        return tuple(sorted(self._classes))

    def known_kinds(self) -> tuple[str, ...]:
        """Return every kind of part of a machine, and the kinds that extra parts were registered for."""
        self._load_group()
        registered = {kind for kinds in self._kinds.values() for kind in kinds}
        return (*KINDS, *sorted(registered.difference(KINDS)))

    def _enter(self, name: str, cls: type[Part], kinds: tuple[str, ...]) -> None:
        existing = self._classes.get(name)
        if existing is not None:
            raise InputError(f"two components are called {name!r}: {_show_path(existing)} and {_show_path(cls)}")
        self._classes[name] = cls
        self._kinds[cls] = (*self._kinds.get(cls, ()), *kinds)

    def _is_slip(self, impl: str) -> bool:
        """Return True for a misspelt registered name, such as ``builtin.xbra``: its prefix is not a package."""
        family = impl.partition(".")[0]
        return any(name.startswith(f"{family}.") for name in self._classes) and not package_exists(family)

    def _load_group(self) -> None:
        group, self._pending_group = self._pending_group, None
        if group is not None:
            for point in sorted(importlib.metadata.entry_points(group=group), key=lambda p: p.name):
                point.load()


def _show_path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _import_part(path: str) -> type[Part]:
    # Its Attrs are looked up when a machine is read, the class when it is built. Both must come from one module object.
    cls = import_attribute(path, f"component {path!r}", once=True)
    if not isinstance(cls, type):
        raise InputError(f"component {path!r} is not a class, but {cls!r}")
    if not issubclass(cls, Part):
        raise InputError(f"component {path!r} is not a component: derive it from {COMPONENT}")
    return cls


REGISTRY = Registry(ENTRY_POINT_GROUP)
register = REGISTRY.register
lookup = REGISTRY.lookup
known_impls = REGISTRY.known_impls
known_kinds = REGISTRY.known_kinds
