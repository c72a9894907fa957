"""Imports of Python code that a configuration names by a dotted path or by the path of a file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from kernbench.common.errors import InputError, UnknownNameError, UnreadableFileError, close_to
from kernbench.common.files import check_input

F = TypeVar("F", bound=Callable[..., Any])
_IN_FILE = re.compile(r"(?P<file>.*\.py):(?P<name>[^:]*)", re.DOTALL)


def find_function(kind: str, text: str, builtins: Mapping[str, F], subject: str, folder: Path | None = None) -> F:
    """Return the function that ``text`` names: one of ``builtins``, or a function of the user.

    A user's function is a dotted path or ``file.py:function``, looked up in ``folder`` first. ``kind`` is the noun for
    the function in errors, and ``subject`` is the beginning of their texts. Raises UnknownNameError for an unknown
    name, and InputError for a path that leads to no function.
    """
    if text in builtins:
        return builtins[text]
    if "." not in text:
        hint = f"or a dotted path to a function of yours, like my_pkg.mine.{text}"
        raise UnknownNameError(kind, text, tuple(builtins), hint)
    function = import_attribute(text, subject, folder)
    if not callable(function):
        raise InputError(f"{subject} is not a function, but {function!r}")
    return cast(F, function)


def import_attribute(path: str, subject: str, folder: Path | None = None, *, once: bool = False) -> object:
    """Return the object that ``my_pkg.routers.SlowRouter`` or ``routers.py:SlowRouter`` names in a module.

    A file runs at each call, or, with ``once``, only once in a process. Raises InputError, whose text begins with
    ``subject``.
    """
    in_file = _IN_FILE.fullmatch(path)
    if in_file is not None:
        module_name, name = in_file["file"], in_file["name"]
        module = import_file((folder or Path()) / module_name, subject, once=once)
    elif path.endswith(".py"):
        raise InputError(f"{subject}: a file has many names; say which one: {path}:NAME")
    else:
        module_name, _, name = path.rpartition(".")
        if not all(path.split(".")):
            raise InputError(f"{subject}: a dotted path has a name on each side of a dot, like my_pkg.mine.name")
        module = import_module(module_name, subject, folder)
    if name not in vars(module):
        hint = close_to(name, (attribute for attribute in vars(module) if not attribute.startswith("_")))
        raise InputError(
            f"{subject}: module {module_name!r} ({module.__file__ or 'a folder'}) has no {name!r}; {hint}".rstrip("; ")
        )
    return vars(module)[name]


def import_module(name: str, subject: str, folder: Path | None = None) -> ModuleType:
    """Import the module at a dotted path: from ``folder``, the installed packages, or the current directory.

    Raises InputError, whose text begins with ``subject``.
    """
    file = None if folder is None else _find_file(name, folder)
    if file is not None and not _is_imported_as(name, file):
        return import_file(file, subject)
    places = dict.fromkeys([os.getcwd()] if folder is None else [str(folder), os.getcwd()])
    try:
        with ExitStack() as importable:
            for place in places:
                importable.enter_context(_importable(place))
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            where = f"looked among the installed packages and in {' and in '.join(places)}"
            raise InputError(f"{subject}: there is no module {missing!r}; {where}") from error
        raise InputError(f"{subject}: importing {name!r} needs {missing!r}, which is missing") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{subject}: importing {name!r} failed: {type(error).__name__}: {error}") from error
    if folder is not None:
        _check_from_here(module, name, folder, subject)
    return module


def _find_file(name: str, folder: Path) -> Path | None:
    """Return the file in ``folder`` of a module outside of packages, or None if there is none.

    If such a module runs as a file, other modules of the same name cannot hide it. A module of a package must be
    imported by its name.
    """
    *packages, last = name.split(".")
    file = folder.joinpath(*packages, f"{last}.py")
    in_package = bool(packages) and (folder / packages[0] / "__init__.py").exists()
    return file if file.is_file() and not in_package else None


def _is_imported_as(name: str, file: Path) -> bool:
    """Return True if the user's own ``import name`` imports this file: that import and this one then share a module."""
    if "." in name:
        return False
    with _importable(os.getcwd()):
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # a module that a program created itself
            return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file.resolve()


def _check_from_here(module: ModuleType, name: str, folder: Path, subject: str) -> None:
    """Raise InputError if a package of the same name was imported before the one in ``folder``."""
    root = name.partition(".")[0]
    if (folder / root / "__init__.py").exists() and module.__file__ is not None:
        imported = Path(module.__file__).resolve()
        if (folder / root).resolve() not in imported.parents:
            raise InputError(
                f"{subject}: package {root!r} in {folder} is hidden by another of that name, imported from {imported}; "
                f"rename one of them"
            )


def import_file(path: Path, subject: str, *, once: bool = False) -> ModuleType:
    """Import the module in a ``.py`` file; the module may import files beside it.

    The file runs at each call, or, with ``once``, only once in a process. Raises InputError, whose text begins with
    ``subject``.
    """
    if not path.exists():
        raise InputError(f"{subject}: no such file (looked for {path.absolute()})")
    try:
        check_input(path)
    except UnreadableFileError as error:
        raise InputError(f"{subject}: {error}") from error
    resolved = path.resolve()
    name = name_module("file", resolved)
    if once and name in sys.modules:
        return sys.modules[name]
    module, run = make_module(name, resolved)
    try:
        with _importable(str(resolved.parent)):
            run(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{subject}: {_find_line(error, resolved)}: {type(error).__name__}: {error}") from error
    return module


def name_module(kind: str, file: Path) -> str:
    """Return a name for the module in a file, unique so that it hides no other module."""
    return f"kernbench_{kind}_{file.stem}_{sha256(bytes(file)).hexdigest()[:12]}"


def make_module(name: str, file: Path) -> tuple[ModuleType, Callable[[ModuleType], None]]:
    """Create the module of a ``.py`` file under ``name``; return it with the function that runs it."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    # Dataclasses and pydantic look up a class's module by name.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    return module, spec.loader.exec_module


def package_exists(name: str) -> bool:
    """Return True if a package or module of this name can be imported."""
    with _importable(os.getcwd()):
        return name in sys.modules or importlib.util.find_spec(name) is not None


def _find_line(error: BaseException, file: Path) -> str:
    """Return the line of ``file`` at which its import failed, as text."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"line {lines[-1]}" if lines else "importing it failed"


@contextmanager
def _importable(directory: str) -> Iterator[None]:
    """Allow imports from ``directory``, as under ``python -m``; in a console script they would fail.

    The directory comes last on ``sys.path``, so a user's ``yaml.py`` hides no module. It is removed at the end of the
    block, so a simulation does not change the imports of the next simulation in the process.
    """
    if directory in sys.path or (directory == os.getcwd() and "" in sys.path):
        yield
        return
    sys.path.append(directory)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(directory)
