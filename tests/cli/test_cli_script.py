"""``--script``: a whole file as the program; and when a run keeps data."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernbench.runtime_api import bench_registry

Run = Callable[..., Any]
SMALL = ("--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1")
PROGRAM = """
import sys
import script_neighbour
from kernbench.runtime_api.context import current_context

torch = current_context()
x = torch.full(8, 2.0, dtype="f32")
print(__name__, sys.argv[1:], script_neighbour.NAME, x.numpy().sum())
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a script, and a module that lies beside it; returns its path."""
    monkeypatch.delitem(sys.modules, "script_neighbour", raising=False)
    (tmp_path / "script_neighbour.py").write_text("NAME = 'beside'\n")

    def write(text: str) -> str:
        (tmp_path / "program.py").write_text(text)
        return str(tmp_path / "program.py")

    return write


def test_a_script_runs_as_main_with_its_arguments_and_its_folder(kernbench: Run, script: Callable[[str], str]) -> None:
    before = list(sys.path), list(sys.argv)
    ran = kernbench("run", "--script", script(PROGRAM), *SMALL, "--", "--size", "3")
    assert ran.code == 0, ran.err
    assert "__main__ ['--size', '3'] beside 16.0" in ran.out
    assert (sys.path, sys.argv) == before


def test_a_script_gets_what_follows_two_dashes_as_it_is(kernbench: Run, script: Callable[[str], str]) -> None:
    ran = kernbench("run", *SMALL, "--script", script(PROGRAM), "--", "a", "--json", "--", "--help")
    assert "['a', '--json', '--', '--help']" in ran.out


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("sys.exit(0)", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 1, "left by sys.exit(3)"),
        ("1 / 0", 1, "program.py:9"),
    ],
)
def test_how_a_script_ends(kernbench: Run, script: Callable[[str], str], end: str, code: int, says: str) -> None:
    ran = kernbench("run", "--script", script(PROGRAM + end), *SMALL)
    assert ran.code == code
    assert says in ran.err


@pytest.mark.parametrize(
    ("options", "limit"), [((), 600.0), (("--max-wall-s", "7"), 7.0), (("--max-wall-s", "inf"), None)]
)
def test_how_long_a_script_may_take(
    kernbench: Run, script: Callable[[str], str], options: tuple[str, ...], limit: float | None
) -> None:
    ran = kernbench("run", *options, "--script", script(f"{PROGRAM}print(torch.engine.limits.wall_s)\n"), *SMALL)
    assert f"\n{limit}\n" in ran.out


def test_files_are_written_where_the_command_began(
    kernbench: Run, script: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    moves = f"{PROGRAM}import os\nos.chdir('elsewhere')\n"
    assert kernbench("run", "--script", script(moves), *SMALL, "--op-log", "log.jsonl").code == 0
    assert Path.cwd() == tmp_path
    assert (tmp_path / "log.jsonl").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_may_be_one_to_enter_only(
    kernbench: Run, script: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = script(PROGRAM), tmp_path / "entered"
    folder.mkdir(mode=0o300)
    if os.access(folder, os.R_OK):
        pytest.skip("who runs this may read all folders")
    (folder / "inside").mkdir()
    monkeypatch.chdir(folder)
    Path(path).write_text(f"{PROGRAM}import os\nos.chdir('inside')\n")
    assert kernbench("run", "--script", path, *SMALL, "--op-log", "log.jsonl").code == 0
    assert (folder / "log.jsonl").exists()
    monkeypatch.chdir(tmp_path)
    folder.chmod(0o700)


@pytest.mark.parametrize("program", ["", PROGRAM], ids=["before anything happened", "after a transfer"])
def test_a_script_that_fails_says_why_last(
    kernbench: Run, script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    path = script(f"{program}raise ValueError('of the script')\n")
    monkeypatch.setattr(sys, "stderr", sys.stdout)  # as a terminal shows both
    ran = kernbench("run", "--script", path, *SMALL, "--op-log", "log.jsonl")
    assert ran.code == 1
    lines = ran.out.splitlines()
    line = 1 + program.count("\n")
    assert lines[-2:] == ["error: ValueError: of the script", f"  at {path}:{line}"]
    assert any(line.startswith("wrote log.jsonl") for line in lines)
    tables = [line for line in lines if line.startswith("─")]
    assert bool(tables) == bool(program)


def test_a_script_may_spoil_what_python_knows(kernbench: Run, script: Callable[[str], str]) -> None:
    before = list(sys.path), dict(os.environ)
    ran = kernbench(
        "run", "--script", script(f"{PROGRAM}import os\nos.environ.clear()\nsys.path.clear()\n1 / 0"), *SMALL
    )
    os.environ.update(before[1])
    assert ran.code == 1
    assert "error: ZeroDivisionError" in ran.err
    assert sys.path == before[0]


@pytest.mark.parametrize("text", ["x = (\n", "x = '\xff'\n"])
def test_a_script_that_is_no_python_is_bad_input(
    kernbench: Run, script: Callable[[str], str], tmp_path: Path, text: str
) -> None:
    path = script("")
    Path(path).write_bytes(text.encode("latin-1"))
    ran = kernbench("run", "--script", path, *SMALL)
    assert ran.code == 2
    assert f"error: {path}:1: not Python: " in ran.err


def test_a_text_that_a_script_compiles_is_its_own_affair(kernbench: Run, script: Callable[[str], str]) -> None:
    ran = kernbench("run", "--script", script(f"{PROGRAM}eval('1 +')"), *SMALL)
    assert ran.code == 1
    assert "SyntaxError" in ran.err


def test_the_limit_waits_for_the_import_of_front_ends(
    kernbench: Run, script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was stopped in the middle of it leaves halves behind, of which its library complains."""
    imported, import_module = [], importlib.import_module

    def import_face(name: str) -> ModuleType:
        if name != "kernbench.json":
            return import_module(name)
        signal.raise_signal(signal.SIGALRM)
        imported.append(name)
        return json

    monkeypatch.setattr(bench_registry, "FRONTENDS", ("json",))
    monkeypatch.setattr(importlib, "import_module", import_face)
    ran = kernbench("run", "--script", script(PROGRAM), *SMALL)
    assert (ran.code, imported) == (1, ["kernbench.json"])
    assert "error: stopped by --max-wall-s" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--script", "nowhere.py"), "nowhere.py: no such file"),
        (("--script", "a.py", "--bench", "hello-send"), "--bench and --script: give one of them"),
        (("--bench", "hello-send", "stray"), "unexpected extra arguments (stray): name the program with --bench or"),
        (("--bench", "hello-send", "--", "stray"), "(stray): name the program with --bench or --script; only a script"),
        (("--script", "a.py", "stray"), "(stray): write arguments of the script after --"),
        (("--script", "a.py", "--size", "3"), "No such option '--size'"),
        (("--script", "a.py", "--size", "3"), "Write arguments of the script after --"),
        (("--script", "--", "a.py"), "Option '--script' requires an argument"),
        (("--bench", "hello-send", "--as-cuda"), "--as-cuda needs --script"),
        (("--bench", "hello-send", "--no-data", "--verify-data"), "--no-data and --verify-data, which needs data"),
        (("--bench", "hello-send", "--no-data", "--sanitize"), "--no-data and --sanitize, which needs data"),
        (("--bench", "hello-send", "--points", "0"), "0 is not in the range x>=1"),
        (("--bench", "hello-send", "--set", "triton.autotune=best"), "triton.autotune: found 'best'"),
        (("--bench", "hello-send", "--set", "triton.ordr=cyclic"), "unknown key 'ordr'; did you mean 'order'?"),
        (("--bench", "milestone-1h-gemm", "--data"), "--data: for one simulation"),
    ],
)
def test_bad_input(kernbench: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = kernbench("run", *arguments)
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize(
    ("options", "total"),
    [(("--script",), 16.0), (("--data", "--script"), 16.0), (("--no-data", "--zeros", "--script"), 0.0)],
)
def test_a_script_keeps_data_unless_told(
    kernbench: Run, script: Callable[[str], str], options: tuple[str, ...], total: float
) -> None:
    assert f"beside {total}" in kernbench("run", *options, script(PROGRAM), *SMALL).out


def test_data_costs_no_simulated_time(kernbench: Run) -> None:
    with_data, without = (
        json.loads(kernbench("run", "--bench", "hello-send", option, "--json").out)
        for option in ("--data", "--no-data")
    )
    assert with_data["sim_ns"] == without["sim_ns"]


@pytest.mark.skipif(find_spec("triton") is not None, reason="kernbench[triton] is installed")
@pytest.mark.parametrize("option", ["--script", "--bench"])
def test_a_program_that_needs_an_extra_says_how_to_install_it(
    kernbench: Run, script: Callable[[str], str], option: str
) -> None:
    ran = kernbench("run", option, script("import triton\n"), *SMALL)
    assert ran.code == 2
    assert "No module named 'triton'; install it: pip install 'kernbench[triton]'" in ran.err


@pytest.mark.skipif(find_spec("triton") is None, reason="kernbench[triton] is not installed")
def test_a_module_that_an_installed_package_lacks(kernbench: Run, script: Callable[[str], str]) -> None:
    ran = kernbench("run", "--script", script("import triton.ops\n"), *SMALL)
    assert ran.code == 2
    assert re.search(r"No module named 'triton.ops'; triton [0-9.]+, which is installed, has no such module", ran.err)


@pytest.mark.skipif(find_spec("torch") is not None, reason="kernbench[torch] is installed")
def test_the_device_cuda_needs_pytorch(kernbench: Run, script: Callable[[str], str]) -> None:
    ran = kernbench("run", "--as-cuda", "--script", script(PROGRAM), *SMALL)
    assert ran.code == 2
    assert "pip install 'kernbench[torch]'" in ran.err
