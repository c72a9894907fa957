"""The registry of benches, and the loading of programs: a registered bench, a file or a script.

A decorator registers a bench:

    @bench("gemm-single-pe", "one GEMM on one PE", params=GemmParams)
    def run(torch): ...

Packages announce their benches with an entry point in the group ``kernbench.benches``: a module that registers them
when imported. The benches of this package are found the same way, so this file imports no higher layer.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from pydantic import ValidationError

from kernbench.common.config import ConfigModel, Document, apply_overrides, check, report
from kernbench.common.errors import (
    BenchError,
    InputError,
    KernbenchError,
    NoMachineError,
    UnknownNameError,
    UnreadableFileError,
    close_to,
    exit_is_failure,
)
from kernbench.common.files import check_input
from kernbench.common.imports import make_module, name_module
from kernbench.common.late import defer_stops
from kernbench.common.values import value
from kernbench.runtime_api.context import NoParams, RuntimeContext
from kernbench.runtime_api.frontends import FRONTENDS, extra_of
from kernbench.runtime_api.run_request import RankCount

__all__ = ["REGISTRY", "Bench", "BenchRegistry", "NoParams", "bench", "known_benches", "load_bench", "lookup_bench"]

ENTRY_POINT_GROUP = "kernbench.benches"
PARAMS_PATH = ("bench",)
_DATA = "data"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_FIGURE_BACKEND = "MPLBACKEND"
# A bench takes the RuntimeContext, whose ``params`` have the type that the bench declares.
BenchFunction: TypeAlias = Callable[[Any], object]


@value(kw_only=True)
class Bench:
    """A named host program, callable as its function.

    ``evaluation``: the bench builds its own engines and may submit nothing to the engine of its run. ``data``: a run
    records the data that phase 2 needs; a module turns this off with ``data = False`` for the functions in its file.
    """

    name: str
    description: str
    function: BenchFunction
    params: type[ConfigModel] = NoParams
    evaluation: bool = False
    data: bool = True
    file: str = ""

    def __call__(self, torch: Any) -> object:
        """Run the bench on a RuntimeContext."""
        return self.function(torch)

    def make_params(self, overrides: Iterable[str] = ()) -> ConfigModel:
        """Return the bench's parameters: its defaults, changed by overrides such as ``bench.m=512``.

        Raises ConfigError, which lists all errors in them.
        """
        document = apply_overrides(Document(f"bench {self.name}", {PARAMS_PATH[0]: {}}, {}), overrides)
        checked = check(document, self.params, at=PARAMS_PATH)
        report(document, checked.complaints)
        assert checked.value is not None, "parameters without complaints have a value"
        return checked.value


class BenchRegistry:
    """Benches by name; ``-`` and ``_`` in names are equal. ``group``: the entry points to load at the first look-up."""

    def __init__(self, group: str | None = None) -> None:
        self._benches: dict[str, Bench] = {}
        self._pending_group = group
        self._packages: list[str] = []

    def add_package(self, package: str) -> None:
        """Add the benches of a package. The module of a bench has its name, and is imported at the first look-up."""
        self._packages.append(package)

    def bench(
        self,
        name: str,
        description: str,
        *,
        params: type[ConfigModel] = NoParams,
        evaluation: bool = False,
        data: bool = True,
    ) -> Callable[[BenchFunction], Bench]:
        """Return a decorator that registers a function ``run(torch)``; every parameter needs a default.

        ``data=False``: the bench reads no values, so a run stores none unless the user requests it. Raises BenchError,
        with the name of the file, if the name is registered already or is not kebab-case. Raises it too if the
        description is not one line, or a parameter has no valid default.
        """

        def enter(function: BenchFunction) -> Bench:
            bench = Bench(
                name=name,
                description=description,
                function=function,
                params=params,
                evaluation=evaluation,
                data=data,
                file=file_of(function),
            )
            self._enter(bench)
            return bench

        return enter

    def lookup(self, name: str) -> Bench:
        """Return the bench called ``name``. Raises UnknownNameError, which lists all benches, if there is none."""
        self._load_group()
        bench_name = name.replace("_", "-")
        self._load_module(bench_name)
        bench = self._benches.get(bench_name)
        if bench is None:
            self._load_packages()
            hint = "name your own file as path/to/file.py[:function]"
            raise UnknownNameError("bench", name, tuple(sorted(self._benches)), hint)
        return bench

    def list_benches(self) -> tuple[Bench, ...]:
        """Return all benches, sorted by name."""
        self._load_group()
        self._load_packages()
        return tuple(self._benches[name] for name in sorted(self._benches))

    def forget_file(self, file: str) -> None:
        """Remove the benches that a file registered, so that it can be loaded again."""
        self._benches = {name: bench for name, bench in self._benches.items() if bench.file != file}

    def _enter(self, bench: Bench) -> None:
        _check_bench(bench)
        self._load_module(bench.name)
        existing = self._benches.get(bench.name)
        if existing is not None:
            raise BenchError(f"{bench.file}: a bench {bench.name!r} exists already, in {existing.file}")
        self._benches[bench.name] = bench

    def _load_module(self, name: str) -> None:
        """Import the module of a packaged bench; do nothing for another name."""
        module = name.replace("-", "_")
        if module.isidentifier() and not module.startswith("_"):
            for package in self._packages:
                if importlib.util.find_spec(f"{package}.{module}") is not None:
                    importlib.import_module(f"{package}.{module}")

    def _load_packages(self) -> None:
        for package in self._packages:
            for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
                importlib.import_module(module.name)

    def _load_group(self) -> None:
        group, self._pending_group = self._pending_group, None
        if group is not None:
            for point in sorted(importlib.metadata.entry_points(group=group), key=lambda point: point.name):
                _load_point(point)


def file_of(function: BenchFunction) -> str:
    """Return the file that defines a function; for a callable object, the module of its class."""
    return function.__code__.co_filename if isinstance(function, FunctionType) else type(function).__module__


def _load_point(point: importlib.metadata.EntryPoint) -> None:
    try:
        with exit_is_failure():
            point.load()
    except BenchError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise BenchError(f"entry point {point.name} = {point.value!r} of {point.group} failed: {reason}") from error


def _check_bench(bench: Bench) -> None:
    if not _NAME.fullmatch(bench.name):
        raise BenchError(
            f"{bench.file}: {bench.name!r} is no name for a bench; write kebab-case, like 'gemm-single-pe'"
        )
    if not bench.description.strip() or "\n" in bench.description:
        raise BenchError(f"{bench.file}: bench {bench.name!r} needs a description of one line")
    try:
        bench.params()
    except ValidationError as error:
        names = ", ".join(".".join(map(str, item["loc"])) for item in error.errors())
        raise BenchError(f"{bench.file}: bench {bench.name!r}: parameters without a valid default: {names}") from error


REGISTRY = BenchRegistry(ENTRY_POINT_GROUP)
bench = REGISTRY.bench
lookup_bench = REGISTRY.lookup
known_benches = REGISTRY.list_benches

DEFAULT_FUNCTION = "run"
_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<function>.*))?")
_MODULE = re.compile(r"(?P<module>\w+(?:\.\w+)*):(?P<function>\w+)")


def load_bench(text: str, registry: BenchRegistry = REGISTRY) -> Bench:
    """Return the bench that ``text`` names: a registered one, ``path/to/file.py[:function]``, or ``module:function``.

    The default function of a file is ``run``. The function need not be decorated with ``@bench``; without the
    decorator, it has no parameters.

    Raises UnknownNameError for a name that is not registered. Raises BenchError if the file is missing, fails to import
    (with the line) or lacks the function. Raises ProgramExitError if the file calls ``sys.exit`` while it is imported.
    The import of a file that uses the machine at import time is deferred to the run, which has a machine.
    """
    match = _FILE.fullmatch(text)
    named = _MODULE.fullmatch(text)
    if match is None and named is None:
        return registry.lookup(text)
    if match is None:
        assert named is not None, "a text that is no file and no registered name is a module"
        module = _import_module(named["module"])
        return _find_bench(module, Path(module.__file__ or named["module"]), named["function"])
    path, name = Path(match["path"]), match["function"] or DEFAULT_FUNCTION
    try:
        return _find_bench(_import_file(path, registry), path, name)
    except NoMachineError:
        return _load_in_run(path, name, registry)


def _import_module(name: str) -> ModuleType:
    try:
        with exit_is_failure():
            return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, KernbenchError):
            raise
        raise BenchError(f"importing {name} failed: {type(error).__name__}: {error}") from error


def _load_in_run(path: Path, name: str, registry: BenchRegistry) -> Bench:
    """Return a bench that imports its file when it runs."""

    def run(context: RuntimeContext[NoParams]) -> object:
        bench = _find_bench(_import_file(path, registry), path, name)
        if bench.params is not NoParams:
            raise BenchError(
                f"{path}: {name!r} has parameters, which are read before a machine exists; use the machine inside "
                f"the function, not while the file is imported"
            )
        return bench(context)

    return Bench(name=path.stem, description=f"{name} of {path.name}", function=run, file=str(path))


def _find_bench(module: ModuleType, path: Path, name: str) -> Bench:
    names = vars(module)
    if name not in names:
        programs = sorted(other for other, value in names.items() if _is_program(value, module))
        choices = f"there are: {', '.join(programs)}" if programs else "it defines no function"
        raise BenchError(f"{path} has no {name!r}; {close_to(name, programs)}{choices}")
    program = names[name]
    keeps = names.get(_DATA) is not False  # an array of that name is no setting
    if isinstance(program, Bench):
        return replace(program, data=program.data and keeps)
    if not callable(program):
        raise BenchError(f"{path}: {name!r} is of type {type(program).__name__}, not a function")
    if inspect.isgeneratorfunction(program) or inspect.iscoroutinefunction(program):
        raise BenchError(
            f"{path}: {name!r} does nothing when it is called, since it has yield or is async; write a plain function"
        )
    _check_signature(program, path, name)
    description = (inspect.getdoc(program) or f"{name} of {path.name}").partition("\n")[0]
    return Bench(
        name=path.stem,
        description=description,
        function=program,
        data=keeps,
        file=str(path),
    )


def _is_program(value: object, module: ModuleType) -> bool:
    defined_here = inspect.isfunction(value) and value.__module__ == module.__name__
    return isinstance(value, Bench) or defined_here


def _check_signature(function: object, path: Path, name: str) -> None:
    try:
        inspect.signature(function).bind(None)  # type: ignore[arg-type]
    except TypeError as error:
        raise BenchError(f"{path}: {name!r} cannot be called with one argument, torch: {error}") from error


def _import_file(path: Path, registry: BenchRegistry) -> ModuleType:
    check_program(path)
    resolved = path.resolve()
    name = name_module("bench", resolved)
    module, run = make_module(name, resolved)
    registry.forget_file(str(resolved))
    try:
        with _importable(resolved.parent), exit_is_failure():
            run(module)
    except Exception as error:
        del sys.modules[name]
        raise _explain(error, path, resolved) from error
    return module


def check_program(path: str | Path) -> None:
    """Raise BenchError unless ``path`` is a readable program file."""
    try:
        check_input(path)
    except UnreadableFileError as error:
        raise BenchError(str(error)) from error


@contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Let a file import other files of its folder, which comes last on ``sys.path`` so that it hides no module."""
    sys.path.append(str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))


def _explain(error: Exception, path: Path, resolved: Path) -> KernbenchError:
    if isinstance(error, KernbenchError):
        return error
    if isinstance(error, SyntaxError):
        return BenchError(f"{error.filename}:{error.lineno}: not Python: {error.msg}")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(resolved)]
    where = f"{path}:{frames[-1].lineno}" if frames else str(path)
    hint = extra_of(error)
    return BenchError(f"{where}: importing it failed: {type(error).__name__}: {error}{'; ' * bool(hint)}{hint or ''}")


def load_script(file: str, arguments: Sequence[str] = (), ranks: RankCount | None = None) -> Bench:
    """Return a bench that runs ``file`` as ``python FILE ARGUMENTS`` does; with ``ranks``, as torchrun does.

    The file's folder comes first on ``sys.path``, the installed front ends are imported, figures are drawn without a
    window, and ``sys.exit(0)`` counts as success. In the script, ``current_context()`` returns the context of the run.
    Raises BenchError if the file cannot be read as a program.
    """
    check_program(file)
    path = Path(file)

    def run(context: RuntimeContext[NoParams]) -> None:
        faces, context.script = _import_frontends(), path.resolve()
        with _as_main(path, arguments), ExitStack() as around:
            if context.frontends.torch.as_cuda:
                around.enter_context(_find_in_torch(faces, "as_cuda", "--as-cuda")())
            if ranks is None:
                _run_main(path)
            else:
                n_ranks = context.topology.num_sips if ranks == "all" else ranks
                process = _find_in_torch(faces, "rank_process", "--ranks")(path.resolve().parent, n_ranks=n_ranks)
                context.multiprocessing.spawn(lambda _: _run_main(path), nprocs=n_ranks, process=process)

    return Bench(name=path.stem, description=f"the script {path.name}", function=run, file=str(path))


def _find_in_torch(faces: Mapping[str, ModuleType], name: str, option: str) -> Callable[..., Any]:
    """Return a function of the front end of PyTorch, which ``option`` needs. Raises InputError without PyTorch."""
    if "torch" not in faces:
        raise InputError(f"{option} is for programs of PyTorch: pip install 'kernbench[torch]'")
    function: Callable[..., Any] = vars(faces["torch"])[name]
    return function


def _run_main(path: Path) -> None:
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    except SyntaxError as error:
        if error.filename is None or Path(error.filename).name != path.name:  # in source that the script compiles
            raise
        raise _explain(error, path, path.resolve()) from error
    except ImportError as error:
        hint = extra_of(error) or _package_of(error)
        if hint is None:
            raise
        raise InputError(f"{path}: {error}; {hint}").with_traceback(error.__traceback__) from error


def _package_of(error: ImportError) -> str | None:
    """Return how to install the missing package; None unless the error names a missing top-level module."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None or "." in error.name:
        return None
    return f"if {error.name} is a package, install it: pip install {error.name}"


def _import_frontends() -> dict[str, ModuleType]:
    """Import the front ends whose packages are installed, and return their modules by name.

    A script that imports such a package then gets the front end in its place.
    """
    faces = {}
    for name in FRONTENDS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:  # a folder of that name is no package
            try:
                with defer_stops():
                    faces[name] = importlib.import_module(f"kernbench.{name}")
            except ImportError as error:
                raise InputError(str(error)) from error
    return faces


@contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Give a script the argv, path and environment of a main program, and restore them at the end."""
    argv, folders, backend = sys.argv, list(sys.path), os.environ.get(_FIGURE_BACKEND)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    os.environ[_FIGURE_BACKEND] = "agg"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is non-interactive, and thus cannot be shown")
            yield
    finally:
        sys.argv, sys.path[:] = argv, folders  # undo changes by the script too
        os.environ.pop(_FIGURE_BACKEND, None)
        if backend is not None:
            os.environ[_FIGURE_BACKEND] = backend
