"""How a failed run is told: exit codes, one JSON document, deadlocks, limits, names with control characters."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.library import lists, probes

Run = Callable[..., Any]
SMALL = ("--set", "sip.cube_mesh.w=2", "--set", "sip.cube_mesh.h=2", "--set", "system.sips.count=2")
FAILING = """\
import logging, sys
import numpy as np
from kernbench.policy.placement.dp import DPPolicy

print("at the top")


def fails(torch):
    torch.zeros(4, name="x")
    assert not "true"


def bad_kernel(x, *, tl):
    print("in the kernel")
    tl.device_print("from the device")
    sys.exit(0)


def kernel_leaves(torch):
    torch.launch("bad", bad_kernel, torch.zeros(4))


def leaves(torch):
    print("in the bench")
    sys.stdout.write("straight\\n")
    logging.StreamHandler(sys.stdout).emit(logging.makeLogRecord({"msg": "logged"}))
    torch.zeros(4)
    sys.exit()


def rank_leaves(torch):
    def program(rank):
        print("in rank", rank)
        torch.distributed.init_process_group("ahbm")
        if rank:
            sys.exit(0)
        torch.distributed.barrier()

    torch.multiprocessing.spawn(program, nprocs=2)


def wrong(torch):
    torch.testing.assert_close(torch.ones(4, name="x"), np.zeros(4))


def nothing(torch):
    pass


def receives(x, n, *, tl):
    tl.store(x, tl.recv("W", (n,), "f32"))


def deadlocks(torch):
    torch.install_ipcq(algorithm="ring_allreduce_tcm", world_size_override=24)
    x = torch.zeros(24, 16, dp=DPPolicy(cube="row_wise", pe="row_wise", num_cubes=3), name="x")
    torch.launch("receives", receives, x, 16)


def long_kernel(x, *, tl):
    for _ in range(100):
        tl.load(x, (4,), "f32")


def long(torch):
    torch.launch("long", long_kernel, torch.zeros(4))


def endless_kernel(x, *, tl):
    tl.load(x, (4,), "f32")
    while True:
        try:
            int("no number")
        except Exception:
            pass


def endless(torch):
    torch.launch("endless", endless_kernel, torch.zeros(4))


def endless_rank(torch):
    def program(rank):
        torch.zeros(4)
        while rank:
            pass

    torch.multiprocessing.spawn(program, nprocs=2)


def raising_kernel(x, *, tl):
    tl.store(x, tl.load(x, (4,), "f32"))
    raise ValueError("enough")


def raises(torch):
    torch.launch("raising", raising_kernel, torch.zeros(4))
"""


@pytest.fixture
def failing(tmp_path: Path) -> str:
    path = tmp_path / "failing.py"
    path.write_text(FAILING)
    return str(path)


@pytest.mark.parametrize(
    ("function", "options", "last"),
    [
        ("deadlocks", (), "control path up"),
        ("raises", (), "control path up"),
        ("long", ("--max-sim-ns", "500"), "memory access"),
        ("fails", (), "control path up"),
    ],
)
def test_a_failed_run_is_explained_as_far_as_it_got(
    kernbench: Run, failing: str, function: str, options: tuple[str, ...], last: str
) -> None:
    command = ("run", "--bench", f"{failing}:{function}", *options, *SMALL)
    explained = kernbench(*command, "--explain")
    assert explained.code == kernbench(*command).code == 1
    assert "Run: critical path" in explained.out
    ran = kernbench(*command, "--explain", "--json")
    assert ran.code == 1
    explanation = json.loads(ran.out)["explanation"]
    path = explanation["critical_path"]
    parts = {each["part"]: each["ps"] for each in path["parts"]}
    assert sum(parts.values()) == path["total_ps"]
    assert parts[last]
    if function != "fails":  # the path goes through the kernel
        assert parts["kernel launch"] == 5000
        assert "host program" not in parts
        (launch,) = explanation["launches"]
        ended = launch.get("ended", True)
        assert ended is (function == "raises")
        assert sum(each["ps"] for each in launch["critical_path"]["parts"]) == launch["critical_path"]["total_ps"]
        assert launch["lines"]
        assert ("as far as it got" in explained.out) is not ended


@pytest.mark.parametrize(
    ("function", "options", "status", "error", "place"),
    [
        ("fails", (), "FAILED", "AssertionError", ("fails", None, None, None)),
        ("leaves", (), "FAILED", "left by sys.exit()", ("leaves", None, None, None)),
        ("kernel_leaves", (), "FAILED", "left by sys.exit(0)", ("bad_kernel", [0, 0, 0], "bad_kernel", None)),
        ("rank_leaves", (), "FAILED", "rank 1 failed: SystemExit: left by sys.exit(0)", ("program", None, None, 1)),
        ("wrong", ("--verify-data",), "FAILED", "FAIL x: 4 of 4", ("wrong", None, None, None)),
        ("nothing", (), "NO_REQUESTS", "submitted no request", ("failing", None, None, None)),
        ("deadlocks", (), "FAILED", "IpcqDeadlock: deadlock at", ("deadlocks", None, None, None)),
        (
            "long",
            ("--max-sim-ns", "400"),
            "FAILED",
            "stopped by --max-sim-ns 400",
            ("long", None, None, None),
        ),
    ],
)
def test_a_failed_run_is_one_document_and_exit_1(
    kernbench: Run, failing: str, function: str, options: tuple[str, ...], status: str, error: str, place: Any
) -> None:
    ran = kernbench("run", "--bench", f"{failing}:{function}", "--json", *options, *SMALL)
    assert ran.code == 1
    document = json.loads(ran.out)
    assert document["status"] == status
    assert error in document["error"]
    found = document["place"]
    assert found["file"] == failing
    assert (found["function"], found["pe"], found["kernel"], found["rank"]) == place
    assert "at the top" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("function", ["leaves", "kernel_leaves", "rank_leaves"])
def test_leaving_a_program_is_a_failure_with_its_line(kernbench: Run, failing: str, function: str) -> None:
    ran = kernbench("run", "--bench", f"{failing}:{function}", *SMALL)
    assert ran.code == 1
    assert "FAILED  failing" in ran.out
    assert re.search(rf"left by sys\.exit\(0?\).*at {re.escape(failing)}:\d+", ran.err, re.DOTALL)
    page = kernbench("web", "--bench", f"{failing}:{function}", "--json", *SMALL)
    assert page.code == 1
    document = json.loads(page.out)
    assert document["status"] == "FAILED"
    assert "left by sys.exit" in document["error"]
    assert document["place"]["file"] == failing


def test_what_programs_print_stays_out_of_the_document(kernbench: Run, failing: str) -> None:
    told = kernbench("run", "--bench", f"{failing}:leaves", "--json", *SMALL)
    assert {"at the top", "in the bench", "straight", "logged"} <= set(told.err.splitlines())
    told = kernbench("run", "--bench", f"{failing}:kernel_leaves", "--json", *SMALL)
    assert "in the kernel" in told.err.splitlines()
    assert json.loads(told.out)["printed"][0]["text"] == "from the device"
    told = kernbench("run", "--bench", f"{failing}:rank_leaves", "--json", "--trace-ccl", *SMALL)
    assert json.loads(told.out)
    assert "in rank 0" in told.err.splitlines()
    assert "in rank 0" in kernbench("run", "--bench", f"{failing}:rank_leaves", *SMALL).out


@pytest.mark.parametrize("command", [("run", "--bench"), ("web", "--bench")])
def test_a_file_that_leaves_when_it_is_imported(kernbench: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "leaving.py"
    path.write_text("import sys\nsys.exit('not on this machine')\n")
    ran = kernbench(*command, str(path), "--json")
    assert ran.code == 1
    document = json.loads(ran.out)
    assert (document["status"], document["place"]["line"]) == ("FAILED", 2)
    assert "left by sys.exit: not on this machine" in document["error"]
    assert f"at {path}:2" in ran.err


def test_a_command_that_fails_before_its_own_document_prints_one(
    kernbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("the sky fell")

    def leaves(*_: object, **__: object) -> Any:
        raise SystemExit(0)

    monkeypatch.setattr(lists, "known_benches", broken)
    ran = kernbench("list", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["error"] == "RuntimeError: the sky fell"
    monkeypatch.setattr(probes, "measure_case", leaves)
    ran = kernbench("probe", "--case", "pe-sram", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["error"] == "ProgramExitError: left by sys.exit(0)"
    assert kernbench("run", "--bench", "nope", "--json").code == 2


def test_a_deadlock_is_a_verdict_the_cycle_and_20_pes(kernbench: Run, failing: str) -> None:
    command = ("run", "--bench", f"{failing}:deadlocks", *SMALL)
    lines = kernbench(*command).err.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("error: deadlock at"))
    what, who, why, cycle, heading, *rest = lines[begin:]
    assert "nothing can happen any more" in what
    assert who.startswith("24 PEs wait: 24 × kernel 'receives' waits for a message of queue W, at line")
    assert "let one of them send first" in why
    assert cycle.startswith("who waits for whom: sip0.cube0.pe0 -> ")
    assert cycle.endswith(" -> sip0.cube0.pe0")
    assert heading == "PEs that wait:"
    pes = [line for line in rest if re.match(r"  sip0\.cube\d\.pe\d: ", line)]
    assert len(pes) == 20
    assert rest[20:] == ["  … and 4 more (-v shows all)", rest[21]]
    for flag in ("-v", "--verbose"):
        whole = kernbench(*command, flag).err
        assert len(re.findall(r"^  sip0\.cube\d\.pe\d: ", whole, re.MULTILINE)) == 24
        assert "more (-v" not in whole
        assert "the whole cycle: " in whole


@pytest.mark.parametrize(("function", "kernel"), [("endless", "endless_kernel"), ("endless_rank", None)])
def test_the_limit_of_time_ends_a_loop_in_python(
    kernbench: Run, failing: str, tmp_path: Path, function: str, kernel: str | None
) -> None:
    before = signal.getsignal(signal.SIGALRM)
    files = ("--op-log", str(tmp_path / "log.jsonl"))
    ran = kernbench("run", "--bench", f"{failing}:{function}", "--max-wall-s", "0.5", "--json", *files, *SMALL)
    assert ran.code == 1
    document = json.loads(ran.out)
    assert "stopped by --max-wall-s 0.5, at " in document["error"]
    assert document["place"]["file"] == failing
    assert document["place"]["kernel"] == kernel
    assert f"at {failing}:{document['place']['line']}" in ran.err
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("option", ["--max-wall-s", "--max-sim-ns"])
@pytest.mark.parametrize(("limit", "code"), [("inf", 0), ("1e30", 0), ("nan", 2), ("-inf", 2)])
def test_a_limit_without_end(kernbench: Run, failing: str, option: str, limit: str, code: int) -> None:
    ran = kernbench("run", "--bench", f"{failing}:long", option, limit, *SMALL)
    assert ran.code == code
    assert ("Invalid value for" in ran.err) == bool(code)


HOSTILE = """\
import numpy as np
EVIL = "a\\x1b[2Jb\\x07\\x9bc\\u202ed\\x7f"

def kernel(x, *, tl):
    tl.device_print(EVIL, tl.load(x, (4,), "f32"))

def run(torch):
    x = torch.ones(4, name=EVIL)
    torch.launch(EVIL, kernel, x)
    torch.testing.assert_close(x, np.zeros(4))
    torch.testing.assert_close(x, np.zeros(4), name=EVIL)
    raise ValueError(EVIL)
"""


@pytest.mark.parametrize(
    "command",
    [
        *(("run", "--verify-data", *more) for more in ((), ("--json",), ("--debug",), ("--explain",), ("--sanitize",))),
        ("run", "--verify-data", "--out", "\x1b[2J"),
        ("web",),
    ],
    ids=str,
)
def test_control_characters_in_names_never_reach_a_terminal(
    kernbench: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "evil\x1b[31m.py"
    path.write_text(HOSTILE)
    ran = kernbench(*command, "--bench", str(path), *SMALL)
    assert ran.code in (1, 2)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", ran.out + ran.err)


def test_control_characters_in_names_are_shown_as_what_they_are(kernbench: Run, tmp_path: Path) -> None:
    path = tmp_path / "evil\x1b[31m.py"
    path.write_text(HOSTILE)
    ran = kernbench("run", "--verify-data", "--bench", str(path), *SMALL)
    assert r"FAIL a\x1b[2Jb\x07\x9bc\u202ed\x7f: 4 of 4" in ran.out
    assert r"ValueError: a\x1b[2Jb" in ran.err
    assert r"evil\x1b[31m.py:12" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--bench", "no\x1b[31m"),
        ("\x1b[31m",),
        ("list", "--\x1b[31m"),
        ("topology", "--topology", "no\x1b[31m.yaml"),
        ("topology", "--set", "cube.\x1b[31m=1"),
        ("probe", "--size", "\x1b[31m"),
        ("compare", "no\x1b[31m", "no"),
        ("sweep", "no\x1b[31m.yaml"),
        ("topology", "--out", "pic\x1b[31m.json", "--format", "json"),
    ],
)
def test_nor_do_those_of_the_command_line(kernbench: Run, arguments: tuple[str, ...]) -> None:
    ran = kernbench(*arguments)
    assert "\x1b" not in ran.out + ran.err
    assert r"\x1b[31m" in ran.err
