"""The sanitizer on what the host reads: elements that nobody wrote, and copies that differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from engine_support import machine, two_cubes
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import KernelRef
from kernbench.observe.findings import Finding
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from observed import findings, sanitized

FOUR = DPPolicy(num_pes=4, num_cubes=1)
Context = RuntimeContext[Any]


@pytest.fixture
def engine() -> GraphEngine:
    return sanitized(two_cubes())


@pytest.fixture
def torch(engine: GraphEngine) -> Iterator[Context]:
    with RuntimeContext(engine) as context:
        yield context


def only(engine: GraphEngine) -> Finding:
    """The one finding of a run."""
    (finding,) = findings(engine)
    return finding


def store(x_ptr: int, value: float, n: int, dtype: str, *, tl: Any) -> None:
    tl.store(x_ptr, tl.full((n,), value, dtype))


def store_mine(x_ptr: int, step: float, n: int, *, tl: Any) -> None:
    tl.store(x_ptr, tl.full((n,), 1 + step * tl.program_id(0), "f32"))


# --- elements that nobody wrote ---------------------------------------------------------------------------------------

READS: dict[str, Callable[[Context, Any], object]] = {
    "numpy": lambda _, x: x.numpy(),
    "cpu": lambda _, x: x.cpu(),
    "tolist": lambda _, x: x.tolist(),
    "array": lambda _, x: np.asarray(x),
    "equal": lambda _, x: x == 0,
    "index": lambda _, x: x[:],
    "mask": lambda _, x: x[np.ones(64, bool)],
    "assert_close": lambda torch, x: torch.testing.assert_close(x, np.zeros(64)),
    "expected": lambda torch, x: torch.testing.assert_close(np.zeros(64, np.float16), x),
    "lazily expected": lambda torch, x: torch.testing.assert_close(np.zeros(64, np.float16), lambda: x),
    "source": lambda torch, x: torch.zeros(64).copy_(x),
}


@pytest.mark.parametrize("how", READS)
def test_four_of_64_elements_that_no_kernel_wrote(torch: Context, engine: GraphEngine, how: str) -> None:
    """They are zeros, so comparing with zeros passes."""
    x = torch.empty(64, dtype="f16", name="x")
    torch.launch("store", store, x, 0.0, 60, "f16")
    assert findings(engine) == ()
    READS[how](torch, x)
    finding = only(engine)
    assert (finding.kind, finding.tensor, finding.nbytes, finding.count) == ("unwritten", "x", 8, 1)
    assert "4 of 64 elements of tensor 'x' that nobody wrote, the first [60] (sip0.cube0.pe0, " in str(finding)
    assert (finding.address, finding.owners) == (x.shards[0].pa + 120, ((0, 0, 0),))
    line = READS[how].__code__.co_firstlineno
    assert (finding.side.file, finding.line) == (__file__, line)
    assert f"{__file__}:{line} of the host" in str(finding)
    assert finding.t_end_ns <= engine.now


def test_item(torch: Context, engine: GraphEngine) -> None:
    torch.empty(1, name="x").item()
    assert "1 of 1 elements of tensor 'x'" in str(only(engine))


def test_who_only_looks_is_told_nothing(torch: Context, engine: GraphEngine) -> None:
    x = torch.empty(64, dp=FOUR, name="x")
    torch.launch("mine", store_mine, x, 1.0, 4)
    assert "mean=" in repr(x)
    x.peek()
    assert findings(engine) == ()


def test_what_writes_all(torch: Context, engine: GraphEngine) -> None:
    whole = np.ones((5, 6), np.float32)
    spread = DPPolicy("row_wise", "column_wise")
    made = [
        torch.zeros(5, 6, dp=spread),
        torch.ones(5, 6, dp=DPPolicy()),
        torch.full((5, 6), 3, dp=spread),
        torch.empty(5, 6, dp=spread).copy_(whole),
        torch.empty(5, 6, dp=spread).fill_(2),
        torch.tensor(whole, dp=spread).clone(),
        torch.randn(5, 6, dp=DPPolicy("row_wise")).reshape(30),
        torch.arange(30),
    ]
    for each in made:
        each.numpy()
        torch.testing.assert_close(each, each)
    assert findings(engine) == ()


def test_an_update_writes_its_elements_only(torch: Context, engine: GraphEngine) -> None:
    x = torch.empty(4, 6, dp=DPPolicy("row_wise", "column_wise"), name="x")
    x[1:3, ::2] = 1.0
    x[1:3, ::2]
    x[2, 4].item()
    assert findings(engine) == ()
    x[:, 2]
    assert "2 of 4 elements of tensor 'x' that nobody wrote, the first [0, 2]" in str(only(engine))
    x[2]
    assert "3 of 6 elements of tensor 'x' that nobody wrote, the first [2, 1]" in str(findings(engine)[1])


def test_only_what_the_program_asks_for_counts(torch: Context, engine: GraphEngine) -> None:
    """Steps and lists of indices bring more elements to the host than they give."""
    x = torch.empty(16, name="x")
    x[::4] = 1.0
    x[::4]
    x[[0, 4, 4]]
    x[None, 8:0:-4]
    assert findings(engine) == ()
    x[[0, 5, 5]]
    assert "1 of 2 elements of tensor 'x' that nobody wrote, the first [5]" in str(only(engine))


def test_part_of_an_element_is_not_enough(torch: Context, engine: GraphEngine) -> None:
    x = torch.empty(4, name="x")
    torch.launch("store", store, x, 1.0, 3, "f16")
    x.numpy()
    assert "3 of 4 elements of tensor 'x' that nobody wrote, the first [1]" in str(only(engine))


def test_the_first_is_that_of_the_tensor_and_its_place_its_own(torch: Context, engine: GraphEngine) -> None:
    """PE 0 has the first column written and [1, 0] not; PE 1 has nothing: [0, 1] comes before."""
    x = torch.empty(2, 2, dp=DPPolicy(pe="column_wise", num_cubes=1, num_pes=2), name="x")
    x[0, 0] = 1.0
    x.numpy()
    assert "3 of 4 elements of tensor 'x' that nobody wrote, the first [0, 1] (sip0.cube0.pe1, " in str(only(engine))


def test_a_view_under_another_shape(torch: Context, engine: GraphEngine) -> None:
    x = torch.empty(8, 3, dp=DPPolicy("row_wise", "row_wise", num_pes=2), name="x")
    x[:7] = 0.0
    x.reshape(4, 6)[3, 1:]
    finding = only(engine)
    assert "3 of 5 elements of tensor 'x' that nobody wrote, the first [3, 3]" in str(finding)
    assert finding.owners == ((0, 1, 1),)


def test_memory_of_a_tensor_that_was_freed(torch: Context, engine: GraphEngine) -> None:
    old = torch.ones(16, name="old")
    at = old.shards[0].pa
    old.free()
    new = torch.empty(16, name="new")
    assert new.shards[0].pa == at
    new.numpy()
    torch.launch("load", load, new)
    found = {(each.kernel, each.tensor, each.nbytes) for each in findings(engine)}
    assert found == {("", "new", 64), ("load", "new", 64)}
    new.fill_(1)
    new.numpy()
    assert len(findings(engine)) == 2


def load(x_ptr: int, *, tl: Any) -> None:
    tl.wait(tl.load(x_ptr, (16,), "f32"))


def test_memory_of_an_earlier_context() -> None:
    engine = sanitized(two_cubes())
    for fill in (True, False):
        with RuntimeContext(engine) as torch:
            (torch.ones if fill else torch.empty)(16, name="x").numpy()
    assert only(engine).nbytes == 64


def test_a_loop_is_one_finding(torch: Context, engine: GraphEngine) -> None:
    x, y = torch.empty(4, name="x"), torch.empty(4, name="y")
    for each in (x, x, y):
        each.numpy()
    assert [(each.tensor, each.count) for each in findings(engine)] == [("x", 2), ("y", 1)]


def test_ranks_are_told_too() -> None:
    engine = sanitized(machine("system.sips.count=2", "sip.cube_mesh={w: 1, h: 1}"))

    def rank_program(rank: int, torch: Context) -> None:
        torch.ahbm.set_device(rank)
        x = torch.empty(8, name=f"x{rank}")
        x[: 7 + rank] = 1.0
        x.numpy()

    with RuntimeContext(engine) as torch:
        torch.multiprocessing.spawn(rank_program, (torch,), 2)
    finding = only(engine)
    assert "1 of 8 elements of tensor 'x0' that nobody wrote, the first [7]" in str(finding)
    assert finding.line == rank_program.__code__.co_firstlineno + 4


def test_comparisons_that_are_not_evaluated_are_looked_at(engine: GraphEngine) -> None:
    with RuntimeContext(engine, verify=False) as torch:
        x = torch.empty(4, name="x")
        assert torch.testing.assert_close(x, lambda: 1 / 0) is None
        assert torch.testing.assert_close(np.zeros(4), x) is None
    assert [each.count for each in findings(engine)] == [1, 1]
    assert {each.side.action for each in findings(engine)} == {"assert_close"}


def test_it_costs_no_time() -> None:
    def run(engine: GraphEngine) -> float:
        with RuntimeContext(engine) as torch:
            x = torch.empty(64, dp=FOUR)
            torch.launch("mine", store_mine, x, 1.0, 4)
            torch.testing.assert_close(x, np.zeros(64))
            x.numpy()
        return engine.now

    assert run(sanitized(two_cubes())) == run(GraphEngine(two_cubes()))


# --- copies that differ -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["numpy", "index", "assert_close", "expected", "equal"])
@pytest.mark.parametrize("verify", [False, True])
def test_copies_that_differ(engine: GraphEngine, how: str, *, verify: bool) -> None:
    with RuntimeContext(engine, verify=verify) as torch:
        x = torch.zeros(64, dtype="f32", dp=FOUR, name="x")
        torch.launch("mine", store_mine, x, 1.0, 16)
        assert findings(engine) == ()
        READS[how](torch, x)
    finding = only(engine)
    assert (finding.kind, finding.tensor, finding.nbytes) == ("copies", "x", 64)
    assert finding.owners == ((0, 0, 1), (0, 0, 2), (0, 0, 3))
    assert (finding.line, finding.side.file) == (READS[how].__code__.co_firstlineno, __file__)
    assert "the copies of tensor 'x' differ in 16 of 64 elements: at [0] sip0.cube0.pe1 (" in str(finding)
    assert "holds 2, the first copy, on sip0.cube0.pe0, 1; " in str(finding)
    assert "of 3 of 4 PEs: sip0.cube0.pe1, sip0.cube0.pe2, sip0.cube0.pe3" in str(finding)


def test_rounding_is_no_difference(torch: Context, engine: GraphEngine) -> None:
    x = torch.zeros(16, dp=FOUR, name="x")
    torch.launch("mine", store_mine, x, 2.0**-22, 16)
    x.numpy()
    torch.testing.assert_close(x, np.ones(16))
    assert findings(engine) == ()


def test_a_comparison_has_its_own_tolerance(torch: Context, engine: GraphEngine) -> None:
    x = torch.zeros(16, dp=FOUR, name="x")
    torch.launch("mine", store_mine, x, 2.0**-8, 16)
    torch.testing.assert_close(x, np.ones(16), rtol=0.1)
    assert findings(engine) == ()
    torch.testing.assert_close(x, np.ones(16), rtol=1e-3)
    assert only(engine).owners == ((0, 0, 1), (0, 0, 2), (0, 0, 3))
    torch.launch("mine", store_mine, x, 2.0**-22, 16)
    torch.testing.assert_close(x, np.ones(16), rtol=0, atol=0)
    assert len(findings(engine)) == 2


@pytest.mark.parametrize(
    ("dtype", "first", "other", "differ"),
    [
        ("f32", math.nan, math.nan, False),
        ("f32", 1.0, math.nan, True),
        ("f32", math.nan, 1.0, True),
        ("f16", math.inf, math.inf, False),
        ("f16", math.inf, 60000.0, True),
        ("f32", 0.0, -0.0, False),
        ("i32", 1 << 30, (1 << 30) + 1, True),
        ("i8", 3, 3, False),
        ("bf16", 1.0, 1 + 2**-7, False),
    ],
)
def test_numbers_of_all_kinds(
    torch: Context, engine: GraphEngine, dtype: str, first: float, other: float, *, differ: bool
) -> None:
    def store_two(x_ptr, first, other, dtype, *, tl):
        tl.store(x_ptr, tl.full((4,), other if tl.program_id(0) == 2 else first, dtype))

    x = torch.empty(4, dtype=dtype, dp=FOUR, name="x")
    torch.launch("two", store_two, x, first, other, dtype)
    x.numpy()
    assert [each.owners for each in findings(engine)] == [((0, 0, 2),)] * differ


def test_a_copy_that_nobody_wrote(torch: Context, engine: GraphEngine) -> None:
    """Reading is of the first copy, which is written; the others differ since they are not. A comparison is of all."""

    def first_only(x_ptr, *, tl):
        if tl.program_id(0) == 0:
            tl.store(x_ptr, tl.full((4,), 1.0, "f32"))

    x = torch.empty(4, dp=FOUR, name="x")
    torch.launch("first", first_only, x)
    x.numpy()
    assert only(engine).kind == "copies"
    assert "sip0.cube0.pe1 (" in str(only(engine))
    assert "holds 0, which nobody wrote, the first copy, on sip0.cube0.pe0, 1" in str(only(engine))
    torch.testing.assert_close(x, np.ones(4))
    unwritten = next(each for each in findings(engine) if each.kind == "unwritten")
    assert unwritten.side.action == "assert_close"
    assert "4 of 4 elements of tensor 'x' that nobody wrote, the first [0] (sip0.cube0.pe1, " in str(unwritten)


def test_only_copies_of_what_the_program_asks_for_count(torch: Context, engine: GraphEngine) -> None:
    """Rows are split over PEs, and cube 1 has another [5, 1] than cube 0."""

    def spoil(x_ptr, *, tl):
        if (tl.program_id(1), tl.program_id(0)) == (1, 2):
            tl.store(x_ptr + (5 * 3 + 1) * 4, tl.full((1,), 9.0, "f32"))

    x = torch.zeros(16, 3, dp=DPPolicy("replicate", "row_wise"), name="x")
    torch.launch("spoil", spoil, x)
    x[:5]
    x[5, ::2]
    x[[4, 6]]
    assert findings(engine) == ()
    x[4:, 1:]
    finding = only(engine)
    assert "differ in 1 of 24 elements: at [5, 1] sip0.cube1.pe2 (" in str(finding)
    assert "of 1 of 12 PEs: sip0.cube1.pe2" in str(finding)
    assert finding.address == next(each for each in x.shards if (each.cube, each.pe) == (1, 2)).pa + 16
    x.reshape(48)[10:20]
    assert "differ in 1 of 10 elements: at [16] sip0.cube1.pe2 (" in str(findings(engine)[1])


# --- memory that is used again


def test_memory_is_unwritten_after_the_launches_in_a_queue_that_use_it(engine: GraphEngine, torch: Context) -> None:
    def copy(x: int, y: int, *, tl: Any) -> None:
        tl.store(y, tl.load(x, 64, "f16"))

    x, y = torch.zeros(64, dtype="f16"), torch.zeros(64, dtype="f16")
    kernel = KernelRef(name="copy", function=copy)
    works = [torch.launch_on("copy", ((0, 0, 0),), kernel, x, y, in_order=True) for _ in range(3)]
    x.renew()
    for work in works:
        work.wait()
    assert not findings(engine)
    x.numpy()
    assert (only(engine).kind, only(engine).kernel) == ("unwritten", "")
