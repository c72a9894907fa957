"""``kernbench run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq
import pytest

from kernbench.cli.main import main
from kernbench.common.errors import LimitReached
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.messages.requests import PeDmaMsg
from kernbench.observe.sanitizer import Sanitizer
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.run_explanation import LaunchExplanation
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


def races(x, tl):
    a = tl.load(x, (64, 64), "f16")
    tl.store(x, a)
    tl.load(x, (64, 64), "f16")


from kernbench.policy.placement.dp import DPPolicy


def race(torch):
    both = DPPolicy(pe="row_wise", num_pes=2, num_cubes=1)
    torch.launch("races", races, torch.zeros(64, 64, dtype="f16", dp=both, name="X"))


def overtakes(x, y, tl):
    tl.store(x, tl.load(y, (64, 64), "f16"))
    tl.load(x, (64, 64), "f16")


def overtake(torch):
    torch.launch("overtakes", overtakes, *(torch.zeros(64, 64, dtype="f16", name=name) for name in "XY"))


def reads_nothing(torch):
    torch.launch("races", races, torch.empty(64, 64, dtype="f16", name="X"))


def stores_own(x, tl):
    tl.store(x, tl.full((4,), tl.program_id(0), "f32"))


def copies_differ(torch):
    x = torch.empty(64, dp=DPPolicy(num_pes=4, num_cubes=1), name="X")
    torch.launch("own", stores_own, x)
    repr(x)
    torch.testing.assert_close(x[:4], [0.0] * 4)
    torch.testing.assert_close(x, lambda: [0.0] * 64)


def interrupted(torch):
    torch.zeros(64, dtype="f16", name="x")
    raise KeyboardInterrupt


def interrupts_itself(x_ptr, *, tl):
    tl.wait(tl.load(x_ptr, (64,), "f16"))
    raise KeyboardInterrupt


def kernel_interrupted(torch):
    torch.launch("stopped", interrupts_itself, torch.zeros(64, dtype="f16", name="x"))
'''


@pytest.fixture
def user_bench(tmp_path: Path) -> str:
    path = tmp_path / "user_bench.py"
    path.write_text(USER_BENCH)
    return str(path)


def test_a_run_that_is_verified(kernbench: Run) -> None:
    ran = kernbench(*GEMM, "--verify-data", "-v")
    assert ran.code == 0
    for text in ("h2d: host to device", "control path", "GEMM", "Busiest links", "host link", "events", "PASS C:"):
        assert text in ran.out
    verdict, status, *_ = ran.out.splitlines()
    assert "% of " in verdict
    assert status.startswith("OK  gemm-single-pe: ")
    assert "…" not in ran.out
    assert "simulating gemm-single-pe" in ran.err


def test_a_run_that_is_not_verified_says_so(kernbench: Run) -> None:
    ran = kernbench(*GEMM)
    assert ran.code == 0
    assert "nothing was verified; --verify-data evaluates 1 comparison" in ran.out


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
    slow = ("--set", "cube.hbm.timing=hbm2")
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


class Interrupted:
    """A part of an explanation that the user interrupts."""

    def __get__(self, found: object, kind: type) -> NoReturn:
        raise KeyboardInterrupt


@pytest.mark.parametrize("explain", [(), ("--explain",)])
def test_an_explanation_that_is_interrupted_does_not_lose_the_report(
    kernbench: Run, monkeypatch: pytest.MonkeyPatch, explain: tuple[str, ...]
) -> None:
    monkeypatch.setattr(LaunchExplanation, "lines", Interrupted())
    ran = kernbench(*GEMM, *SMALL, *explain, "-v")
    assert ran.code == 130
    assert "OK  gemm-single-pe" in ran.out
    assert "Simulated latency by phase" in ran.out
    assert "interrupted: the explanation of the run" in ran.err
    assert "Traceback" not in ran.err


def test_a_sanitizer_that_was_interrupted_says_so(kernbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sanitizer, "findings", interrupt)
    ran = kernbench(*GEMM, *SMALL, "--sanitize")
    assert ran.code == 130
    assert "sanitizer: interrupted, so there is no result" in ran.out
    assert "nothing found" not in ran.out


def test_a_document_whose_explanation_is_interrupted_has_the_run(
    kernbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(kernbench(*GEMM, *SMALL, "--json").out)
    monkeypatch.setattr(LaunchExplanation, "lines", Interrupted())
    ran = kernbench(*GEMM, *SMALL, "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["status"]) == (130, "INTERRUPTED")
    assert document["remarks"] == ["not explained: the explanation was interrupted"]
    assert "explanation" not in document
    assert (document["sim_ns"], document["launches"]) == (whole["sim_ns"], whole["launches"])


def test_an_interrupted_kernel_is_told_as_under_way(kernbench: Run, user_bench: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:kernel_interrupted", *SMALL)
    assert ran.code == 130
    assert "in flight when the run ended: KernelLaunch 'stopped'" in ran.out
    assert "Launch 'stopped' on 1 PE" not in ran.out


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
    assert "in flight when the run ended: MmuMap 'A'" in ran.out
    assert "FAILED" in ran.out
    assert "leaked" not in ran.out


def test_a_limit_that_is_not_reached_changes_nothing(kernbench: Run) -> None:
    assert kernbench(*GEMM, "--max-sim-ns", "1e9", "--max-wall-s", "60", "--json").out == kernbench(*GEMM, "--json").out


def test_a_limit_stops_at_the_last_event_before_it() -> None:
    machine = resolve_topology("default", ["sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=1"])
    whole = GraphEngine(machine, enable_data=False)
    read = PeDmaMsg(pe=(0, 0, 0), pa=HBM, nbytes=4096)
    end_ns = whole.wait(whole.submit(read)).t_end
    exact = GraphEngine(machine, enable_data=False, limits=Limits(sim_ns=end_ns))
    assert exact.wait(exact.submit(read)).t_end == end_ns
    short = GraphEngine(machine, enable_data=False, limits=Limits(sim_ns=end_ns - 0.001))
    handle = short.submit(read)
    with pytest.raises(LimitReached):
        short.wait(handle)
    assert not handle.done
    assert short.now < end_ns


# --- files, explanations, the sanitizer -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.parquet", "log.jsonl"])
def test_the_op_log_as_a_file(kernbench: Run, name: str) -> None:
    ran = kernbench(*GEMM, "--op-log", name, "--verify-data")
    assert ran.code == 0
    assert f"wrote {name}" in ran.err
    config = f"{name}.config.yaml"
    assert sorted(path.name for path in Path().iterdir()) == sorted((name, config))
    assert resolve_topology(config).digest == resolve_topology("default").digest
    path = Path(name)
    rows = (
        pq.read_table(path).to_pylist()
        if path.suffix == ".parquet"
        else [json.loads(line) for line in path.read_text().splitlines()]
    )
    assert {row["kind"] for row in rows} >= {"memory_write", "dma_read", "fetch", "gemm", "store", "dma_write"}
    parts = [row for row in rows if row["tile"] is not None]
    assert parts
    assert {(row["kernel"], row["parent"] >= 0, row["line"] > 0) for row in parts} == {("gemm_composite", True, True)}


def test_a_trace_as_a_file(kernbench: Run) -> None:
    ran = kernbench(*GEMM, "--trace", "t.json", *SMALL)
    assert ran.code == 0
    assert "wrote t.json" in ran.err
    whole = json.loads(Path("t.json").read_text())["traceEvents"]
    assert kernbench(*GEMM, "--trace", "t.json", "--trace-filter", "pes,memory", *SMALL).code == 0
    some = json.loads(Path("t.json").read_text())["traceEvents"]
    named = [{e["args"]["name"] for e in events if e["name"] == "process_name"} for events in (whole, some)]
    assert named[0] >= {"host", "SIP 0", "SIP 0, cube 0", "SIP 0, cube 0, PE 0", "memories", "links"}
    assert named[1] == {"SIP 0, cube 0, PE 0", "memories"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--op-log", "log.csv"), "log.csv: the suffix of an op-log is one of .jsonl, .parquet"),
        (("--op-log", "no/such/log.jsonl"), "no/such/log.jsonl: cannot be written there"),
        (("--trace", "no/such/t.json"), "no/such/t.json: cannot be written there"),
        (("--trace", "."), ".: is a folder"),
        (("--trace", "t.json", "--trace-filter", "linkz"), "'linkz' matches no part of the machine"),
        (("--trace", "t.json", "--trace-filter", "pes,,"), "an empty glob"),
        (("--trace-filter", "pes"), "give both"),
    ],
)
def test_bad_outputs_are_found_before_the_run(kernbench: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = kernbench(*GEMM, *arguments, *SMALL)
    assert ran.code == 2
    assert message in ran.err
    assert "simulating" not in ran.err
    assert not list(Path().iterdir())


def test_outputs_of_a_run_that_fails(kernbench: Run, user_bench: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:kernel_fails", "--explain", "--trace", "t.json", *SMALL)
    assert ran.code == 1
    assert "Launch 'bad': critical path" in ran.out
    assert json.loads(Path("t.json").read_text())["traceEvents"]


@pytest.mark.parametrize("limit", ["300", "900", "1200"])
def test_outputs_of_a_run_that_was_stopped(kernbench: Run, limit: str) -> None:
    ran = kernbench(*GEMM, "--max-sim-ns", limit, "--explain", "--trace", "t.json", "--op-log", "o.jsonl", *SMALL)
    assert ran.code == 1
    assert "stopped by --max-sim-ns" in ran.err
    assert "Run: critical path" in ran.out
    ends = [e["ts"] + e["dur"] for e in json.loads(Path("t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert max(ends) * 1000 <= float(limit) + 1e-6


def test_an_explanation(kernbench: Run) -> None:
    ran = kernbench(*GEMM, "--explain", "-v", *SMALL, "--set", "cube.hbm.refresh=spread")
    assert ran.code == 0
    for text in (
        "Launch 'gemm': critical path",
        "Lines of gemm.py",
        "write_product(c.tile(*box), left, right,",
        "182.892 GB/s",
        "4096/ns",
        "Run: bounds",
    ):
        assert text in ran.out
    assert "Launch 'gemm': bound by " in ran.out
    assert "…" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120


def test_an_explanation_adds_up_to_the_ps(kernbench: Run) -> None:
    ran = kernbench(*GEMM, "--explain", "--json", *SMALL)
    document = json.loads(ran.out)
    found = document["explanation"]
    for each in (found, *found["launches"]):
        path, roof = each["critical_path"], each["roofline"]
        assert sum(part["ps"] for part in path["parts"]) == path["total_ps"] == roof["measured_ps"]
        assert roof["bounds"][0]["ps"] + sum(gap["ps"] for gap in roof["differences"]) == roof["measured_ps"]
    assert found["critical_path"]["total_ps"] == round(document["sim_ns"] * 1000)
    (launch,) = found["launches"]
    assert launch["critical_path"]["total_ps"] == round(document["launches"][0]["total_ns"] * 1000)
    assert kernbench(*GEMM, "--json", *SMALL).out == ran.out
    assert "explanation" not in json.loads(kernbench(*GEMM, "--no-observe", "--json", *SMALL).out)


def test_asking_changes_no_time(kernbench: Run) -> None:
    asked = json.loads(kernbench(*GEMM, "--explain", "--trace", "t.json", "--sanitize", "--json", *SMALL).out)
    plain = json.loads(kernbench(*GEMM, "--json", *SMALL).out)
    assert {key: value for key, value in asked.items() if key not in ("findings", "data")} == {
        key: value for key, value in plain.items() if key != "data"
    }


def test_nothing_to_explain(kernbench: Run, user_bench: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:nothing", "--explain", "--trace", "t.json", *SMALL)
    assert ran.code == 1
    assert ran.out.startswith("nothing was computed or moved\n")
    assert "─" not in ran.out  # no tables


def test_the_sanitizer_finds_nothing(kernbench: Run) -> None:
    ran = kernbench(*GEMM, "--sanitize", *SMALL)
    assert ran.code == 0
    assert "sanitizer: nothing found" in ran.out
    assert json.loads(kernbench(*GEMM, "--sanitize", "--json", *SMALL).out)["findings"] == []


@pytest.mark.parametrize(("function", "kind"), [("race", "race"), ("reads_nothing", "unwritten")])
def test_the_sanitizer_finds_something(kernbench: Run, user_bench: str, function: str, kind: str) -> None:
    ran = kernbench("run", "--bench", f"{user_bench}:{function}", "--sanitize", *SMALL)
    assert ran.code == 1
    assert f"{kind}: " in ran.out
    assert "tensor 'X'" in ran.out
    assert f"{kind}: " in ran.out.splitlines()[0]
    assert any(line.startswith("FAILED  ") for line in ran.out.splitlines())
    document = json.loads(kernbench("run", "--bench", f"{user_bench}:{function}", "--sanitize", "--json", *SMALL).out)
    assert kind in {finding["kind"] for finding in document["findings"]}
    assert document["status"] == "FAILED"
    assert kernbench("run", "--bench", f"{user_bench}:{function}", *SMALL).code == 0


def test_what_the_host_reads_is_told_by_its_line(kernbench: Run, user_bench: str) -> None:
    """Copies that differ fail a comparison; elements that nobody wrote are found even where it is not evaluated."""
    bench = ("run", "--bench", f"{user_bench}:copies_differ", *SMALL)
    here = Path(user_bench).read_text().splitlines().index("    repr(x)") + 1
    assert kernbench(*bench).code == 0
    ran = kernbench(*bench, "--verify-data")
    assert ran.code == 1
    assert "FAIL X: 4 of 64 elements wrong, max error 3 absolute" in ran.out
    assert "the copies of 3 of 4 PEs are wrong: sip0.cube0.pe1, sip0.cube0.pe2, sip0.cube0.pe3" in ran.out
    ran = kernbench(*bench, "--sanitize")
    assert ran.code == 1
    assert f"copies: read at {user_bench}:{here + 1} of the host: the copies of tensor 'X' differ in 4 of 4" in ran.out
    assert f"unwritten: assert_close at {user_bench}:{here + 2} of the host reads 60 of 64 elements" in ran.out
    document = json.loads(kernbench(*bench, "--sanitize", "--verify-data", "--json").out)
    (comparison,) = [each for each in document["verification"]["comparisons"] if each["name"] == "X"]
    assert (comparison["pes"], comparison["wrong_pes"]) == (4, [[0, 0, 1], [0, 0, 2], [0, 0, 3]])
    found = {(each["kind"], each["side"]["line"] - here): each for each in document["findings"]}
    assert sorted(found) == [("copies", 1), ("copies", 2), ("unwritten", 2)]
    assert {each["side"]["file"] for each in found.values()} == {user_bench}
    assert found["copies", 1]["owners"] == [[0, 0, 1], [0, 0, 2], [0, 0, 3]]


def test_a_machine_without_memory_order_is_told_what_overtakes(kernbench: Run, user_bench: str) -> None:
    bench = ("run", "--bench", f"{user_bench}:overtake", "--sanitize", *SMALL)
    assert kernbench(*bench).code == 0
    ran = kernbench(*bench, "--set", "pe.dma.ordering=relaxed")
    assert ran.code == 1
    assert "inversion: load at line" in ran.out
    assert "which comes first in the program" in ran.out


PRINTING = """
def kernel(x, tl):
    tl.device_print("x is", tl.load(x, (1, 2), "f32"))

def run(torch):
    torch.launch("k", kernel, torch.full((1, 2), 3.0, dtype="f32"))
"""


def test_what_kernels_print_is_shown(tmp_path, capsys):
    path = tmp_path / "printing.py"
    path.write_text(PRINTING)
    assert main(["run", "--bench", str(path), "--verify-data"]) == 0
    assert "sip0.cube0.pe0: x is [[3. 3.]]" in capsys.readouterr().out
    assert main(["run", "--bench", str(path), "--no-data", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["printed"]
    assert (line["pe"], line["text"]) == ([0, 0, 0], "x is f32[1, 2]")


def test_a_deadlock_of_queues_names_who_waits_for_whom(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        """\
from kernbench.policy.placement.dp import DPPolicy

def receives(x_ptr, n, *, tl):
    tl.store(x_ptr, tl.recv("W", (n,), "f32"))

def run(torch):
    torch.install_ipcq(algorithm="ring_allreduce_tcm", world_size_override=8)
    x = torch.zeros(8, 16, dp=DPPolicy(pe="row_wise", num_cubes=1), name="x")
    torch.launch("receives", receives, x, 16)
"""
    )
    ran = kernbench("run", "--bench", "stuck.py")
    assert ran.code == 1
    assert "sip0.cube0.pe5: kernel 'receives' waits for a message of queue W, at line 4; no message from" in ran.err
    ring = " -> ".join(f"sip0.cube0.pe{pe}" for pe in (0, 7, 6, 5, 4, 3, 2, 1, 0))
    assert f"who waits for whom: {ring}" in ran.err
    assert "queue pairs" not in ran.err
    assert "Traceback" not in ran.err
    in_full = kernbench("run", "--bench", "stuck.py", "-v").err
    assert "sip0.cube0.pe0 W <-> sip0.cube0.pe7 E: my_head=0" in in_full


def test_energy(kernbench: Run) -> None:
    """--energy prints the tables of the energy; a machine without energies refuses it in one sentence."""
    ran = kernbench("run", "--bench", "hello-send", "--energy", "--no-observe", *SMALL)
    assert ran.code == 0
    assert "dynamic " in ran.out
    assert "not modelled" in ran.out
    refused = kernbench("run", "--bench", "hello-send", "--energy", "--set", "energy=null", *SMALL)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.splitlines()[-1].startswith("error: --energy: the energy of this machine is null")
