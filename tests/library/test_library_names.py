"""Tests of ``import kernbench``: it costs nothing, its names are those of users, and no module takes one away."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import kernbench as kb
from kernbench.common import errors

FRONT_ENDS = ("kernbench.torch", "kernbench.triton", "kernbench.frontends", "kernbench.evaluation.sweep_dask")


def test_importing_loads_nothing_of_others() -> None:
    script = (
        "import sys; before = {*sys.modules}; import kernbench;"
        " known = {*sys.stdlib_module_names, 'kernbench'};"
        " print(sorted(name for name in {*sys.modules} - before if name.partition('.')[0] not in known))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_name_is_there_and_is_no_module() -> None:
    names = [name for name in dir(kb) if not name.startswith("_")]
    modules = {each.name for each in pkgutil.iter_modules(kb.__path__)}
    public = [name for name in names if name not in modules and name not in ("annotations", "TYPE_CHECKING")]
    for each in pkgutil.walk_packages(kb.__path__, "kernbench."):
        if not each.name.startswith(FRONT_ENDS):
            import_module(each.name)
    assert {"load_machine", "list_benches", "Table", "KernbenchError"} <= {*public}
    assert not {*public} & modules
    assert all(callable(getattr(kb, name)) for name in public)


def test_errors_are_those_of_the_tree() -> None:
    assert kb.ConfigError is errors.ConfigError
    with pytest.raises(AttributeError, match="rnu"):
        kb.rnu  # type: ignore[attr-defined] # noqa: B018


@pytest.mark.slow
def test_a_typo_fails_mypy(tmp_path: Path) -> None:
    """The names are there for type checkers, which see no ``__getattr__``."""
    (tmp_path / "program.py").write_text('import kernbench as kb\n\nkb.run("hello-send")\nkb.rnu("hello-send")\n')
    command = [sys.executable, "-m", "mypy", "--strict", "program.py"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert checked.stdout.splitlines()[:-1] == ['program.py:4: error: Module has no attribute "rnu"  [attr-defined]']
