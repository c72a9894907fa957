"""Changes of DTensor when a program imports it: importing it here takes long, and would also import Triton."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

_DTENSOR, _CHANGES = "torch.distributed.tensor._api", "kernbench.frontends.torch.distributed.sharding"
"""The module of DTensor's class, and the module that changes it and the modules that it imports."""


class _ChangingLoader(SourceFileLoader):
    """A loader that imports the changes after the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module, then the changes."""
        super().exec_module(module)
        importlib.import_module(_CHANGES)


class _DTensorFinder(MetaPathFinder):
    """The finder of the module of DTensor's class."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of the module with a loader that changes it; None for any other module."""
        if fullname != _DTENSOR:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _ChangingLoader(fullname, spec.origin)
        return spec


def install() -> None:
    """Change DTensor now, or when the program imports it."""
    if _DTENSOR in sys.modules:
        importlib.import_module(_CHANGES)
    else:
        sys.meta_path.insert(0, _DTensorFinder())
