from __future__ import annotations

import pytest
from fake_engine import LAUNCH_NS, FakeEngine, no_kernel

from kernbench.common.config import ConfigModel
from kernbench.common.errors import BenchError, ConfigError, InputError, RunError, SimulationDeadlock
from kernbench.runtime_api.bench_registry import BenchRegistry
from kernbench.runtime_api.bench_runner import BenchStatus, run_bench
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.runtime_api.types import DeviceSelector


class Params(ConfigModel):
    size: int = 8


@pytest.fixture
def run(machine):
    def run(program, **options):
        given = {"engine_factory": lambda topology, device: FakeEngine(topology)} | options
        return run_bench(topology=machine, bench_fn=program, **given)

    return run


def ordinary(torch):
    x = torch.zeros(torch.params.size if isinstance(torch.params, Params) else 4, name="x")
    torch.launch("work", no_kernel, x)
    torch.testing.assert_close(x, [0.0] * len(x))
    return x.shape


def test_a_run_that_goes_well(run, machine):
    seen = []

    def factory(topology, device):
        seen.append((topology, device))
        return FakeEngine(topology)

    found = run(ordinary, engine_factory=factory, device="sip:1", correlation_id="c")
    assert seen == [(machine, DeviceSelector("sip:1"))]
    assert (found.status, found.ok, found.exit_code, found.error) == ("ok", True, 0, None)
    assert (found.value, found.device) == ((4,), "sip:1")
    assert [(each.phase, each.name, each.sip) for each in found.traces] == [
        ("map", "x", 1),
        ("init", "x", 1),
        ("launch", "work", 1),
        ("unmap", "x", 1),
    ]
    assert found.completion.ok
    assert found.engine.messages[0].correlation_id == "c"
    assert [each.name for each in found.cleanup.freed] == ["x"]


def test_the_summary_leaves_the_cleaning_up_out_of_the_time(run):
    found = run(ordinary)
    assert found.sim_ns == found.summary.sim_ns == 50 + LAUNCH_NS < found.engine.now
    kernel, *_ = found.summary.kernels
    assert (kernel.name, kernel.launches, kernel.total_ns, kernel.pe_count) == ("work", 1, LAUNCH_NS, 1)
    assert kernel.pe_exec_ns == LAUNCH_NS / 2
    assert [each.phase for each in found.summary.phases] == ["map", "init", "launch", "unmap"]
    assert found.summary.phases[1].nbytes == 16


def test_phases_count_the_time_in_which_something_was_under_way(run):
    def program(torch):
        x = torch.zeros(4)
        for work in [torch.launch("k", no_kernel, x, async_op=True) for _ in range(3)]:
            work.wait()

    (launch,) = (each for each in run(program).summary.phases if each.phase == "launch")
    assert (launch.requests, launch.busy_ns, launch.longest_ns) == (3, LAUNCH_NS, LAUNCH_NS)


def test_comparisons_decide_when_it_verifies(run):
    def program(torch):
        x = torch.ones(4, name="x")
        torch.testing.assert_close(x, [0.0] * 4)
        torch.testing.assert_close(x, [1.0] * 4)

    plain, verified = run(program, verify=False), run(program)
    assert (plain.status, plain.skipped_comparisons, plain.verified) == (BenchStatus.OK, 2, False)
    assert (verified.status, verified.skipped_comparisons, verified.verified) == ("FAILED", 0, True)
    assert [each.passed for each in verified.comparisons] == [False, True]
    assert verified.exit_code == 1
    assert verified.sim_ns == plain.sim_ns
    assert run(ordinary, verify=True).verified


def test_a_program_that_asks_for_nothing(run):
    found = run(lambda torch: None)
    assert (found.status, found.exit_code, found.completion.ok) == ("NO_REQUESTS", 1, False)
    with pytest.raises(RunError, match="submitted no request"):
        found.raise_for_status()
    evaluation = BenchRegistry().bench("sweep", "x", evaluation=True)(lambda torch: 5)
    found = run(evaluation)
    assert (found.status, found.value, found.bench) == ("ok", 5, "sweep")


@pytest.mark.parametrize(("error", "code"), [(ValueError("mine"), 1), (InputError("bad"), 2), (BenchError("b"), 2)])
def test_what_a_program_raises_is_in_the_result(run, error, code):
    def program(torch):
        torch.zeros(4, name="x")
        raise error

    found = run(program)
    assert (found.status, found.error, found.exit_code) == ("FAILED", error, code)
    assert [each.phase for each in found.traces] == ["map", "init", "unmap"]
    assert found.sim_ns == 50
    assert [each.name for each in found.cleanup.freed] == ["x"]


def test_a_kernel_that_fails_is_the_completion(run):
    def broken(x, *, tl):
        raise ZeroDivisionError

    def program(torch):
        x = torch.zeros(4)
        work = torch.launch("k", broken, x, async_op=True)
        torch.launch("k", no_kernel, x)
        work.wait()

    found = run(program, engine_factory=lambda topology, device: FakeEngine(topology, run_kernels=True))
    assert isinstance(found.error, ZeroDivisionError)
    assert not found.completion.ok


def test_a_deadlock_is_a_failed_run(run):
    found = run(lambda torch: torch.launch("never", no_kernel, torch.zeros(1)))
    assert isinstance(found.error, SimulationDeadlock)
    assert found.status == "FAILED"


def test_ranks_that_fail_are_a_failed_run(run):
    def program(torch):
        torch.multiprocessing.spawn(lambda rank: 1 // (1 - rank), nprocs=2)

    found = run(program)
    assert (found.status, found.exit_code) == ("FAILED", 1)
    assert isinstance(found.error, SpawnException)
    assert isinstance(found.error.errors[1], ZeroDivisionError)


def test_ranks_that_were_given_bad_input_are_a_failed_run_too(run):
    found = run(lambda torch: torch.multiprocessing.spawn(lambda rank: torch.zeros(0), nprocs=2))
    assert (found.status, found.exit_code) == ("FAILED", 2)
    assert isinstance(found.error.errors[0], InputError)


def test_ranks_that_nobody_joined_are_part_of_the_run(run):
    def program(torch):
        torch.multiprocessing.spawn(lambda rank: torch.launch("k", no_kernel, torch.zeros(4)), join=False)

    found = run(program)
    assert found.ok
    assert found.sim_ns == 50 + LAUNCH_NS


def test_an_interruption_is_the_callers(run):
    def program(torch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(program)


def test_parameters_reach_the_program(run):
    bench = BenchRegistry().bench("sized", "x", params=Params)(ordinary)
    assert run(bench).value == (8,)
    assert run(bench, params=["bench.size=16"]).value == (16,)
    assert run(bench, params=Params(size=32)).params.size == 32
    with pytest.raises(ConfigError, match="unknown key"):
        run(bench, params=["bench.sise=1"])
    with pytest.raises(BenchError, match="takes Params, not ConfigModel"):
        run(bench, params=ConfigModel())


def test_input_that_cannot_be_used_comes_out(run):
    with pytest.raises(InputError, match="is no device"):
        run(ordinary, device="sip")
    with pytest.raises(InputError, match="there are: all, sip:0, sip:1"):
        run(ordinary, device="sip:7")
    with pytest.raises(InputError, match="enable_data=True"):
        run(ordinary, verify=True, engine_factory=lambda topology, device: FakeEngine(topology, enable_data=False))
    with pytest.raises(BenchError, match="not a bench or a function"):
        run("gemm")
