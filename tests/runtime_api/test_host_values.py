"""What the host hands over, as it is at that time: one copy of it, or none, and made when it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from machines import working_machine

from kernbench.common.data_policy import DataPolicy
from kernbench.common.dtypes import F16, F32, I32
from kernbench.common.errors import NoDataError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import BenchRegistry, load_bench
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.factories import DEFAULT_SEED
from kernbench.runtime_api.tensor import KnownValues
from kernbench.runtime_api.transfers import HeldValues, LaterArray, snapshot

WHOLE = (slice(None),)
ROUNDS = """\
def add(y, n, *, tl):
    tl.store(y, tl.load(y, n, "f32") + 16.0)

def run(torch):
    y, rounds = torch.zeros(16, name="y"), 0
    while y.numpy().max() < 100 and rounds < 20:
        torch.launch("add", add, y, 16)
        rounds += 1
    return f"{rounds} rounds"
"""


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=5)), st.booleans())
def test_a_snapshot_is_what_the_array_was(array: np.ndarray[Any, Any], across: bool) -> None:
    seen = np.broadcast_to(array, (3, *array.shape)) if across else array[::-1]
    before = seen.copy()
    kept = snapshot(seen)
    array[...] = 7
    assert kept.tobytes() == before.tobytes()
    assert not kept.flags.writeable


def test_a_number_repeated_is_kept_once() -> None:
    kept = snapshot(np.broadcast_to(np.zeros(()), (1000, 1000)))
    whole: Any = kept
    while whole.base is not None:
        whole = whole.base
    assert whole.nbytes == 8


def test_an_array_that_nobody_can_change_is_not_copied() -> None:
    constant = np.arange(8, dtype=np.float32)
    constant.flags.writeable = False
    assert snapshot(constant) is constant
    held = HeldValues(constant, (8,), F32)
    assert np.shares_memory(held.window(WHOLE).array(), constant)
    # A read-only view of an array that its owner can change is copied.
    view = np.arange(8.0)[2:]
    view.flags.writeable = False
    assert not np.shares_memory(snapshot(view), view)


def test_elements_are_made_once_for_all_windows_and_counted_once() -> None:
    made = []
    later = HeldValues(LaterArray((4, 2), lambda: made.append(1) or np.ones((4, 2))), (4, 2), F16)
    windows = [later.window((slice(at, at + 2), slice(None))) for at in (0, 2)]
    assert ([each.nbytes for each in windows], made) == ([8, 8], [])
    assert [each.array().view(np.float16).tolist() for each in windows] == [[1, 1, 1, 1]] * 2
    assert made == [1]
    held = HeldValues(np.ones((4, 2)), (4, 2), F16)
    assert [held.window((slice(at, at + 2), slice(None))).take_held_bytes() for at in (0, 2)] == [64, 0]


def test_copies_of_a_tensor_share_one_array() -> None:
    def program(torch: Any) -> None:
        everywhere = DPPolicy(cube="replicate", pe="replicate")
        x = torch.empty(1 << 16, dp=everywhere, name="x").copy_(np.ones(1 << 16, np.float32))
        assert len(x.shards) == 8
        assert (x.numpy() == 1).all()

    # One copy of 256 KiB, and as many commands as there are messages.
    result = run_bench(topology=working_machine(), bench_fn=program, data=DataPolicy(most_bytes=(256 + 32) << 10))
    assert result.error is None


def test_draws_are_made_when_they_are_read_in_the_order_of_the_draws() -> None:
    stream = np.random.Generator(np.random.PCG64(DEFAULT_SEED))
    expected = [stream.standard_normal(shape, np.float32) for shape in ((3,), (100,), (5,))]

    def program(torch: Any) -> None:
        drawn = [torch.randn(3), torch.randn(100), torch.randn(5)]
        assert (drawn[2].numpy() == expected[2]).all()
        drawn[1].free()
        assert (drawn[0].numpy() == expected[0]).all()

    result = run_bench(topology=working_machine(), bench_fn=program)
    assert result.error is None, result.error


def test_a_run_that_reads_nothing_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("drawn")

    monkeypatch.setattr("kernbench.runtime_api.factories.RandomStream._draw", refuse)
    result = run_bench(topology=working_machine(), bench_fn=lambda torch: torch.randn(8), verify=False)
    assert result.error is None, result.error


@pytest.mark.parametrize(("zeros", "rounds"), [(False, "7 rounds"), (True, "20 rounds")])
def test_a_loop_over_values_ends_when_they_say(tmp_path: Any, zeros: bool, rounds: str) -> None:
    (tmp_path / "loop.py").write_text(ROUNDS)
    result = run_bench(
        topology=working_machine(),
        bench_fn=load_bench(str(tmp_path / "loop.py")),
        data=DataPolicy(keep=not zeros, zeros=zeros),
        verify=False,
    )
    assert result.value == rounds


def test_a_value_that_is_not_there_is_an_error_at_its_line(tmp_path: Any) -> None:
    (tmp_path / "loop.py").write_text("data = False\n" + ROUNDS)
    result = run_bench(topology=working_machine(), bench_fn=load_bench(str(tmp_path / "loop.py")))
    assert isinstance(result.error, NoDataError)
    assert result.exit_code == 1
    assert result.place is not None
    assert result.place.line is not None
    assert (result.place.line.file, result.place.line.line) == (str(tmp_path / "loop.py"), 7)


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("def run(torch): ...", True),
        ("data = False\ndef run(torch): ...", False),
        ("data = True\ndef run(torch): ...", True),
        ("import numpy as np\ndata = np.zeros(3)\ndef run(torch): ...", True),
        (
            "from kernbench.runtime_api.bench_registry import bench\n"
            "@bench('says-no', 'reads nothing', data=False)\ndef run(torch): ...",
            False,
        ),
        (
            "from kernbench.runtime_api.bench_registry import bench\n"
            "data = False\n@bench('module-says-no', 'reads nothing')\ndef run(torch): ...",
            False,
        ),
    ],
)
def test_what_a_bench_says_of_data(tmp_path: Any, text: str, keeps: bool) -> None:
    (tmp_path / "own.py").write_text(text)
    assert load_bench(str(tmp_path / "own.py"), BenchRegistry()).data is keeps


def test_a_bench_that_says_no_keeps_nothing_unless_it_is_verified() -> None:
    def program(torch: Any) -> None:
        torch.testing.assert_close(torch.ones(4), np.ones(4))

    registry = BenchRegistry()
    bench = registry.bench("quiet", "reads nothing", data=False)(program)
    unasked, verified = (
        run_bench(topology=working_machine(), bench_fn=bench, verify=verify) for verify in (None, True)
    )
    assert (unasked.data.kept, unasked.verified, unasked.skipped_comparisons) == (False, False, 1)
    assert (verified.data.kept, verified.verified, verified.ok) == (True, True, True)


def test_known_values_follow_the_host_until_a_kernel_writes() -> None:
    def program(torch: Any) -> None:
        known, ids, other = KnownValues(), torch.zeros(8, dtype=I32), torch.zeros(8, dtype=I32)
        known.put(ids, 0, np.arange(4))  # a part of what nobody knows
        assert known.of(ids) is None
        known.put(ids, 0, np.arange(8))
        known.put(other, 0, np.arange(8))
        known.put(ids, 2, np.array([9]))
        found = known.of(ids)
        assert found is not None
        assert found.tolist() == [0, 1, 9, 3, 4, 5, 6, 7]
        known.forget_range(1, ids.va, ids.va + 4, known.n_writes)  # of another SIP
        known.forget_range(0, ids.va + ids.nbytes, ids.va + ids.nbytes + 4, known.n_writes)
        assert known.of(ids) is not None
        known.forget_range(0, ids.va + 28, ids.va + 32, known.n_writes - 1)  # of a launch before the last write
        assert known.of(ids) is not None
        known.forget_range(0, ids.va + 28, ids.va + 32, known.n_writes)
        assert known.of(ids) is None
        assert known.of(other) is not None

    result = run_bench(topology=working_machine(), bench_fn=program)
    assert result.error is None, result.error
