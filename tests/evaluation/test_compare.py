"""Two results side by side: what fits together, what differs, what changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import kernbench as kb
from ideal_memory import IDEAL
from kernbench.cli.main import main
from kernbench.common.errors import InputError
from kernbench.evaluation.compare_inputs import ResultFigures, ResultFile, read_compared
from kernbench.evaluation.compare_results import ResultComparison, compare_results
from kernbench.evaluation.compare_sentences import verdict
from kernbench.evaluation.sweep_driver import InlineWorker, run_sweep
from kernbench.evaluation.sweep_journal import JOURNAL_FILE, begin_journal
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.evaluation.sweep_measure import PointRow
from kernbench.evaluation.sweep_results import write_results
from kernbench.runtime_api.operators import ModuleUse
from kernbench.runtime_api.run_request import RunRequest

GRID = """\
bench: matmul-composite
set: { bench.k: 128, bench.n: 64, bench.variant: ref_ref, sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1 }
grid: { bench.m: [32, 64] }
plots: []
"""
EFFICIENCY = "cube.components.hbm_ctrl.attrs.efficiency"


def sweep(folder: Path, *overrides: str, grid: str = GRID) -> str:
    folder.mkdir()
    (folder / "grid.yaml").write_text(grid)
    plan = plan_sweep(folder / "grid.yaml", RunRequest.of(topology="default", overrides=overrides))
    with begin_journal(folder / JOURNAL_FILE, plan.identity(), plan.n_points) as journal:
        run_sweep(plan, journal, InlineWorker(), lambda _: None)
        write_results(folder, plan, journal)
    return str(folder)


@pytest.fixture(scope="module")
def slow_and_fast(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same sweep with HBM at 40 % and at 80 % of its rate."""
    folder = tmp_path_factory.mktemp("sweeps")
    return sweep(folder / "slow", *IDEAL, f"{EFFICIENCY}=0.4"), sweep(folder / "fast", *IDEAL, f"{EFFICIENCY}=0.8")


def result(ns: float, status: str = "ok", **configuration: Any) -> ResultFigures:
    return ResultFigures(configuration, {"status": status, "sim_ns": ns})


def file(axes: tuple[str, ...], *results: ResultFigures) -> ResultFile:
    return ResultFile("file", axes, results)


def test_the_work_of_modules_is_summed_by_hand() -> None:
    """A fused launch counts for the module around; a part's time is inside of all modules around it."""
    eager = (ModuleUse("0.norm", 1, 10.0), ModuleUse("0.act", 2, 20.0), ModuleUse("0", 1, 5.0), ModuleUse("", 1, 1.0))
    compiled = (ModuleUse("0", 1, 12.0, ("0.act",)), ModuleUse("0.norm", 1, 8.0), ModuleUse("01", 1, 2.0))
    before, after = (ResultFigures({}, {"status": "ok", "sim_ns": 36.0}, modules) for modules in (eager, compiled))
    comparison = compare_results(file((), before), file((), after))
    rows = {row.name: row for row in comparison.modules}
    assert list(rows) == ["0.norm", "0.act", "0", "", "01"]
    assert (rows["0"].launches, rows["0"].time.a_ns, rows["0"].time.b_ns) == ((1, 1), 5.0, 12.0)
    assert (rows["0"].inside.a_ns, rows["0"].inside.b_ns, rows["0"].covers) == (35.0, 20.0, ("0.act",))
    assert (rows["0.act"].launches, rows["0.act"].time.b_ns, rows["0.act"].has_parts) == ((2, 0), 0.0, False)
    assert (rows[""].inside.a_ns, rows[""].inside.b_ns) == (36.0, 22.0)
    assert sum(row.time.b_ns for row in rows.values()) == 22.0
    assert not compare_results(file((), before), file((), before)).modules
    lacking = compare_results(file((), before), file((), result(36.0)))
    assert lacking.modules == ()
    assert "B lacks the modules of its program, which A has: not compared" in lacking.unsaid


def test_a_parameter_that_one_side_does_not_have_is_absent_there() -> None:
    """As in results of another version; null is a value like others."""
    before, now = result(1.0, old=0, fifo=None), result(1.0, new="program", fifo=4)
    found = compare_results(file((), before), file((), now))
    assert [(each.path, each.a, each.b) for each in found.differing] == [
        ("old", (0,), ()),
        ("fifo", (None,), (4,)),
        ("new", (), ("program",)),
    ]
    assert "what differs: old 0 → absent; fifo null → 4; new absent → program" in verdict(found)


def test_a_parameter_and_the_stage_it_changed(slow_and_fast: tuple[str, str]) -> None:
    found = compare_results(*map(read_compared, slow_and_fast))
    assert [(each.path, each.a, each.b, each.unused) for each in found.differing] == [(EFFICIENCY, (0.4,), (0.8,), "")]
    assert (found.stages[0].name, found.moves[0].stages[0].name, found.unused) == ("HBM", "HBM", ())
    assert {pair.bounds for pair in found.pairs} == {("HBM", "HBM"), ("HBM", "latency: HBM")}
    for group in found.groups:
        assert group.bound.share == pytest.approx(-0.5)
        assert -0.5 < group.time.share < -0.25
    first, differs, latency, *verdicts, stages = verdict(found)
    assert re.match(r"B takes [\d,]+ ns less \(-\d+\.\d%\) over 2 points: .*bound by HBM in both.*; HBM −", first)
    assert differs == f"what differs: {EFFICIENCY} 0.4 → 0.8"
    assert latency.startswith("latency: run ")
    assert all(
        re.match(r"verdict: main launch at 1 point: bound by HBM in .*; bound -50.0%, time -\d", each)
        for each in verdicts
    )
    assert len(verdicts) == 2
    assert stages.startswith("stages, in ns: HBM −")


def test_what_the_energy_is_moved_by(tmp_path: Path) -> None:
    """Energies are named apart from the machine; groups that moved are listed, the largest first."""
    files = []
    for name, energy in (("a", {}), ("b", {"energy.mac_pj.f16": 0.36}), ("off", {"energy": None})):
        machine = kb.load_machine("one-cube", overrides=energy)
        run = kb.run("gemm-single-pe", machine, params={"m": 32, "k": 64, "n": 32}, observe=False)
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(run.to_dict()))
    sentences = verdict(compare_results(*map(read_compared, map(str, files[:2]))))
    assert "what differs: no parameter" in sentences
    assert "energies that differ: energy.mac_pj.f16 0.72 → 0.36" in sentences
    (moved,) = (sentence for sentence in sentences if sentence.startswith("dynamic energy: "))
    assert moved.endswith(": macs −0.0236")
    off = verdict(compare_results(*map(read_compared, map(str, (files[0], files[2])))))
    assert "B lacks the energy, which A has: not compared" in off
    assert "what differs: no parameter" in off


def test_what_the_bench_does_not_use(slow_and_fast: tuple[str, str], tmp_path: Path) -> None:
    """A machine with more of everything but what one PE uses takes as long, and the reason is told."""
    more = sweep(
        tmp_path / "more",
        *(*IDEAL, f"{EFFICIENCY}=0.4", "sip.cube_mesh.h=2", "sip.links.cube_to_cube.bw_gbs=64", "system.sips.count=2"),
        *("cube.components.sram.attrs.access_ns=99", "pe.math.startup_ns=99", "pe.gemm.macs_per_ns.i8=1"),
    )
    found = compare_results(read_compared(slow_and_fast[0]), read_compared(more))
    assert found.time.ns == 0
    unused = {each.path: each.unused for each in found.differing}
    assert unused == {
        "system.sips.count": "SIPs beyond 1",
        "sip.cube_mesh.h": "the mesh beyond cube 0",
        "sip.links.cube_to_cube.bw_gbs": "the mesh beyond cube 0",
        "cube.components.sram.attrs.access_ns": "SRAM",
        "pe.gemm.macs_per_ns.i8": "products of other types than f16",
        "pe.math.startup_ns": "MATH",
    }
    first, _, third, *_ = verdict(found)
    names = "SRAM, products of other types than f16, MATH, the mesh beyond cube 0"
    one = "SIPs beyond 1"
    assert first == f"B takes as long as A over 2 points: what differs, {names} and {one}, is not used by this bench"
    assert third == f"not used by this bench: {names}, {one}"


def test_what_is_used_but_holds_up_nothing(slow_and_fast: tuple[str, str], tmp_path: Path) -> None:
    wide = sweep(tmp_path / "wide", *IDEAL, f"{EFFICIENCY}=0.4", "pe.tcm.write_bw_gbs=512.0", "pe.tcm.bytes=24MiB")
    found = compare_results(read_compared(slow_and_fast[0]), read_compared(wide))
    assert found.unused == ()
    assert verdict(found)[0].startswith("B takes as long as A over 2 points: no difference is on the critical path; ")


def test_a_tie_that_appears(tmp_path: Path) -> None:
    """Fetch as slow as the matrix unit: the path moves between them, and the time hardly."""
    grid = GRID.replace("ref_ref", "load_load").replace("[32, 64]", "[128]")
    fast, even = (sweep(tmp_path / f"{gbs}", f"pe.tcm.read_bw_gbs={gbs}", grid=grid) for gbs in (640, 512))
    found = compare_results(read_compared(fast), read_compared(even))
    assert found.groups[0].bounds == ("latency: GEMM", "a tie of GEMM and fetch")
    assert {each.name for each in found.moves[0].stages} == {"fetch", "GEMM"}
    assert "bound by latency: GEMM in A and by a tie of GEMM and fetch in B; " in verdict(found)[0]
    assert verdict(found)[0].endswith(": the same wait")


def moved(a: dict[str, float], b: dict[str, float]) -> ResultComparison:
    """Compare runs whose paths spent these times on resources."""
    rows: list[PointRow] = [
        {"status": "ok", "sim_ns": sum(of.values())} | {f"run.resources.{name}_ns": ns for name, ns in of.items()}
        for of in (a, b)
    ]
    return compare_results(*(file((), ResultFigures({}, row)) for row in rows))


def test_stages_that_trade_places_are_one() -> None:
    found = moved({"hbm_access": 2000, "gemm": 100, "noc": 50}, {"hbm_access": 720, "gemm": 1412, "noc": 50})
    assert verdict(found)[0] == "B takes 32 ns more (+1.5%): GEMM +1,312 and HBM access −1,280: the same wait"
    assert [(move.change.name, move.change.ns) for move in found.moves] == [("GEMM and HBM access: the same wait", 32)]
    assert verdict(found)[-1] == "stages, in ns: GEMM +1,312 and HBM access −1,280: the same wait"


def test_a_stage_may_trade_places_with_several() -> None:
    found = moved({"hbm": 2000, "gemm": 100, "fetch": 10}, {"hbm": 500, "gemm": 1100, "fetch": 520})
    assert [[each.name for each in move.stages] for move in found.moves] == [["HBM", "GEMM", "fetch"]]


def test_another_main_launch_is_not_compared() -> None:
    rows: list[PointRow] = [
        {"status": "ok", "sim_ns": 100.0, "launch.name": name, "launch.ns": ns, "launch.bound": "HBM", "run.bound": run}
        for name, ns, run in (("x", 50.0, "HBM"), ("y", 20.0, "copies: host link"))
    ]
    said = verdict(compare_results(*(file((), ResultFigures({}, row)) for row in rows)))
    assert "latency: run 100 → 100 ns (as before); main launch x in A, y in B: 50 and 20 ns" in said
    assert any(each.startswith("verdict: run: most of A goes to HBM, of B to copies: host link") for each in said)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"host_link": 1000, "hbm": 100}, {"host_link": 100, "hbm": 1000}),  # copies never overlap with kernels
        ({"hbm": 1000, "gemm": 100}, {"hbm": 100, "gemm": 600}),  # more went than came
        ({"hbm": 1000, "gemm": 1000}, {"hbm": 100, "gemm": 100}),
    ],
)
def test_stages_that_do_not_trade_places(a: dict[str, float], b: dict[str, float]) -> None:
    assert [len(move.stages) for move in moved(a, b).moves] == [1, 1]


def test_the_changes_of_stages_add_up(slow_and_fast: tuple[str, str]) -> None:
    found = compare_results(*map(read_compared, slow_and_fast))
    assert sum(stage.ns for stage in found.stages) == pytest.approx(found.time.ns)
    assert sum(move.change.ns for move in found.moves) == pytest.approx(found.time.ns)
    assert found.stages[0].parts[0].name == "in its queues"
    assert [pair.time.ns for pair in found.pairs] == [
        pytest.approx(sum(m.change.ns for m in p.moves)) for p in found.pairs
    ]


def test_one_point_of_a_sweep(slow_and_fast: tuple[str, str]) -> None:
    slow, fast = (read_compared(f"{folder}/sweep.parquet:1") for folder in slow_and_fast)
    assert (len(slow.results), slow.axes, slow.results[0].configuration["bench.m"]) == (1, (), 64)
    assert len(compare_results(slow, fast).pairs) == 1
    assert len(compare_results(slow, read_compared(slow_and_fast[1])).pairs) == 1
    with pytest.raises(InputError, match="no point 2; the file has 0 to 1"):
        read_compared(f"{slow_and_fast[0]}/sweep.parquet:2")


def test_a_grid_may_say_256_and_a_machine_256_0(tmp_path: Path) -> None:
    bandwidth = "cube.links.xbar_to_hbm.bw_gbs"
    grid = GRID.replace("bench.m: [32, 64]", f"{bandwidth}: [256, 512]")
    whole = read_compared(sweep(tmp_path / "whole", grid=grid))
    real = read_compared(sweep(tmp_path / "real", grid=grid.replace("256, 512", "256.0, 512.0")))
    assert [pair.where for pair in compare_results(whole, real).pairs] == [((bandwidth, 256),), ((bandwidth, 512),)]


def test_equal_results(slow_and_fast: tuple[str, str]) -> None:
    found = compare_results(*[read_compared(slow_and_fast[0])] * 2)
    assert (found.time.ns, found.differing) == (0.0, ())
    assert verdict(found)[:2] == (
        "B takes as long as A over 2 points: no parameter differs",
        "what differs: no parameter",
    )


def test_points_are_matched_on_the_axes_of_both() -> None:
    a = file(("m", "e"), *(result(m * e, m=m, e=e) for m in (1, 2) for e in (3, 4)))
    b = file(("m",), *(result(m, m=m, e=4) for m in (1, 2, 5)))
    found = compare_results(a, b)
    assert [dict(pair.where) for pair in found.pairs] == [{"m": 1, "e": 4}, {"m": 2, "e": 4}]
    assert found.unmatched == (2, 1)


def test_points_are_matched_on_common_axes_where_others_never_agree() -> None:
    a = file(("m",), *(result(m, m=m, e=3) for m in (1, 2)))
    b = file(("m", "e"), *(result(m, m=m, e=4) for m in (1, 2)))
    assert [dict(pair.where) for pair in compare_results(a, b).pairs] == [{"m": 1}, {"m": 2}]


def test_failed_points_are_left_out() -> None:
    a = file(("m",), result(1, m=1), result(0, "failed", m=2))
    found = compare_results(a, a)
    assert found.unmatched == (1, 1)
    assert verdict(found)[1].startswith("left out of A: 1 of 2 points: 1 failed")
    with pytest.raises(InputError, match="failed on one side"):
        compare_results(a, file(("m",), result(0, "invalid", m=1)))


# --- results of earlier versions --------------------------------------------------------------------------------------


def run_file(folder: Path, name: str, sim_ns: float, **more: Any) -> str:
    """What ``kernbench run --json`` printed, as short as it gets, and ``more``."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"bench": "b", "sim_ns": sim_ns, "params": {}, "configuration": {}, **more}))
    return str(path)


def explained(total_ps: int, parts: dict[str, int], **more: Any) -> dict[str, Any]:
    path = {"total_ps": total_ps, "parts": [{"part": part, "ps": ps} for part, ps in parts.items()]}
    return {"critical_path": path, **more}


def test_a_run_that_says_little_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    roof = {"binding": "HBM", "bounds": [{"resource": "HBM", "ps": 5_000}]}
    whole = explained(8_000, {"GEMM": 8_000}, roofline=roof)
    old = run_file(tmp_path, "old", 10.0)
    new = run_file(
        tmp_path,
        "new",
        8.0,
        phases=[{"phase": "launch", "busy_ns": 8.0}],
        engines=[{"engine": "GEMM", "busy_ns": 7.0}],
        launches=[{"name": "gemm", "total_ns": 8.0, "kernel_ns": 7.0}],
        explanation={**whole, "launches": [whole]},
    )
    found = compare_results(read_compared(old), read_compared(new))
    assert (found.time.ns, found.stages, found.busy) == (-2.0, (), ())
    assert verdict(found) == (
        "B takes 2 ns less (-20.0%)",
        "A lacks a critical path, which B has: not compared",
        "A lacks the bottlenecks of launches, which B has: not compared",
        "A lacks the times of launches, which B has: not compared",
        "A lacks the times of phases, which B has: not compared",
        "A lacks the busy times of engines, which B has: not compared",
        "what differs: no parameter",
        "latency: run 10 → 8 ns (-20.0%)",
    )


def test_a_path_without_a_roofline_is_compared_by_stages(tmp_path: Path) -> None:
    """What an earlier version called otherwise is a stage too, so that stages still add up."""
    old = run_file(tmp_path, "old", 10.0, explanation=explained(10_000, {"GEMM": 7_000, "bank wait": 3_000}))
    new = run_file(tmp_path, "new", 8.0, explanation=explained(8_000, {"GEMM": 7_000, "memory queue": 1_000}))
    found = compare_results(read_compared(old), read_compared(new))
    stages = [(each.name, each.ns) for each in found.stages]
    assert stages == [("bank_wait", -3.0), ("memory queue", 1.0), ("GEMM", 0.0)]
    assert sum(each.ns for each in found.stages) == found.time.ns
    assert "A has parts of the critical path that this version does not know: bank_wait" in verdict(found)


def test_the_command_says_what_it_cannot_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (
        run_file(tmp_path, "old", 10.0),
        run_file(tmp_path, "new", 8.0, explanation=explained(8_000, {"GEMM": 8_000})),
    )
    assert main(["compare", old, new]) == 0
    assert "A lacks a critical path, which B has: not compared" in capsys.readouterr().out
    assert main(["compare", old, new, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unsaid"] == ["A lacks a critical path, which B has: not compared"]


def test_nothing_fits() -> None:
    a = file(("m",), *(result(m, m=m) for m in (1, 2)))
    with pytest.raises(InputError, match="no points match: file has 2 over m; file has 1 over no axis"):
        compare_results(a, file((), result(1, m=3)))


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none.parquet", None, "no such file"),
        ("x.parquet", "text", "cannot be read as Parquet"),
        ("x.json", "{", "not JSON"),
        ("x.json", "[]", "not an output of kernbench run --json"),
        ("x.json", '{"params": {}}', "not an output of kernbench run --json"),
        ("x.csv", "a,b", "cannot be read as Parquet"),
    ],
)
def test_files_that_are_no_results(tmp_path: Path, name: str, content: str | None, why: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=why):
        read_compared(str(tmp_path / name))


@pytest.mark.parametrize(
    ("sim_ns", "message"),
    [
        ('"5"', "not an output of kernbench run --json: sim_ns: found '5', must be a plain number, in ns"),
        ("null", "not an output of kernbench run --json: sim_ns: found nothing, must be a number"),
        ("NaN", "not JSON: found NaN, which JSON does not have"),
        ("1e999", "not JSON: found 1e999, which is too large for a number"),
    ],
)
def test_a_run_whose_time_is_no_number(tmp_path: Path, sim_ns: str, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(
        '{"bench": "b", "params": {}, "configuration": {}, "status": "OK", "phases": [], "engines": [], '
        f'"launches": [], "sim_ns": {sim_ns}}}'
    )
    with pytest.raises(InputError, match=message):
        read_compared(str(path))


def test_a_run_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"status": "FAILED", "error": "ValueError: no 48"}')
    with pytest.raises(InputError, match="the run ended with status 'FAILED': 'ValueError: no 48'; there is nothing"):
        read_compared(str(path))
