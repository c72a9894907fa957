"""The names that ``ccl.yaml`` can use: built-in ones, and what a dotted path leads to."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.ccl.mappers import MAPPERS
from kernbench.ccl.topologies import TOPOLOGIES, TopologyFunction
from kernbench.ccl.validators import VALIDATORS, Validator
from kernbench.common.complaints import close_to
from kernbench.common.errors import UnknownNameError
from kernbench.common.imports import import_file, import_module, named_function

ALGORITHMS_PACKAGE = "kernbench.ccl.algorithms"


@cache
def module_names() -> tuple[str, ...]:
    """The algorithms that ship with the package; nothing of them is imported."""
    spec = find_spec(ALGORITHMS_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    return tuple(sorted(m.name for m in pkgutil.iter_modules(folders or []) if not m.name.startswith("_")))


KNOWN_NAMES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "module": module_names,
    "topology": lambda: tuple(TOPOLOGIES),
    "mapper": lambda: tuple(MAPPERS),
    "validator": lambda: tuple(VALIDATORS),
}


def names_of(kind: str) -> tuple[str, ...]:
    """The built-in names of a kind: module, topology, mapper or validator."""
    return KNOWN_NAMES[kind]()


def topology_called(text: str, owner: str) -> TopologyFunction:
    """The topology function that ``text`` means in the configuration of ``owner``; raises as ``named_function``."""
    return named_function("topology", text, TOPOLOGIES, f"{owner}: topology {text!r}")


def validator_called(text: str, owner: str) -> Validator:
    """The validator that ``text`` means in the configuration of ``owner``; raises as ``named_function``."""
    return named_function("validator", text, VALIDATORS, f"{owner}: validator {text!r}")


def module_called(text: str, owner: str) -> ModuleType:
    """The module of an algorithm: a built-in name, a dotted path, or a ``.py`` file of the user's.

    UnknownNameError for a name that is none of these; InputError for a module that cannot be imported.
    """
    what = f"{owner}: module {text!r}"
    if text.endswith(".py"):
        return import_file(Path(text), what)
    if "." in text:
        return import_module(text, what)
    known = module_names()
    if text not in known:
        hint = f"{close_to(text, known)}or a dotted path to one of yours, or a .py file"
        raise UnknownNameError("algorithm module", text, known, hint)
    return import_module(f"{ALGORITHMS_PACKAGE}.{text}", what)


def first_line(what: Any) -> str:
    """What a module or a function says of itself in the first line of its docstring; empty when nothing."""
    return (what.__doc__ or "").strip().partition("\n")[0]
