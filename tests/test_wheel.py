"""Tests that kernbench works as it is installed: from its wheel, in an environment of its own, in an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import kernbench
from kernbench.common import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SWEEP = """\
bench: gemm-single-pe
set: {bench.m: 64, bench.k: 64, bench.n: 64}
grid: {cube.hbm.num_pcs: [4, 8]}
"""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the source archive, and with the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], folder)
    return folder


@pytest.fixture(scope="module")
def commands(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of a new environment, which has the wheel and the dependencies that it declares."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    commands = folder / ("Scripts" if os.name == "nt" else "bin")
    run([str(commands / "python"), "-m", "pip", "install", "--quiet", str(next(dist.glob("*.whl")))], folder)
    return commands


@pytest.fixture
def kernbench_in(commands: Path, tmp_path: Path) -> Callable[..., str]:
    """A function that runs the installed command in an empty folder and returns what it prints."""
    return lambda *arguments: run([str(commands / "kernbench"), *arguments], tmp_path)


def run(command: Sequence[str], folder: Path) -> str:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_archives_have_what_their_readers_need(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob(f"kernbench-{__version__}-*.whl"))) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("kernbench/")}
    package = Path(kernbench.__file__).parent
    here = {f"kernbench/{path.relative_to(package).as_posix()}" for path in package.rglob("*") if path.is_file()}
    assert packed == {name for name in here if "__pycache__" not in name}
    with tarfile.open(dist / f"kernbench-{__version__}.tar.gz") as source:
        tops = {Path(name).parts[1] for name in source.getnames()}
    assert {"src", "tests", "docs", "examples", "Makefile", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"} <= tops


def test_main_job(kernbench_in: Run) -> None:
    assert kernbench_in("--version").split()[-1] == __version__
    document = json.loads(kernbench_in("run", "--bench", "gemm-single-pe", "--verify-data", "--json"))
    assert document["status"].lower() == "ok"
    assert kernbench_in("run", "--bench", "gemm-single-pe", "--verify-data", "--topology", "one-cube").count("PASS") > 0


def test_sweep_with_workers(kernbench_in: Run, tmp_path: Path) -> None:
    (tmp_path / "sizes.yaml").write_text(SWEEP)
    document = json.loads(kernbench_in("sweep", "sizes.yaml", "--jobs", "2", "--json"))
    assert document["points"] == 2


def test_page_and_drawing(kernbench_in: Run, tmp_path: Path) -> None:
    kernbench_in("web", "--bench", "gemm-single-pe", "--out", "page.html")
    kernbench_in("topology", "--format", "svg", "--out", "machine.svg")
    assert {"page.html", "machine.svg"} <= {path.name for path in tmp_path.iterdir()}
