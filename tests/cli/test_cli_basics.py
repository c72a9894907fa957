"""Exit codes, messages, and what the command line costs before it does anything."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.library import lists

Run = Callable[..., Any]
HEAVY = (
    *("numpy", "matplotlib", "pydantic", "pyarrow", "simpy", "yaml", "rich.progress"),
    *("kernbench.topology", "kernbench.sim_engine"),
)
SELDOM = (
    *("pyarrow", "matplotlib", "kernbench.evaluation.outputs"),
    *("kernbench.observe.trace", "kernbench.observe.sanitizer", "kernbench.library.loading"),
)


@pytest.mark.parametrize("arguments", [(), ("run",), ("list",), ("probe",), ("topology",)])
def test_every_command_has_help(kernbench: Run, arguments: tuple[str, ...]) -> None:
    ran = kernbench(*arguments, "--help")
    assert ran.code == 0
    assert "Usage: kernbench" in ran.out
    assert not ran.err


def test_help_imports_little_and_nothing_heavy() -> None:
    """So it is quick: its time is that of its imports, some 250 modules of click, rich and Python itself."""
    script = (
        "import sys; from kernbench.cli.main import main; code = main(['--help']);"
        f" print([m for m in {HEAVY!r} if m in sys.modules], len(sys.modules) < 400, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "[] True\n"


def test_a_run_imports_what_its_options_ask_for(tmp_path: Path) -> None:
    """Files of Parquet and pictures, evaluations and the sanitizer take long to import: most runs have none."""
    script = (
        "import sys; from kernbench.cli.main import main;"
        f" seldom = lambda: [m for m in {SELDOM!r} if m in sys.modules];"
        " run = ['run', '--bench', 'hello-send']; code = main(run); plain = seldom();"
        " code |= main([*run, '--op-log', 'log.parquet']); print(plain, seldom(), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "[] ['pyarrow']"


def test_version(kernbench: Run) -> None:
    ran = kernbench("--version")
    assert ran.code == 0
    assert "kernbench" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("frobnicate",), "No such command 'frobnicate'; there are: run, list, config, probe, check-part,"),
        (("rnu",), "; did you mean 'run'?\nhelp: kernbench --help"),
        (("check_part",), "did you mean 'check-part'?"),
        (("run",), "Missing option '--bench' or '--script'"),
        (("run", "--bench", "nope"), "unknown bench 'nope'; there are: "),
        (("run", "--bench", "gemm-sngle-pe"), "did you mean 'gemm-single-pe'?"),
        (("run", "--bench", "nowhere.py"), "nowhere.py: no such file"),
        (("run", "--bench", "gemm-single-pe", "--set", "bench.q=1"), "unknown key 'q'; allowed here: m, k, n, dtype"),
        (("run", "--bench", "gemm-single-pe", "--set", "bench.m=big"), "bench.m: found 'big', must be a whole number"),
        (("run", "--bench", "gemm-single-pe", "--set", "cube.hbm.slicez=8"), "did you mean 'slices'?"),
        (("run", "--bench", "gemm-single-pe", "--set", "nonsense"), "no '='; write path=value"),
        (("run", "--bench", "gemm-single-pe", "--device", "gpu"), "device 'gpu' is no device"),
        (("run", "--bench", "gemm-single-pe", "--device", "sip:7"), "there are: all, sip:0, sip:1"),
        (("run", "--bench", "gemm-single-pe", "--max-sim-ns", "-1"), "-1.0 is not in the range x>=0"),
        (("probe", "--size", "0"), "--size: found 0, must be at least 1 byte"),
        (("probe", "--size", "4QiB"), "'4QiB' is not a size; write bytes or a number with one of B, KiB"),
        (("probe", "--size", "-4"), "not a size"),
        (("probe", "--case", "pe-dram"), "unknown probe case 'pe-dram'; there are: h2d-local"),
        (("probe", "--case", "pe-dram"), "memory; did you mean 'pe-sram'?"),
        (("probe", "--case", "memroy"), "did you mean 'memory'?"),
        (("check-part", "builtin.xbra"), "did you mean 'builtin.xbar'?"),
        (("check-part", "buildin.xbar"), "there is no module 'buildin'; "),
        (("check-part", "buildin.xbar"), "; did you mean 'builtin.xbar'?"),
        (("check-part", "builtin.xbar", "--kind", "xbra"), "did you mean 'xbar'?"),
        (("probe", "--case", "pe-sram", "--size", "1GiB"), "pe-sram takes 1 byte to 32 MiB"),
        (("topology", "--format", "pdf"), "'pdf' is not one of"),
        (("topology", "--topology", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("topology", "--format", "dot", "--out", "no/such/dir.dot"), "cannot be written there: no such folder"),
        (("topology", "--out", "machine.svg"), "the format is table; give --format svg, or another file suffix"),
        (("topology", "--out", ""), "'': a file to write needs a name"),
        (("probe", "--case", "memory", "--picture", "no/such.png"), "no/such.png: cannot be written there"),
        (("run", "--script", ""), "'': no file has an empty name"),
        (
            ("run", "--bench", "gemm-single-pe", "--trace", "a.jsonl", "--op-log", "./a.jsonl"),
            "--op-log writes this file",
        ),
        (("compare", "a.txt", "a.txt"), "a.txt: no such file; compare takes sweep.parquet"),
        (("list", "--frob"), "No such option"),
    ],
)
def test_bad_input_is_2_and_a_line(kernbench: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = kernbench(*arguments)
    assert ran.code == 2
    assert not ran.out
    assert "error: " in ran.err
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_a_folder_that_is_no_more(kernbench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    ran = kernbench("list")
    assert (ran.code, ran.out, ran.err) == (
        2,
        "",
        "error: the current folder no longer exists; change to an existing folder\n",
    )


BROKEN = {
    "syntax": ("cube: [1, 2\nsip: 3\n", r"topology.yaml:2:4: not YAML"),
    "a tab": ("cube:\n\thbm: 1\n", r"topology.yaml:2:1: not YAML"),
    "an empty file": ("", r"topology.yaml:1:1: the file is empty"),
    "a list": ("- 1\n- 2\n", r"topology.yaml:1:1: found [1, 2], must be a mapping"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("command", [("topology",), ("probe",), ("run", "--bench", "gemm-single-pe")])
def test_a_broken_file_is_named_with_its_line(kernbench: Run, command: tuple[str, ...], kind: str) -> None:
    text, message = BROKEN[kind]
    Path("topology.yaml").write_text(text)
    ran = kernbench(*command)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_every_problem_of_a_file_is_a_line(kernbench: Run) -> None:
    good = (Path(__file__).parents[2] / "topology.yaml").read_text()
    bad = good.replace("slices: 8", "slices: 7").replace("channel_hash: xor", "channel_hash: sum")
    Path("topology.yaml").write_text(bad.replace("packet_bytes: 1024", "packet_byte: 1024"))
    ran = kernbench("topology")
    assert ran.code == 2
    lines = ran.err.splitlines()
    assert len(lines) >= 3
    assert all(line.startswith("error: topology.yaml:") for line in lines)
    assert any("unknown key 'packet_byte'; did you mean 'packet_bytes'?" in line for line in lines)


def test_bytes_that_are_no_text(kernbench: Run) -> None:
    Path("topology.yaml").write_bytes(b"cube: \xff\xfe")
    ran = kernbench("topology")
    assert ran.code == 2
    assert "topology.yaml:1:7: not UTF-8" in ran.err


def test_an_unforeseen_error_is_1_and_points_to_debug(kernbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[()]:
        raise RuntimeError("the sky fell")

    monkeypatch.setattr(lists, "known_benches", broken)
    ran = kernbench("list")
    assert ran.code == 1
    assert "error: RuntimeError: the sky fell" in ran.err
    assert "--debug" in ran.err
    assert "Traceback" not in ran.err
    assert "Traceback" in kernbench("list", "--debug").err


def test_debug_shows_where_an_input_error_comes_from(kernbench: Run) -> None:
    ran = kernbench("probe", "--case", "nope", "--debug")
    assert ran.code == 2
    assert "UnknownNameError" in ran.err
    assert "Traceback" in ran.err


def test_interrupted_before_anything_is_finished(kernbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> tuple[()]:
        raise KeyboardInterrupt

    monkeypatch.setattr(lists, "known_benches", interrupted)
    assert kernbench("list").code == 130


def test_no_color_is_honoured(kernbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;36m" in kernbench("list").out
    monkeypatch.setenv("NO_COLOR", "1")
    plain = kernbench("list").out
    assert not re.search("\x1b\\[[0-9;]*3[0-7]", plain)


def test_nobody_reads_the_output() -> None:
    command = f"{sys.executable} -c 'from kernbench.cli.main import entry; entry()' topology --format json | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
