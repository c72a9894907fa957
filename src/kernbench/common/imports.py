"""Python code that a configuration names: by dotted path, or by the path of a file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from kernbench.common.complaints import close_to
from kernbench.common.errors import InputError, UnknownNameError

F = TypeVar("F", bound=Callable[..., Any])


def named_function(kind: str, text: str, builtins: Mapping[str, F], what: str) -> F:
    """The function that ``text`` means: one of ``builtins``, else a dotted path to one of the user's.

    ``kind`` says what it is for, ``what`` begins the errors. UnknownNameError for a name that is neither, InputError
    for a path that leads to no function.
    """
    if text in builtins:
        return builtins[text]
    if "." not in text:
        hint = f"{close_to(text, builtins)}or a dotted path to a function of yours, like my_pkg.mine.{text}"
        raise UnknownNameError(kind, text, tuple(builtins), hint)
    found = import_attribute(text, what)
    if not callable(found):
        raise InputError(f"{what} is not a function, but {found!r}")
    return cast(F, found)


def import_attribute(path: str, what: str) -> object:
    """What ``my_pkg.routers.SlowRouter`` means: a module's name for something. InputError, begun by ``what``."""
    module_name, _, name = path.rpartition(".")
    module = import_module(module_name, what)
    if name not in vars(module):
        raise InputError(f"{what}: module {module_name!r} ({module.__file__}) has no {name!r}")
    return vars(module)[name]


def import_module(name: str, what: str) -> ModuleType:
    """The module at a dotted path; a file beside where the user runs is found too. InputError, begun by ``what``."""
    try:
        with _importable(os.getcwd()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            where = f"looked among the installed packages and in {os.getcwd()}"
            raise InputError(f"{what}: there is no module {missing!r}; {where}") from error
        raise InputError(f"{what}: importing {name!r} needs {missing!r}, which is missing") from error
    except Exception as error:
        raise InputError(f"{what}: importing {name!r} failed: {type(error).__name__}: {error}") from error


def import_file(path: Path, what: str) -> ModuleType:
    """The module in a ``.py`` file, run anew; it may import its neighbours. InputError, begun by ``what``."""
    if not path.is_file():
        raise InputError(f"{what}: no such file (looked from {Path.cwd()})")
    resolved = path.resolve()
    # Dataclasses look their module up by name, and a name of its own keeps it from hiding another.
    name = f"kernbench_file_{resolved.stem}_{sha256(bytes(resolved)).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _importable(str(resolved.parent)):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{what}: {_where(error, resolved)}: {type(error).__name__}: {error}") from error
    return module


def package_exists(name: str) -> bool:
    """Whether there is a package or a module to import by this name."""
    with _importable(os.getcwd()):
        return name in sys.modules or importlib.util.find_spec(name) is not None


def _where(error: Exception, file: Path) -> str:
    """The line of ``file`` that an import of it failed at."""
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
