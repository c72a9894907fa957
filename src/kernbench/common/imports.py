"""Python code that a configuration names: by dotted path, or by the path of a file."""

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


def find_function(kind: str, text: str, builtins: Mapping[str, F], what: str, folder: Path | None = None) -> F:
    """Return the function that ``text`` names: one of ``builtins``, else one of the user's.

    The latter is a dotted path, or ``file.py:function``; both are looked up in ``folder`` first. ``kind`` says what the
    function is for, ``what`` begins the errors. UnknownNameError for a name that is neither, InputError for a path that
    leads to no function.
    """
    if text in builtins:
        return builtins[text]
    if "." not in text:
        hint = f"or a dotted path to a function of yours, like my_pkg.mine.{text}"
        raise UnknownNameError(kind, text, tuple(builtins), hint)
    found = import_attribute(text, what, folder)
    if not callable(found):
        raise InputError(f"{what} is not a function, but {found!r}")
    return cast(F, found)


def import_attribute(path: str, what: str, folder: Path | None = None, *, once: bool = False) -> object:
    """Return the object that ``my_pkg.routers.SlowRouter`` or ``routers.py:SlowRouter`` names in a module.

    A file is run anew, or, as modules are, ``once`` in a process. InputError, begun by ``what``.
    """
    in_file = _IN_FILE.fullmatch(path)
    if in_file is not None:
        module_name, name = in_file["file"], in_file["name"]
        module = import_file((folder or Path()) / module_name, what, once=once)
    elif path.endswith(".py"):
        raise InputError(f"{what}: a file has many names; say which one: {path}:NAME")
    else:
        module_name, _, name = path.rpartition(".")
        if not all(path.split(".")):
            raise InputError(f"{what}: a dotted path has a name on each side of a dot, like my_pkg.mine.name")
        module = import_module(module_name, what, folder)
    if name not in vars(module):
        hint = close_to(name, (each for each in vars(module) if not each.startswith("_")))
        raise InputError(
            f"{what}: module {module_name!r} ({module.__file__ or 'a folder'}) has no {name!r}; {hint}".rstrip("; ")
        )
    return vars(module)[name]


def import_module(name: str, what: str, folder: Path | None = None) -> ModuleType:
    """Import the module at a dotted path: a file in ``folder``, an installed one, or a file beside where the user runs.

    InputError, begun by ``what``.
    """
    file = None if folder is None else _find_file(name, folder)
    if file is not None and not _is_imported_as(name, file):
        return import_file(file, what)
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
            raise InputError(f"{what}: there is no module {missing!r}; {where}") from error
        raise InputError(f"{what}: importing {name!r} needs {missing!r}, which is missing") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{what}: importing {name!r} failed: {type(error).__name__}: {error}") from error
    if folder is not None:
        _check_from_here(module, name, folder, what)
    return module


def _find_file(name: str, folder: Path) -> Path | None:
    """Return the file in ``folder`` of a module that is in no package; None when there is none.

    Run as a file, it is not mixed up with its namesakes. A module of a package has to be imported by its name.
    """
    *packages, last = name.split(".")
    file = folder.joinpath(*packages, f"{last}.py")
    in_package = bool(packages) and (folder / packages[0] / "__init__.py").exists()
    return file if file.is_file() and not in_package else None


def _is_imported_as(name: str, file: Path) -> bool:
    """Return True when the user's own ``import name`` leads to this very file: then both have one module."""
    if "." in name:
        return False
    with _importable(os.getcwd()):
        try:
            found = importlib.util.find_spec(name)
        except ValueError:  # a module that was made by hand
            return False
    return found is not None and found.origin is not None and Path(found.origin).resolve() == file.resolve()


def _check_from_here(module: ModuleType, name: str, folder: Path, what: str) -> None:
    """Raise InputError when the package in ``folder`` was meant, and another of its name had been imported before."""
    root = name.partition(".")[0]
    if (folder / root / "__init__.py").exists() and module.__file__ is not None:
        found = Path(module.__file__).resolve()
        if (folder / root).resolve() not in found.parents:
            raise InputError(
                f"{what}: package {root!r} in {folder} is hidden by another of that name, imported from {found}; "
                f"rename one of them"
            )


def import_file(path: Path, what: str, *, once: bool = False) -> ModuleType:
    """Import the module in a ``.py`` file; it may import its neighbours.

    It is run anew, unless ``once`` in a process is enough. InputError, begun by ``what``.
    """
    if not path.exists():
        raise InputError(f"{what}: no such file (looked for {path.absolute()})")
    try:
        check_input(path)
    except UnreadableFileError as error:
        raise InputError(f"{what}: {error}") from error
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
        raise InputError(f"{what}: {_find_line(error, resolved)}: {type(error).__name__}: {error}") from error
    return module


def name_module(kind: str, file: Path) -> str:
    """Return a name for the module in a file, under which it hides no other."""
    return f"kernbench_{kind}_{file.stem}_{sha256(bytes(file)).hexdigest()[:12]}"


def make_module(name: str, file: Path) -> tuple[ModuleType, Callable[[ModuleType], None]]:
    """Make the module of a ``.py`` file, known as ``name``, and return it with the function that runs it."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    # Dataclasses and pydantic look their module up by name.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    return module, spec.loader.exec_module


def package_exists(name: str) -> bool:
    """Return True when there is a package or a module to import by this name."""
    with _importable(os.getcwd()):
        return name in sys.modules or importlib.util.find_spec(name) is not None


def _find_line(error: BaseException, file: Path) -> str:
    """Return the line of ``file`` that an import of it failed at."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}"
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"line {own[-1]}" if own else "importing it failed"


@contextmanager
def _importable(directory: str) -> Iterator[None]:
    """Let modules in ``directory`` be imported, as ``python -m`` would and a console script does not.

    It comes last, so that a user's ``yaml.py`` hides nothing, and leaves again, so that one simulation does not change
    what the next one in the process imports.
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
