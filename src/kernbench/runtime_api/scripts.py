"""``--script FILE``: a whole module as the program, as it was published."""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

from kernbench.common.errors import InputError
from kernbench.runtime_api.bench_registry import Bench, check_program
from kernbench.runtime_api.context import NoParams, RuntimeContext
from kernbench.runtime_api.frontends import FRONTENDS, extra_of

_BACKEND = "MPLBACKEND"


def load_script(file: str, arguments: Sequence[str] = ()) -> Bench:
    """A bench that runs ``file`` as ``python FILE ARGUMENTS`` would. BenchError when that is no file to read.

    The file's folder comes first on the path, what front ends there are have been imported, figures are drawn without a
    window, and ``sys.exit(0)`` is a good end. ``current_context()`` gives the machine.
    """
    path = Path(file)
    check_program(path)

    def run(context: RuntimeContext[NoParams]) -> None:
        faces = _import_frontends()
        with _as_main(path, arguments), ExitStack() as around:
            if context.frontends.torch.as_cuda:
                if "torch" not in faces:
                    raise InputError("--as-cuda is for programs of PyTorch: pip install 'kernbench[torch]'")
                around.enter_context(vars(faces["torch"])["as_cuda"]())
            _run_main(path)

    return Bench(name=path.stem, description=f"the script {path.name}", function=run, file=str(path))


def _run_main(path: Path) -> None:
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    except ImportError as error:
        hint = extra_of(error) or _package_of(error)
        if hint is None:
            raise
        raise InputError(f"{path}: {error}; {hint}").with_traceback(error.__traceback__) from error


def _package_of(error: ImportError) -> str | None:
    """How to install what the script imports itself; what is missing inside another package is not for us to say."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None or "." in error.name:
        return None
    return f"if that is a package, install it: pip install {error.name}"


def _import_frontends() -> dict[str, ModuleType]:
    """The faces of those whose packages are installed: a script imports the package itself, and finds it taken over."""
    faces = {}
    for name in FRONTENDS:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:  # a folder that happens to have that name is no package
            try:
                faces[name] = importlib.import_module(f"kernbench.{name}")
            except ImportError as error:
                raise InputError(str(error)) from error
    return faces


@contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """What a script finds around it; all of it as before at the end."""
    argv, folder, backend = sys.argv, str(path.resolve().parent), os.environ.get(_BACKEND)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, folder)
    os.environ[_BACKEND] = "agg"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is non-interactive, and thus cannot be shown")
            yield
    finally:
        sys.argv = argv
        sys.path.remove(folder)
        os.environ.pop(_BACKEND)
        if backend is not None:
            os.environ[_BACKEND] = backend
