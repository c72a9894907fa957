"""What a run keeps for phase 2: until somebody reads, or there is too much of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiled import compiled
from kernbench.common.data_policy import KEEP_BYTES, DataPolicy
from kernbench.common.errors import InputError, NoDataError
from kernbench.core.log import Log
from kernbench.engine.engine import GraphEngine
from kernbench.engine.keeping import COMMAND_BYTES, Keeping
from kernbench.engine.recorder import Recorder
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.run_request import DataOptions
from kernbench.runtime_api.transfers import LaterArray
from kernbench.topology.builder import Topology

SMALL = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=1")


@pytest.fixture(scope="module")
def small() -> Topology:
    return compiled(*SMALL)


def sums(x: int, n: int, rounds: int, *, tl: Any) -> None:
    """Add one to n elements, so many times."""
    a = tl.load(x, n, "f32")
    for _ in range(rounds):
        a = a + 1.0
    tl.store(x, a)


def run(small: Topology, program: Any, policy: DataPolicy) -> Any:
    return run_bench(topology=small, bench_fn=program, data=policy, verify=False)


def computing(rounds: int) -> Any:
    def program(torch: Any) -> None:
        torch.launch("sums", sums, torch.zeros(64, name="x"), 64, rounds)

    return program


def test_what_nobody_reads_is_not_computed(small: Topology) -> None:
    made = []

    def program(torch: Any) -> None:
        torch.empty(64).copy_(LaterArray((64,), lambda: made.append(1) or np.ones(64)))
        computing(3)(torch)

    result = run(small, program, DataPolicy())
    assert (result.data.values_read, result.data.operations, made) == (0, 0, [])
    assert str(result.data) == "data: no value was read, so nothing was computed"


def test_what_is_read_is_counted(small: Topology) -> None:
    def program(torch: Any) -> None:
        x = torch.zeros(64, name="x")
        torch.launch("sums", sums, x, 64, 2)
        assert x[3].item() == 2.0
        assert (x.numpy() == 2.0).all()
        repr(x)

    data = run(small, program, DataPolicy()).data
    # The fill, the load, two sums, the store.
    assert (data.values_read, data.operations) == (1 + 64 + 64, 5)
    assert str(data).startswith("data: 129 values read; 5 operations computed")


@pytest.mark.parametrize("rounds", [10, 200])
def test_commands_past_the_limit_end_the_keeping_and_change_no_time(small: Topology, rounds: int) -> None:
    kept, limited = (
        run(small, computing(rounds), policy) for policy in (DataPolicy(), DataPolicy(most_bytes=100 * COMMAND_BYTES))
    )
    assert (limited.data.kept, bool(limited.data.stopped)) == ((True, False) if rounds == 10 else (False, True))
    assert limited.ok
    assert (limited.sim_ns, limited.engine.n_events) == (kept.sim_ns, kept.engine.n_events)


def sends(x: int, n: int, rounds: int, *, tl: Any) -> None:
    """PE 0 sends what it adds up to PE 1, in every round."""
    for _ in range(rounds):
        if tl.program_id(0) == 0:
            tl.send("E", tl.load(x, n, "f32") + 1.0)
        else:
            tl.store(x + n * 4, tl.recv("W", n, "f32"))


def exchanging(rounds: int) -> Any:
    def program(torch: Any) -> None:
        torch.install_ipcq("ring_allreduce_tcm", world_size_override=2)
        x = torch.empty(2, 64, dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2))
        torch.launch("sends", sends, x, 64, rounds)

    return program


@pytest.mark.parametrize("commands", range(10, 32, 3))
def test_the_log_of_a_run_that_stopped_keeping_is_that_of_one_without_data(small: Topology, commands: int) -> None:
    """Whatever is under way into the log when the limit is reached: a load, a sum, a message, a store."""
    policies = DataPolicy(keep=False), DataPolicy(most_bytes=commands * COMMAND_BYTES)
    without, stopped = (run(small, exchanging(8), policy).engine for policy in policies)
    assert stopped.data_report().stopped
    assert list(stopped.op_log) == list(without.op_log)
    # What was kept before is let go of: names and sizes are left.
    whats = [{type(each) for each in engine.machine.log.whats} for engine in (without, stopped)]
    assert whats[1] <= whats[0]


def test_what_was_printed_before_keeping_stopped_reads_as_without_data(small: Topology) -> None:
    def prints(x: int, *, tl: Any) -> None:
        a = tl.load(x, 64, "f32")
        tl.device_print("a is", a)
        for _ in range(20):
            a = a + 1.0
        tl.device_print("then", a, 20)

    def program(torch: Any) -> None:
        torch.launch("prints", prints, torch.zeros(64))

    stopped = run(small, program, DataPolicy(most_bytes=12 * COMMAND_BYTES)).engine
    assert stopped.data_report().stopped
    assert [line.text for line in stopped.printed()] == ["a is f32[64]", "then f32[64] 20"]


def test_reading_past_the_limit_says_when_it_was_reached_and_what_to_do(small: Topology) -> None:
    def program(torch: Any) -> None:
        x = torch.zeros(64, name="weights")
        torch.launch("sums", sums, x, 64, 200)
        x.numpy()

    error = run(small, program, DataPolicy(most_bytes=1024)).error
    assert isinstance(error, NoDataError)
    assert str(error).startswith("tensor 'weights': there is no value to read: keeping stopped at ")
    assert str(error).endswith("simulated, past 1 KiB unread (--keep); give a larger --keep, or --data")


def test_what_was_read_counts_no_longer(small: Topology) -> None:
    """A loop that looks at its result never has more than one round unread."""

    def program(torch: Any) -> None:
        x = torch.zeros(64, name="x")
        for _ in range(20):
            torch.launch("sums", sums, x, 64, 10)
            x[0].item()
        assert x[0].item() == 200.0

    result = run(small, program, DataPolicy(most_bytes=30 * COMMAND_BYTES))
    assert result.error is None
    assert result.data.kept


def test_arrays_of_the_host_count_with_what_they_hold(small: Topology) -> None:
    mib = 1 << 20

    def stops(tensors: int, most: int) -> bool:
        def program(torch: Any) -> None:
            data = np.ones(mib // 4, np.float32)
            for _ in range(tensors):
                torch.empty(mib // 4).copy_(data)

        return bool(run(small, program, DataPolicy(most_bytes=most)).data.stopped)

    assert not stops(2, 2 * mib + 16 * COMMAND_BYTES)
    assert stops(3, 2 * mib + 16 * COMMAND_BYTES)


def test_arrays_of_the_host_that_were_replayed_count_no_longer(small: Topology) -> None:
    """A loop that hands over an array and reads it never has more than one array unread."""
    mib = 1 << 20

    def program(torch: Any) -> None:
        x = torch.empty(mib // 4, name="x")
        for number in range(4):
            x.copy_(np.full(mib // 4, number, np.float32))
            assert x[0].item() == number

    result = run(small, program, DataPolicy(most_bytes=mib + 16 * COMMAND_BYTES))
    assert result.error is None
    assert (result.data.kept, result.data.stopped) == (True, "")


def test_arrays_of_the_host_end_the_keeping_by_themselves() -> None:
    """They count when they are handed over, before a command that would look at the limit."""
    recorder = Recorder(Log(), keep_data=True)
    dropped: list[str] = []
    keeping = Keeping(DataPolicy(most_bytes=100), recorder, recorder.log, lambda: 7000, lambda: dropped.append("all"))
    keeping.hold(100)
    assert (keeping.keeps, recorder.keep_data, dropped) == (True, True, [])
    keeping.hold(1)
    assert (keeping.keeps, recorder.keep_data, dropped) == (False, False, ["all"])
    assert keeping.stopped == "keeping stopped at 7.00 ns simulated, past 100 B unread (--keep)"
    keeping.hold(1)
    assert dropped == ["all"]


@pytest.mark.parametrize("host_bytes", [0, 1, COMMAND_BYTES - 1, COMMAND_BYTES, 3 * COMMAND_BYTES])
@pytest.mark.parametrize("most_bytes", [0, COMMAND_BYTES - 1, COMMAND_BYTES, 3 * COMMAND_BYTES])
@pytest.mark.parametrize("replayed", [0, 5])
def test_keeping_stops_once_what_is_unread_is_past_the_limit(replayed: int, most_bytes: int, host_bytes: int) -> None:
    log = Log()
    recorder = Recorder(log, keep_data=True)
    keeping = Keeping(DataPolicy(most_bytes=most_bytes), recorder, log, lambda: 0, lambda: None)
    log.whats += ["replayed"] * replayed
    keeping.note_replay()
    keeping.hold(host_bytes)
    n_commands = 0
    while n_commands * COMMAND_BYTES + host_bytes <= most_bytes:
        assert keeping.keeps, n_commands
        assert recorder.most_commands > len(log.whats)
        log.whats.append("a command")
        n_commands += 1
    assert keeping.keeps == (host_bytes <= most_bytes)
    assert recorder.most_commands <= len(log.whats)


@pytest.mark.parametrize(
    ("source", "held"),
    [
        (np.broadcast_to(np.float32(1), (1 << 18,)), 4),
        (LaterArray((1 << 18,), lambda: np.ones(1 << 18, np.float32)), 0),
    ],
    ids=["repeated", "later"],
)
def test_what_is_made_when_read_holds_nothing(small: Topology, source: Any, held: int) -> None:
    def program(torch: Any) -> None:
        x = torch.empty(1 << 18).copy_(source)
        assert (x.numpy() == 1).all()

    assert run(small, program, DataPolicy(most_bytes=held + 16 * COMMAND_BYTES)).error is None


def test_without_data_reading_is_refused_and_moving_is_not(small: Topology) -> None:
    def program(torch: Any) -> None:
        x, y = torch.ones(8, name="x"), torch.zeros(8, name="y")
        y.copy_(x)
        y[:4] = x[4:] if torch.has_data else 1
        torch.tensor(x)
        repr(y)
        x.numpy()

    result = run(small, program, DataPolicy(keep=False))
    assert isinstance(result.error, NoDataError)
    assert "tensor 'x': this run keeps no data" in str(result.error)
    assert "--no-data --zeros" in str(result.error)


def test_zeros_are_read_where_they_are_asked_for(small: Topology) -> None:
    def program(torch: Any) -> None:
        x = torch.ones(8, name="x")
        assert x.numpy().sum() == 0
        assert x[2].item() == 0

    result = run(small, program, DataPolicy(keep=False, zeros=True))
    assert result.error is None
    assert str(result.data) == "data: none was kept; 9 values read as zeros"


def test_moving_takes_the_same_time_with_data_and_without(small: Topology) -> None:
    def program(torch: Any) -> None:
        x, y = torch.ones(64, name="x"), torch.zeros(64, name="y")
        y.copy_(x)
        torch.tensor(x)

    times = {run(small, program, policy).sim_ns for policy in (DataPolicy(), DataPolicy(keep=False))}
    assert len(times) == 1


def test_a_policy_that_contradicts_itself() -> None:
    with pytest.raises(InputError, match="reads its values, not zeros"):
        DataPolicy(zeros=True)
    with pytest.raises(InputError, match="at least 0"):
        DataPolicy(most_bytes=-1)


def test_an_engine_without_data_refuses_raw_reads(small: Topology) -> None:
    engine = GraphEngine(small, enable_data=False)
    with pytest.raises(NoDataError, match="the 4 bytes at 0x"):
        engine.read_memory(1 << 37, 4)
    with pytest.raises(NoDataError, match="memory_store: this run keeps no data"):
        _ = engine.memory_store


@pytest.mark.parametrize(
    ("options", "asked", "expected"),
    [
        ({}, {}, DataPolicy(most_bytes=KEEP_BYTES)),
        ({}, {"bench": False}, DataPolicy(keep=False)),
        ({"verify": True}, {"bench": False}, DataPolicy()),
        ({"data": True}, {"bench": False}, DataPolicy()),
        ({"data": True, "keep": "2MiB"}, {}, DataPolicy(most_bytes=2 << 20)),
        ({"keep": "2MiB", "share": 4}, {}, DataPolicy(most_bytes=1 << 19)),
        ({"share": 4}, {}, DataPolicy(most_bytes=KEEP_BYTES // 4)),
        ({}, {"sanitize": True}, DataPolicy()),
        ({"data": False}, {}, DataPolicy(keep=False)),
        ({"data": False, "zeros": True}, {}, DataPolicy(keep=False, zeros=True)),
    ],
)
def test_what_the_user_says_becomes_a_policy(options: Any, asked: Any, expected: DataPolicy) -> None:
    assert DataOptions(**options).policy(**asked) == expected


@pytest.mark.parametrize(
    ("options", "asked", "message"),
    [
        ({"data": False, "verify": True}, {}, "--no-data and --verify-data, which needs data"),
        ({"data": False}, {"sanitize": True}, "--no-data and --sanitize, which needs data"),
        ({"zeros": True}, {}, "give --no-data --zeros"),
        ({"data": True, "zeros": True}, {}, "give --no-data --zeros"),
        ({"data": False, "keep": "1MiB"}, {}, "--keep limits the stored data"),
        ({"keep": "1MiB"}, {"sanitize": True}, "leave --keep out"),
        ({"keep": "lots"}, {}, "lots"),
    ],
)
def test_options_that_contradict_each_other(options: Any, asked: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DataOptions(**options).policy(**asked)
