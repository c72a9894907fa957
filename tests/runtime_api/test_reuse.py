"""Runs that reuse launches: what passes, what is simulated, and what reports count."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import kernbench as kb
from compiled import SPREAD
from engine_support import two_cubes
from kernbench.common.data_policy import DataPolicy
from kernbench.common.dtypes import F32
from kernbench.common.errors import AbandonedError, InputError
from kernbench.core.log import Kind
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import KernelLaunchMsg, KernelRef
from kernbench.observe import critical_path
from kernbench.observe.statistics import link_traffic
from kernbench.observe.trace import make_trace
from kernbench.observe.trace_filter import TraceFilter
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api import long_collectives
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.collective_pes import collective_pes
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.runtime_api.launch_report import report_run
from kernbench.runtime_api.launch_times import DEVIATIONS
from kernbench.runtime_api.reuse import CheckedLaunch
from kernbench.runtime_api.run_request import ReuseRules
from kernbench.triton_emu.tl_context import TLContext as Tl

NO_DATA = DataPolicy(keep=False)
PES = DPPolicy("replicate", "row_wise", num_pes=2)
N = 12


def double(x, n, *, tl: Tl):
    """Double ``n`` elements of each PE's shard."""
    at = x + tl.program_id(0) * n * 4
    block = tl.load(at, (n,), "f32")
    tl.store(at, block + block)


def double_aloud(x, n, *, tl: Tl):
    """Double, and print."""
    tl.device_print("doubled", n)
    double(x, n, tl=tl)


def repeated(torch: RuntimeContext[Any], kernel: Callable[..., None] = double) -> None:
    """Launch a kernel several times on tensors of one kind."""
    for at in range(N):
        torch.launch(f"double {at}", kernel, torch.empty(512, dp=PES), 256)


def run(program: Callable[..., object], rules: ReuseRules | None = None, *changes: str) -> BenchResult:
    """Run a program without data on two cubes, with a spread refresh."""
    rules = ReuseRules() if rules is None else rules
    result = run_bench(topology=two_cubes(SPREAD, *changes), bench_fn=program, data=NO_DATA, reuse=rules)
    result.raise_for_status()
    return result


def all_simulated(program: Callable[..., object]) -> BenchResult:
    """Run a program without reuse."""
    result = run_bench(topology=two_cubes(SPREAD), bench_fn=program, data=NO_DATA)
    result.raise_for_status()
    return result


def passed(result: BenchResult) -> int:
    """Return the number of launches that passed."""
    return len(result.engine.machine.passed.launches)


@pytest.fixture(scope="module")
def reused() -> BenchResult:
    return run(repeated)


@pytest.fixture(scope="module")
def simulated() -> BenchResult:
    return all_simulated(repeated)


def test_launches_pass_and_take_the_time_of_their_samples(reused, simulated):
    assert passed(reused) >= N // 2
    assert reused.sim_ns == pytest.approx(simulated.sim_ns, rel=1e-3)
    assert reused.engine.n_events < 0.8 * simulated.engine.n_events


def test_links_carry_as_many_bytes_for_as_long(reused, simulated):
    links, expected = (
        {(link.src, link.dst): (link.nbytes, link.busy_ns) for link in result.links} for result in (reused, simulated)
    )
    assert links.keys() == expected.keys()
    for ends, (nbytes, busy_ns) in links.items():
        assert nbytes == expected[ends][0], ends
        assert busy_ns == pytest.approx(expected[ends][1], rel=1e-3), ends


def test_engines_worked_as_often_and_as_long(reused, simulated):
    engines, expected = (
        {usage.engine: (usage.pes, usage.records, usage.busy_ns) for usage in report_run(result.engine).engines}
        for result in (reused, simulated)
    )
    assert {engine: usage[:2] for engine, usage in engines.items()} == {
        engine: usage[:2] for engine, usage in expected.items()
    }
    for engine, (_, _, busy_ns) in engines.items():
        assert busy_ns == pytest.approx(expected[engine][2], rel=1e-2), engine


def test_tables_say_how_many_launches_passed(reused):
    launches = report_run(reused.engine).launches
    assert len(launches) == N
    assert sum(launch.passed for launch in launches) == passed(reused)
    skipped = next(launch for launch in launches if launch.passed)
    assert (skipped.launches, skipped.pe_count) == (1, 4)
    assert skipped.kernel_ns > 0
    kernels = {kernel.name: kernel for kernel in reused.summary.kernels}
    assert kernels[skipped.name].pe_count == 4


def test_a_passed_launch_has_one_row_on_the_device(reused):
    columns = reused.engine.machine.log.columns()
    rows = columns.kind == Kind.PASSED
    assert sorted(columns.launch[rows]) == sorted(reused.engine.machine.passed.launches)
    begins_and_ends = [reused.engine.machine.log.on_device[launch] for launch in columns.launch[rows].tolist()]
    assert begins_and_ends == list(zip(columns.start[rows].tolist(), columns.end[rows].tolist(), strict=True))


def test_a_run_without_reuse_has_no_report(simulated):
    with RuntimeContext(GraphEngine(two_cubes(SPREAD), NO_DATA)) as torch:
        assert torch.reuse is None
    assert passed(simulated) == 0


def report_of(program: Callable[..., object], rules: ReuseRules) -> Any:
    """Return the report of a run of a program."""
    with RuntimeContext(GraphEngine(two_cubes(SPREAD), NO_DATA), reuse=rules) as torch:
        program(torch)
        return torch.reuse.report(round(torch.engine.now * 1000))


def test_the_report_names_the_error_and_the_checks():
    report = report_of(repeated, ReuseRules(samples=3, check=8))
    assert (report.launches, report.kinds, report.simulated + report.passed) == (N, 1, N)
    assert (report.varied, report.largest) == (0, "")
    assert 2 <= report.checked <= 8
    assert abs(report.check_error) <= report.error + 1e-3
    assert str(report).startswith(f"reuse: {N} launches of 1 kinds, {report.simulated} simulated; kinds whose samples ")
    assert f"run ± 0.0%; by {report.checked} checked launches " in str(report)


def test_checks_tell_by_how_much_the_time_is_too_long():
    """Two launches of 100 ps were foreseen with 110 and 130 ps, so the time of all that passed is a fifth too long."""
    engine = GraphEngine(two_cubes(SPREAD), NO_DATA)
    with RuntimeContext(engine, reuse=ReuseRules(check=0)) as torch:
        repeated(torch)
        torch.reuse.checks.extend(CheckedLaunch(foreseen_ps, 100) for foreseen_ps in (110, 130))
        run_ps = round(engine.now * 1000)
        report = torch.reuse.report(run_ps)
    log, launches = engine.machine.log, engine.machine.passed.launches
    share = sum(end - begin for begin, end in (log.on_device[launch] for launch in launches)) / run_ps
    assert 0 < share < 1
    assert report.check_error == pytest.approx(0.2 * share)
    assert report.check_range == pytest.approx(DEVIATIONS * (2 * 0.1**2) ** 0.5 * share)


def test_kernels_that_print_are_simulated():
    assert passed(run(lambda torch: repeated(torch, double_aloud))) == 0


def test_launches_behind_maps_of_new_memory_pass():
    def program(torch):
        pes = tuple((0, cube, pe) for cube in range(2) for pe in range(2))
        for at in range(N):
            slab = torch.slab(1 << 20, F32, PES, 0, pes)
            torch.launch(f"double {at}", double, torch.take(slab, f"x{at}"), 256)

    assert passed(run(program)) >= N // 2


def test_launches_in_flight_together_are_no_samples_and_do_not_pass():
    def program(torch):
        tensors = [torch.empty(512, dp=PES) for _ in range(N)]
        for work in [torch.launch("double", double, x, 256, async_op=True) for x in tensors]:
            work.wait()

    assert passed(run(program)) == 0


def test_a_launch_behind_a_passed_launch_waits_for_its_end():
    def program(torch):
        repeated(torch)
        x = torch.empty(512, dp=PES)
        for work in [torch.launch("double", double, x, 256, async_op=True) for _ in range(2)]:
            work.wait()

    result = run(program)
    first, second = [handle.request_id for handle in result.engine.handles if handle.msg.name == "double"]
    log, skipped = result.engine.machine.log, result.engine.machine.passed.launches
    assert {first, second} <= skipped
    assert log.on_device[second][0] == log.on_device[first][1]


def test_abandoned_launches_stop_passing():
    engine = GraphEngine(two_cubes(SPREAD), NO_DATA)
    with RuntimeContext(engine, reuse=ReuseRules()) as torch:
        repeated(torch)
        x = torch.empty(512, dp=PES)
        torch.launch("double", double, x, 256, async_op=True)
        handle = engine.handles[-1]
        while handle.request_id not in engine.machine.log.on_device:
            engine.run_until(engine.now + 1)
        assert handle.request_id in engine.machine.passed.launches
        engine.abandon([handle])
        assert isinstance(handle.outcome.error, AbandonedError)
        torch.requests.forget()


def test_several_sips_have_samples_of_their_own():
    def program(torch):
        for _ in range(N):
            tensors = []
            for sip in (0, 1):
                torch.ahbm.set_device(sip)
                tensors.append(torch.empty(512, dp=PES))
            torch.launch("double", double, tensors, 256)

    result = run(program, None, "system.sips.count=2")
    assert passed(result) >= N
    links = {(link.src, link.dst): link.nbytes for link in link_traffic(result.engine.machine)}
    assert links["sip0.cube0.pe0.pe_dma", "sip0.cube0.xbar_NW"] == links["sip1.cube0.pe0.pe_dma", "sip1.cube0.xbar_NW"]


def test_a_sample_of_another_sip_confirms_the_only_one_of_a_sip():
    def program(torch):
        for _ in range(2):
            for sip in (0, 1):
                torch.ahbm.set_device(sip)
                torch.launch("double", double, torch.empty(512, dp=PES), 256)

    result = run(program, None, "system.sips.count=2")
    simulated = [h for h in result.engine.handles if h.msg.title == "double"]
    skipped = result.engine.machine.passed.launches
    assert [handle.request_id in skipped for handle in simulated] == [False, False, True, True]
    spans = [result.engine.machine.log.on_device[handle.request_id] for handle in simulated]
    assert spans[2][1] - spans[2][0] == pytest.approx(spans[0][1] - spans[0][0], rel=0.01)


def test_samples_of_another_duration_confirm_none():
    """A launch behind the map of its memory takes a tenth longer, so neither kind stands for the other."""

    def program(torch):
        pes = tuple((0, cube, pe) for cube in range(2) for pe in range(2))
        for at in range(2):
            x = torch.take(torch.slab(1 << 20, F32, PES, 0, pes), f"x{at}")
            torch.launch("behind a map", double, x, 256)
            torch.launch("alone", double, x, 256)
        durations.extend(kind.times.durations[0] for kind in torch.reuse.kinds)

    durations: list[int] = []
    assert passed(run(program)) == 0
    behind_map, alone = durations
    assert behind_map > 1.05 * alone


@pytest.mark.parametrize(
    ("rules", "words"),
    [({"samples": 0}, "--reuse-samples: found 0, must be at least 1"), ({"check": -1}, "--reuse-check: found -1")],
)
def test_rules_out_of_range_are_refused(rules, words):
    with pytest.raises(InputError, match=words):
        ReuseRules(**rules)


def test_the_library_and_documents_report_the_reuse(tmp_path):
    run = kb.run(repeated, kb.load_machine("one-cube"), data=False, reuse=True)
    assert run.reuse.passed > 0
    (tmp_path / "run.json").write_text(json.dumps(run.to_dict()))
    assert kb.load(tmp_path / "run.json").reuse == run.reuse
    assert "reuse" not in kb.run(repeated, kb.load_machine("one-cube"), data=False).to_dict()
    with pytest.raises(InputError, match="--reuse is for runs without data"):
        kb.run(repeated, kb.load_machine("one-cube"), reuse=True)


def test_look_ups_of_passed_launches_are_those_of_their_samples():
    tlb = "pe.mmu={page_bytes: 4096, tlb_entries: 4, tlb_miss_ns: 100}"

    def program(torch):
        x = torch.empty(512, dp=PES)
        for _ in range(N):
            torch.launch("double", double, x, 256)

    results = [
        run_bench(topology=two_cubes(SPREAD, tlb), bench_fn=program, data=NO_DATA, reuse=rules)
        for rules in (None, ReuseRules())
    ]
    assert passed(results[1]) >= N // 2
    simulated, reused = (report_run(result.engine).translation for result in results)
    assert simulated.hits > simulated.misses > 0
    # The first sample misses, the second one hits, so half of the launches that passed count as each.
    assert reused.hits + reused.misses == simulated.hits + simulated.misses
    samples = N - passed(results[1])
    assert reused.misses == simulated.misses * (1 + passed(results[1]) / samples)


def test_launches_beside_one_on_several_sips_are_no_samples():
    def nothing(*, tl: Tl):
        """Run no command."""

    def program(torch):
        tensors = []
        for sip, n in enumerate((1 << 15, 32)):
            torch.ahbm.set_device(sip)
            tensors.append(torch.empty(n, dp=PES))
        spread = KernelLaunchMsg(
            kernel=KernelRef(name="spread", function=nothing), args=(), targets=((0, 0, 3), (1, 0, 3))
        )
        for _ in range(6):
            long = torch.launch("long", double, tensors[0], 1 << 14, async_op=True)
            torch.launch("short", double, tensors[1], 16)
            (beside,) = torch.requests.submit_together([spread])
            torch.requests.wait([beside])
            long.wait()

    result = run(program, None, "system.sips.count=2")
    titles = {handle.request_id: handle.msg.title for handle in result.engine.handles}
    assert {titles[launch] for launch in result.engine.machine.passed.launches} <= {"short"}


def test_links_from_the_host_count_each_order_once():
    runs = [kb.run(repeated, kb.load_machine("one-cube"), data=False, reuse=reuse) for reuse in (False, True)]
    amounts, expected = ({bound.resource: bound.amount for bound in run.explain().roof.bounds} for run in runs)
    for link in ("host link", "IO chiplet links"):
        assert amounts[link] == expected[link]


def test_traces_mark_passed_launches():
    run = kb.run(repeated, kb.load_machine("one-cube"), data=False, reuse=True)
    names = [span.name for span in make_trace(run.live.log, run.live.engine.handles, TraceFilter()).spans]
    assert sum(name.endswith("(passed)") for name in names) == run.reuse.passed


def test_sweeps_reuse_launches():
    sweep = kb.sweep(repeated, "one-cube", grid={"cube.hbm.refresh": ["spread", "none"]}, reuse=True)
    assert all(row["reuse.passed"] > 0 for row in sweep.results.rows)


def test_energy_counts_the_work_of_passed_launches():
    simulated, reused = (
        kb.run(repeated, kb.load_machine("one-cube"), data=False, reuse=reuse, observe=False) for reuse in (False, True)
    )
    assert reused.reuse.passed > 0
    works, expected = ({(w.place, w.work): w.count for w in run.energy.work} for run in (reused, simulated))
    assert works.keys() == expected.keys()
    rows = {key for key in works if key[1] == "rows opened in HBM"}  # a row may have been open before
    assert {key: works[key] for key in works.keys() - rows} == {key: expected[key] for key in works.keys() - rows}
    assert reused.energy.pj == pytest.approx(simulated.energy.pj, rel=0.01)


def test_launches_that_passed_have_the_energy_of_their_samples():
    def program(torch):
        for at in range(N):
            torch.launch(f"double {at % 2}", double, torch.empty(1 << 16, dp=PES), 1 << 15)

    simulated, reused = (
        kb.run(program, kb.load_machine("one-cube"), data=False, reuse=reuse) for reuse in (False, True)
    )
    assert reused.reuse.passed > N // 2
    split, expected = reused.energy.split, simulated.energy.split
    assert split.launches_pj == pytest.approx(expected.launches_pj, rel=0.02)
    energies = {launch.name: (launch.launches, launch.pj) for launch in split.launches}
    for launch in expected.launches:
        assert energies[launch.name] == (N // 2, pytest.approx(launch.pj, rel=0.02)), launch.name


def test_a_long_collective_has_the_energy_of_all_of_it(monkeypatch):
    def program(torch):
        def worker(rank):
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group(backend="ahbm")
            pes = collective_pes(frontend_settings(["torch.comm=same"]).torch, torch.topology)
            torch.distributed.on(pes).all_reduce(torch.empty(1 << 18, dp=DPPolicy(pe="row_wise", num_cubes=1)))

        torch.multiprocessing.spawn(worker, nprocs=2)

    monkeypatch.setattr(long_collectives, "SIMULATED_BYTES", 32 << 10)
    machine = kb.load_machine("default", overrides={"system.sips.count": 2, "sip.cube_mesh": {"w": 2, "h": 1}})
    simulated, reused = (kb.run(program, machine, data=False, reuse=reuse) for reuse in (False, True))
    assert reused.reuse.extended == 2
    assert reused.energy.pj == pytest.approx(simulated.energy.pj, rel=0.02)
    assert reused.energy.split.launches_pj == pytest.approx(simulated.energy.split.launches_pj, rel=0.03)


def test_paths_end_where_samples_are_nested_too_deep(monkeypatch):
    def path_times():
        run = kb.run(repeated, kb.load_machine("one-cube"), data=False, reuse=True)
        assert run.reuse.passed > 0
        return {spent.part: spent.ps for spent in run.explain().path.parts}

    divided = path_times()
    monkeypatch.setattr(critical_path, "_MOST_NESTED", 0)
    undivided = path_times()
    assert sum(undivided.values()) == sum(divided.values())
    assert undivided.get("not traced further", 0) > divided.get("not traced further", 0)
