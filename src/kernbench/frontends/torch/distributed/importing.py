"""Changes of PyTorch's modules that a program may import later: importing them here would take seconds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

ImportChange = Callable[[ModuleType], None]
"""A function that changes an imported module"""


class _ChangingLoader(SourceFileLoader):
    """A loader that changes the module after its import."""

    def __init__(self, fullname: str, path: str, change: ImportChange) -> None:
        super().__init__(fullname, path)
        self._change = change

    def exec_module(self, module: ModuleType) -> None:
        """Import the module, and change it."""
        super().exec_module(module)
        self._change(module)


class _ChangingFinder(MetaPathFinder):
    """The finder of one module."""

    def __init__(self, name: str, change: ImportChange) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of the module with a loader that changes it; None for any other module."""
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _ChangingLoader(fullname, spec.origin, self._change)
        return spec


class _PrecedingFinder(MetaPathFinder):
    """A finder that finds nothing, and imports ``first`` before the module ``name``."""

    def __init__(self, name: str, first: str) -> None:
        self._name, self._first = name, first

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Import the other module if this is the module."""
        if fullname == self._name:
            importlib.import_module(self._first)


def change_module(name: str, change: ImportChange) -> None:
    """Change a module now, or when the program imports it."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _ChangingFinder(name, change))


def import_behind(name: str, changes: str) -> None:
    """Import the module ``changes`` now if ``name`` is imported, or when the program imports ``name``."""

    def change(_: ModuleType) -> None:
        importlib.import_module(changes)

    change_module(name, change)


def import_before(name: str, first: str) -> None:
    """Import the module ``first`` just before the program imports ``name``; never if ``name`` is imported already."""
    if name not in sys.modules:
        sys.meta_path.insert(0, _PrecedingFinder(name, first))
