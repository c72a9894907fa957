"""The names that ``ccl.yaml`` can use: built-in ones, and what leads to code of the user's."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.ccl.mappers import MAPPERS
from kernbench.ccl.topologies import GRID_KEYS, TOPOLOGIES, TopologyFunction
from kernbench.ccl.validators import VALIDATORS, Validator
from kernbench.common.complaints import close_to
from kernbench.common.errors import UnknownNameError
from kernbench.common.imports import import_file, import_module, named_function
from kernbench.topology.spec import current_topology_name

ALGORITHMS_PACKAGE = "kernbench.ccl.algorithms"
# Keys that an algorithm's kernel_args gets as they stand, if it knows them; so are all that begin with the prefix.
PASSED_KEYS = ("reduce_op", "chunk_size", "root_cube")
PASSED_PREFIX = "kernel_"
_KEYS_OF_TOPOLOGY = {"torus_2d": GRID_KEYS, "mesh_2d_no_wrap": GRID_KEYS}


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


def topology_called(text: str, owner: str, folder: Path | None = None) -> TopologyFunction:
    """The topology function that ``text`` means in the configuration of ``owner``; raises as ``named_function``."""
    name = current_topology_name(text)
    return named_function("topology", name, TOPOLOGIES, f"{owner}: topology {text!r}", folder)


def validator_called(text: str, owner: str, folder: Path | None = None) -> Validator:
    """The validator that ``text`` means in the configuration of ``owner``; raises as ``named_function``."""
    return named_function("validator", text, VALIDATORS, f"{owner}: validator {text!r}", folder)


def module_called(text: str, owner: str, folder: Path | None = None) -> ModuleType:
    """The module of an algorithm: a built-in name, a dotted path, or a ``.py`` file, the latter two from ``folder``.

    UnknownNameError for a name that is none of these; InputError for a module that cannot be imported.
    """
    what = f"{owner}: module {text!r}"
    if text.endswith(".py"):
        return import_file((folder or Path()) / text, what)
    known = module_names()
    if text in known:
        return import_module(f"{ALGORITHMS_PACKAGE}.{text}", what)
    if is_path(text, folder):
        return import_module(text, what, folder)
    hint = f"{close_to(text, known)}or a dotted path to one of yours, or a .py file"
    raise UnknownNameError("algorithm module", text, known, hint)


def is_path(text: str, folder: Path | None = None) -> bool:
    """Whether ``text`` leads to code of the user's: it has a dot, or is the name of a module in ``folder``."""
    return "." in text or (folder is not None and (folder / f"{text}.py").is_file())


def passes(key: object) -> bool:
    """Whether a key of ``ccl.yaml`` is for the algorithm to make sense of."""
    return isinstance(key, str) and (key in PASSED_KEYS or key.startswith(PASSED_PREFIX))


def foreign_key(algorithm: str, key: str, known: Sequence[str]) -> str:
    """What is said of a key that ``algorithm`` does not know."""
    return (
        f"algorithm {algorithm!r} does not know {key!r}; {close_to(key, known)}it knows: {', '.join(known) or 'none'}"
    )


def known_keys(module: ModuleType, topology: str) -> tuple[str, ...]:
    """The keys of ``ccl.yaml`` that have an effect on an algorithm.

    Those that its ``kernel_args`` has as parameters, its module names in ``config_keys`` or its topology takes.
    """
    functions = vars(module)
    parameters = inspect.signature(functions["kernel_args"]).parameters.values()
    own = (p.name for p in parameters if p.kind is not p.VAR_KEYWORD and passes(p.name))
    return tuple(dict.fromkeys([*own, *functions.get("config_keys", ()), *_KEYS_OF_TOPOLOGY.get(topology, ())]))


def first_line(what: Any) -> str:
    """What a module or a function says of itself in the first line of its docstring; empty when nothing."""
    return (what.__doc__ or "").strip().partition("\n")[0]
