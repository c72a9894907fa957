"""Stdout that is full, closed, or read by nobody, and what programs do to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kernbench.cli.main import main

ENTRY = f"{sys.executable} -c 'from kernbench.cli.main import entry; entry()'"
TINY = "--set sip.cube_mesh.w=1 --set sip.cube_mesh.h=1 --set system.sips.count=1"
PRINTS = """\
import atexit, os, subprocess, sys, warnings
print("at the top")

def kernel(x, *, tl):
    os.write(1, b"by number\\n")

def run(torch):
    atexit.register(print, "at the end")
    torch.launch("k", kernel, torch.zeros(4))
    subprocess.run(["echo", "by a child"])
    warnings.warn("careful")
    sys.__stdout__.write("by the process\\n")
    sys.stdout.close()

def replaces(torch):
    sys.stdout = open(__file__ + ".log", "w")
    print("kept")
    torch.zeros(4)
    sys.stdout.close()

def closes(torch):
    torch.zeros(4)
    sys.__stdout__.close()

def much(torch):
    def program(rank):
        torch.zeros(4)
        for _ in range(100_000):
            print("much")
    torch.multiprocessing.spawn(program, nprocs=1)
"""


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash."""
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.fixture
def prints(tmp_path: Path) -> Path:
    path = tmp_path / "prints.py"
    path.write_text(PRINTS)
    return path


def test_nobody_reads_what_a_rank_of_a_process_prints(prints: Path) -> None:
    done = shell(f"{ENTRY} run --bench {prints}:much {TINY} | true; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 141
    assert done.stderr in ("", "simulating prints\n")


def test_a_document_is_all_there_is_on_stdout_of_a_process(prints: Path) -> None:
    done = shell(f"{ENTRY} run --bench {prints} --json {TINY}")
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "OK"
    assert sorted(done.stderr.splitlines()) == sorted(
        [
            *("at the top", "simulating prints", "by number", "by a child", "by the process", "at the end"),
            *("warning: careful", f"  at {prints}:11"),
        ]
    )


@pytest.mark.parametrize("options", [(), ("--json",)], ids=str)
def test_what_a_program_makes_of_stdout_is_its_own(
    prints: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    assert main(["run", "--bench", f"{prints}:replaces", *options, *TINY.split()]) == 0
    assert "OK" in capsys.readouterr().out
    assert prints.with_name("prints.py.log").read_text() == "kept\n"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("--help >/dev/full", "No space left on device"),
        ("list --json >&-", "it is closed"),
    ],
)
def test_stdout_of_a_process_that_cannot_be_written(command: str, why: str) -> None:
    done = shell(f"{ENTRY} {command}")
    assert done.returncode == 1
    assert done.stderr.strip() == f"error: stdout: {why}; not everything was printed"


COMMANDS = (
    "--help",
    "list",
    "list --json",
    "topology {tiny}",
    "topology --format dot {tiny}",
    "topology --json {tiny}",
    "probe --case pe-sram {tiny}",
    "probe --case pe-sram --json {tiny}",
    "run --bench gemm-single-pe --set bench.m=8 {tiny}",
    "run --bench gemm-single-pe --set bench.m=8 --json {tiny}",
    "run --bench gemm-single-pe --set bench.m=8 --max-sim-ns 1 --json {tiny}",
    "run --bench {prints}:much {tiny}",
    "web --out {prints}.html {tiny}",
)


@pytest.fixture
def run_into(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prints: Path, request: pytest.FixtureRequest
) -> Callable[[int], tuple[int, str]]:
    """Run a command with a descriptor as its stdout: exit code and stderr."""

    def run(descriptor: int) -> tuple[int, str]:
        stream = os.fdopen(descriptor, "w", encoding="utf-8")
        monkeypatch.setattr(sys, "stdout", stream)
        code = main(request.param.format(prints=prints, tiny=TINY).split())
        assert sys.stdout is stream
        with suppress(OSError):
            stream.close()
        return code, capsys.readouterr().err

    return run


def test_a_program_that_closes_the_stdout_of_its_process(
    prints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = (prints.parent / "out").open("w", encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "__stdout__", stream)
    assert main(["run", "--bench", f"{prints}:closes", *TINY.split()]) == 1
    assert capsys.readouterr().err.endswith("error: stdout: it is closed; not everything was printed\n")


@pytest.mark.parametrize("run_into", COMMANDS, indirect=True)
def test_a_full_disk_is_told_by_every_command(run_into: Callable[[int], tuple[int, str]]) -> None:
    code, err = run_into(os.open("/dev/full", os.O_WRONLY))
    assert code == 1
    assert "error: stdout: No space left on device; not everything was printed" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("run_into", COMMANDS, indirect=True)
def test_a_reader_that_has_gone_is_not_worth_a_word(run_into: Callable[[int], tuple[int, str]]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code, err = run_into(writer)
    assert code == 141
    assert "error" not in err


def test_no_stdout_and_no_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["list"]) == 1
    assert "error: stdout: it is closed" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["list"]) == 0
    assert main(["run", "--bench", "nope"]) == 2


_LEAVING = """
import atexit, io, pathlib, sys, threading, time, weakref
folder = pathlib.Path(sys.argv[1])
log = open(folder / "open_file.txt", "w")
log.write("not closed")
class Log(io.TextIOWrapper): ...
own = Log(open(folder / "own_file.txt", "wb"))
own.write("of a class of its own")
atexit.register(print, "registered with atexit")
threading.Thread(target=lambda: (time.sleep(0.2), (folder / "thread.txt").write_text("ended"))).start()
class Box: ...
box = Box()
weakref.finalize(box, print, "finalized")
"""
_HOSTED = "import sys\nfrom kernbench.cli.main import entry\ndef host():\n    {call}\nhost()"


def test_a_process_that_ends_loses_no_output_of_its_program(tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(_LEAVING)
    command = "import sys; from kernbench.cli.main import entry; sys.exit(entry())"
    ended = subprocess.run(
        [sys.executable, "-c", command, "run", "--script", str(script), "--", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, "a script without requests fails"
    assert "registered with atexit" in ended.stdout
    assert "finalized" in ended.stdout
    assert (tmp_path / "open_file.txt").read_text() == "not closed"
    assert (tmp_path / "own_file.txt").read_text() == "of a class of its own"
    assert (tmp_path / "thread.txt").read_text() == "ended"


def test_a_program_around_the_command_goes_on_after_it() -> None:
    host = "try:\n        entry()\n    finally:\n        print('host goes on')\n        sys.exit(7)"
    ended = subprocess.run(
        [sys.executable, "-c", _HOSTED.format(call=host), "list"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 7
    assert "host goes on" in ended.stdout
