"""What the command line reads: regular files of at most 16 MB, wherever a file can be named."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
GRID = "bench: gemm-single-pe\ngrid: { bench.m: [32] }\n"
COMMANDS = (
    ("topology", "--topology", "FILE.yaml"),
    ("probe", "--topology", "FILE.yaml"),
    ("web", "--topology", "FILE.yaml"),
    ("list", "--ccl", "FILE.yaml"),
    ("run", "--bench", "gemm-single-pe", "--topology", "FILE.yaml"),
    ("run", "--bench", "gemm-single-pe", "--ccl", "FILE.yaml"),
    ("run", "--bench", "FILE.py"),
    ("run", "--script", "FILE.py"),
    ("run", "--bench", "milestone-1h-ccl", "--set", "bench.reference=FILE.csv"),
    ("check-part", "FILE.py:Part"),
    ("sweep", "FILE.yaml"),
    ("sweep", "grid.yaml", "--topology", "FILE.yaml"),
    ("sweep", "grid.yaml", "--ccl", "FILE.yaml"),
    ("compare", "FILE.json", "FILE.json"),
)


def refused(kernbench: Run, command: tuple[str, ...], name: str) -> str:
    """What is said when the file is called ``name``, without its suffix; it is bad input, in one line."""
    Path("grid.yaml").write_text(GRID)
    ran = kernbench(*(each.replace("FILE", name) for each in command))
    assert (ran.code, ran.out) == (2, "")
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert any(f"{name}.{suffix}" in line for suffix in ("yaml", "py", "csv", "json"))
    return str(line)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[str]:
    """A pipe with several names, into which something is written as soon as somebody reads."""
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    for suffix in ("py", "csv", "json"):
        (tmp_path / f"pipe.{suffix}").hardlink_to(path)
    writer = threading.Thread(target=path.write_text, args=("x: 1\n",), daemon=True)
    writer.start()
    yield "pipe"
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer.join()
    os.close(reader)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_pipe_is_refused(kernbench: Run, fifo: str, command: tuple[str, ...]) -> None:
    said = refused(kernbench, command, fifo)
    assert "Is a pipe; only regular files of at most 16 MB are read: write its output to a file" in said


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if each[0] in ("topology", "run", "compare")], ids=" ".join
)
def test_a_large_file_is_refused(kernbench: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    for suffix in ("yaml", "py", "csv", "json"):
        (tmp_path / f"large.{suffix}").touch()
        os.truncate(tmp_path / f"large.{suffix}", 16_000_001)
    said = refused(kernbench, command, "large")
    assert "it has 16,000,001 bytes; only regular files of at most 16 MB are read" in said


@pytest.mark.parametrize("command", [("topology", "--topology"), ("sweep",), ("run", "--script"), ("list", "--ccl")])
def test_a_device_is_refused(kernbench: Run, command: tuple[str, ...]) -> None:
    ran = kernbench(*command, "/dev/zero")
    assert (ran.code, ran.out) == (2, "")
    assert "/dev/zero: cannot be read: Is a device; only regular files of at most 16 MB are read" in ran.err


@pytest.mark.parametrize("key", ["topology", "ccl"])
def test_a_pipe_that_a_sweep_names(kernbench: Run, fifo: str, key: str) -> None:
    Path("grid.yaml").write_text(f"{GRID}{key}: {fifo}.yaml\n")
    ran = kernbench("sweep", "grid.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert "Is a pipe; only regular files" in ran.err


def test_tables_to_compare_may_be_large_but_must_be_files(kernbench: Run, fifo: str) -> None:
    for name in (f"{fifo}.csv", "/dev/zero"):
        ran = kernbench("compare", name, name)
        assert (ran.code, ran.out) == (2, "")
        assert "; only regular files are read" in ran.err


def test_a_page_must_be_a_file(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "page.html").symlink_to("/dev/zero")
    ran = kernbench("web", "page.html", "--port", "0")
    assert (ran.code, ran.out) == (2, "")
    assert "page.html: cannot be read: Is a device" in ran.err


def test_links_to_files_are_read(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "machine.yaml").write_bytes((Path(__file__).parents[2] / "topology.yaml").read_bytes())
    (tmp_path / "link.yaml").symlink_to("machine.yaml")
    assert kernbench("topology", "--topology", "link.yaml").code == 0
