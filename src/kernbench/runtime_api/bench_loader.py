"""From what a user writes after ``--bench`` to a bench: a name, or a file of the user's own."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from kernbench.common.complaints import close_to
from kernbench.common.errors import BenchError, KernbenchError
from kernbench.common.exits import exit_is_failure
from kernbench.runtime_api.bench_registry import REGISTRY, Bench, BenchRegistry

DEFAULT_FUNCTION = "run"
_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<function>.*))?")


def load_bench(text: str, registry: BenchRegistry = REGISTRY) -> Bench:
    """The bench that ``text`` means: a registered name, or ``path/to/file.py[:function]`` (``run`` without).

    The function may be decorated with ``@bench`` or plain; a plain one has no parameters. UnknownNameError for a name
    nobody registered; BenchError for a file that is missing, does not import (with the line) or lacks the function;
    ProgramExitError for one that is left by ``sys.exit`` while it is imported.
    """
    match = _FILE.fullmatch(text)
    if match is None:
        return registry.lookup(text)
    path = Path(match["path"])
    return _bench_in(_import_file(path, registry), path, match["function"] or DEFAULT_FUNCTION)


def _bench_in(module: ModuleType, path: Path, name: str) -> Bench:
    names = vars(module)
    if name not in names:
        own = sorted(each for each, value in names.items() if _is_program(value, module))
        there = f"there are: {', '.join(own)}" if own else "it defines no function"
        raise BenchError(f"{path} has no {name!r}; {close_to(name, own)}{there}")
    found = names[name]
    if isinstance(found, Bench):
        return found
    if not callable(found):
        raise BenchError(f"{path}: {name!r} is a {type(found).__name__}, not a function")
    _check_signature(found, path, name)
    description = (inspect.getdoc(found) or f"{name} of {path.name}").partition("\n")[0]
    return Bench(name=path.stem, description=description, function=found, file=str(path))


def _is_program(value: object, module: ModuleType) -> bool:
    own = inspect.isfunction(value) and value.__module__ == module.__name__
    return isinstance(value, Bench) or own


def _check_signature(function: object, path: Path, name: str) -> None:
    try:
        inspect.signature(function).bind(None)  # type: ignore[arg-type]
    except TypeError as error:
        raise BenchError(f"{path}: {name!r} cannot be called with one argument, torch: {error}") from error


def _import_file(path: Path, registry: BenchRegistry) -> ModuleType:
    if not path.is_file():
        raise BenchError(f"{path}: no such file (looked from {Path.cwd()})")
    resolved = path.resolve()
    # Dataclasses and pydantic look their module up by name, and a name of its own keeps it from hiding another.
    name = f"kernbench_bench_{resolved.stem}_{sha256(bytes(resolved)).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    registry.forget_file(str(resolved))
    sys.modules[name] = module
    try:
        with _importable(resolved.parent), exit_is_failure():
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _explained(error, path, resolved) from error
    return module


@contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Let the file import its neighbours; they come last, so that they hide nothing."""
    sys.path.append(str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))


def _explained(error: Exception, path: Path, resolved: Path) -> KernbenchError:
    if isinstance(error, KernbenchError):
        return error
    if isinstance(error, SyntaxError):
        return BenchError(f"{error.filename}:{error.lineno}: not Python: {error.msg}")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(resolved)]
    where = f"{path}:{own[-1].lineno}" if own else str(path)
    return BenchError(f"{where}: importing it failed: {type(error).__name__}: {error}")
