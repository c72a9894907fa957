"""``kernbench run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.cli.run_engine import LimitReached, Limits, RunEngine
from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.builder import resolve_topology

Run = Callable[..., Any]
GEMM = ("run", "--bench", "gemm-single-pe", "--set", "bench.m=64", "--set", "bench.k=64", "--set", "bench.n=64")
SMALL = ("--set", "sip.cube_mesh.w=2", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1")
HBM = PhysAddr.hbm_addr(0, 0, 0, 0).encode()
USER_BENCH = '''\
def bad_kernel(x_ptr, n, *, tl):
    a = tl.load(x_ptr, (n,), "f16")
    boom = 1 // 0


def kernel_fails(torch):
    torch.launch("bad", bad_kernel, torch.zeros(64, dtype="f16", name="x"), 64)


def host_fails(torch):
    torch.zeros(64, dtype="f16", name="x")
    raise ValueError("host trouble")


def wrong_numbers(torch):
    x = torch.zeros(64, dtype="f16", name="x")
    torch.testing.assert_close(x, lambda: [0.0] * 5 + [1.0] * 59)


def nothing(torch):
    """A bench that asks nothing."""


def interrupted(torch):
    torch.zeros(64, dtype="f16", name="x")
    raise KeyboardInterrupt
'''


@pytest.fixture
def user_bench(tmp_path: Path) -> str:
    path = tmp_path / "user_bench.py"
    path.write_text(USER_BENCH)
    return str(path)


def test_a_run_that_is_verified(kernbench: Run) -> None:
    ran = kernbench(*GEMM, "--verify-data")
    assert ran.code == 0
    for text in ("h2d: host to device", "control path", "GEMM", "Busiest links", "host link", "events", "PASS C:"):
        assert text in ran.out
    assert ran.out.splitlines()[-1].startswith("OK  gemm-single-pe: ")
    assert "…" not in ran.out
    assert "simulating gemm-single-pe" in ran.err


def test_a_run_that_is_not_verified_says_so(kernbench: Run) -> None:
    ran = kernbench(*GEMM)
    assert ran.code == 0
    assert "nothing was verified: timing only; --verify-data evaluates 1 comparison" in ran.out


def test_verifying_changes_no_time(kernbench: Run) -> None:
    timed, verified = (json.loads(kernbench(*GEMM, *flag, "--json").out) for flag in ((), ("--verify-data",)))
    assert timed["sim_ns"] == verified["sim_ns"]
    assert timed["verification"]["verdict"] == "not verified"
    assert verified["verification"]["verdict"] == "PASS"


def test_json_is_one_document_and_the_same_again(kernbench: Run) -> None:
    ran = kernbench(*GEMM, "--verify-data", "--json")
    document = json.loads(ran.out)
    assert document["params"]["m"] == 64
    assert document["status"] == "OK"
    launch = document["launches"][0]
    assert launch["before_ns"] + launch["kernel_ns"] + launch["after_ns"] == pytest.approx(launch["total_ns"])
    assert sum(share["ns"] for share in launch["shares"]) == pytest.approx(launch["slowest_ns"])
    assert {usage["engine"] for usage in document["engines"]} >= {"DMA in", "GEMM", "DMA out"}
    assert document["traffic"]["hbm_in"] > 2 * 64 * 64 * 2
    assert kernbench(*GEMM, "--verify-data", "--json").out == ran.out


def test_set_reaches_machine_and_bench(kernbench: Run) -> None:
    slow = ("--set", "cube.components.hbm_ctrl.attrs.efficiency=0.4")
    fast, slower = (json.loads(kernbench(*GEMM, *extra, "--json").out) for extra in ((), slow))
    assert fast["digest"] != slower["digest"]
    assert fast["launches"][0]["kernel_ns"] < slower["launches"][0]["kernel_ns"]


def test_device(kernbench: Run) -> None:
    ran = kernbench(*GEMM, "--device", "sip:1", "--json")
    document = json.loads(ran.out)
    assert document["device"] == "sip:1"
    assert document["launches"][0]["slowest_pe"] == [1, 0, 0]


def test_several_pes(kernbench: Run) -> None:
    ran = kernbench("run", "--bench", "va_offset_verify", "--verify-data", *SMALL)
    assert ran.code == 0
    assert "on 16 PEs" in ran.out
    assert "PASS target" in ran.out


def test_wrong_numbers(kernbench: Run, user_bench: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:wrong_numbers", "--verify-data", *SMALL)
    assert ran.code == 1
    assert "FAIL x: 59 of 64 elements wrong, max error 1" in ran.out
    assert "first at [5] (sip0.cube0.pe0" in ran.out
    assert "FAILED  user_bench" in ran.out
    document = json.loads(
        kernbench("run", "--bench", f"{user_bench}:wrong_numbers", "--verify-data", "--json", *SMALL).out
    )
    assert document["verification"]["comparisons"][0]["first_wrong"]["index"] == [5]


def test_no_requests(kernbench: Run, user_bench: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:nothing", *SMALL)
    assert ran.code == 1
    assert "NO_REQUESTS" in ran.out
    assert "submitted no request" in ran.out


def test_an_error_in_a_kernel_names_its_line(kernbench: Run, user_bench: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:kernel_fails", *SMALL)
    assert ran.code == 1
    assert "error: ZeroDivisionError: integer division or modulo by zero" in ran.err
    assert f"at {user_bench}:3" in ran.err
    assert "on sip0.cube0.pe0, kernel 'bad_kernel'" in ran.err
    assert "Traceback" not in ran.err
    assert "init: filled by the device" in ran.out


def test_an_error_of_the_host_program_names_its_line(kernbench: Run, user_bench: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:host_fails", "--json", *SMALL)
    assert ran.code == 1
    assert f"at {user_bench}:12" in ran.err
    assert json.loads(ran.out)["error"] == "ValueError: host trouble"
    assert "Traceback" in kernbench("run", "--bench", f"{user_bench}:host_fails", "--debug", *SMALL).err


def test_interrupted_with_what_is_finished(kernbench: Run, user_bench: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:interrupted", *SMALL)
    assert ran.code == 130
    assert "INTERRUPTED" in ran.out
    assert "init: filled by the device" in ran.out


def test_a_missing_function_lists_what_there_is(kernbench: Run, user_bench: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:nothign")
    assert ran.code == 2
    assert "did you mean 'nothing'?" in ran.err


@pytest.mark.parametrize(
    ("limit", "message"),
    [(("--max-sim-ns", "100"), "stopped by --max-sim-ns 100"), (("--max-wall-s", "0"), "stopped by --max-wall-s 0")],
)
def test_limits(kernbench: Run, limit: tuple[str, str], message: str) -> None:
    ran = kernbench(*GEMM, *limit, *SMALL)
    assert ran.code == 1
    assert message in ran.err
    assert "under way when it ended: MmuMap 'A'" in ran.out
    assert "FAILED" in ran.out
    assert "leaked" not in ran.out


def test_a_limit_that_is_not_reached_changes_nothing(kernbench: Run) -> None:
    assert kernbench(*GEMM, "--max-sim-ns", "1e9", "--max-wall-s", "60", "--json").out == kernbench(*GEMM, "--json").out


def test_a_limit_stops_at_the_last_event_before_it() -> None:
    machine = resolve_topology("default", ["sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=1"])
    whole = RunEngine(machine, False, Limits())
    read = PeDmaMsg(pe=(0, 0, 0), pa=HBM, nbytes=4096)
    end_ns = whole.wait(whole.submit(read)).t_end
    exact = RunEngine(machine, False, Limits(sim_ns=end_ns))
    assert exact.wait(exact.submit(read)).t_end == end_ns
    short = RunEngine(machine, False, Limits(sim_ns=end_ns - 0.001))
    handle = short.submit(read)
    with pytest.raises(LimitReached):
        short.wait(handle)
    assert not handle.done
    assert short.now < end_ns
