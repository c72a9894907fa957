"""Kernels in Triton's language on a PE: what its operations compute, and what is refused, with its line."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from extras import need
from kernbench.common.errors import InputError, LimitReached, NoDataError
from kernbench.common.program_line import place_of
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

need("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import kernbench.triton  # noqa: E402
from kernbench.frontends.triton.running import programs_of  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
Array = np.ndarray[Any, Any]
N = 16
LINE = np.arange(N)


def run_on_machine(
    kernel: Any,
    *inputs: Array,
    grid: Any = (1,),
    pes: int = 1,
    data: bool = True,
    limits: Limits = Limits(),  # noqa: B008
    **constants: Any,
) -> Array:
    """What ``kernel`` leaves in its last argument, N elements of f32."""
    with RuntimeContext(engine=GraphEngine(MACHINE, enable_data=data, limits=limits)) as torch:
        dp = DPPolicy(pe="row_wise", num_pes=pes, num_cubes=1)
        device = [torch.empty(*x.shape, dtype=x.dtype, dp=dp, name=f"x{i}").copy_(x) for i, x in enumerate(inputs)]
        out = torch.zeros(N, dtype="f32", dp=dp, name="out")
        kernel[grid](*device, out, **constants)
        found: Array = out.numpy()
        return found


@triton.jit
def elementwise(x_ptr, y_ptr, out_ptr, WHICH: tl.constexpr):
    at = tl.arange(0, 16)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    if WHICH == "mixed":  # data, what is the same everywhere, and what is not
        z = x * 2 + at - tl.where(at < 8, y, 1.0)
    elif WHICH == "math":
        z = tl.exp2(x) + tl.log(tl.abs(y) + 1) + tl.sqrt(tl.abs(x)) + tl.sigmoid(y) + tl.floor(x) + tl.erf(y)
    elif WHICH == "bounds":
        z = tl.clamp(tl.fma(x, y, 1.0), -1.0, 1.0) + tl.minimum(x, y) + tl.maximum(x, 0.0) + tl.rsqrt(y * y + 1)
    elif WHICH == "integers":
        i = (x * 10).to(tl.int32)
        z = (i // 3 + i % 3 + (i & 7) + (i << 2) + (i >> 1) - (i ^ 5)).to(tl.float32)
    elif WHICH == "masks":
        both = (x > 0) & (y > 0) | (at == 3)
        z = both.to(tl.float32) + tl.where(x > y, x, y) + tl.where(x > 0, 1, 0)
    elif WHICH == "narrow":
        z = (x.to(tl.bfloat16) * 1.5 + tl.full([16], 0.25, tl.bfloat16)).to(tl.float32) + y.to(tl.float16).to(
            tl.float32
        )
    tl.store(out_ptr + at, z)


@triton.jit
def zeros_of_both_signs(out_ptr):
    at = tl.arange(0, 16)
    tl.store(out_ptr + at, tl.where(at < 8, 0.0, -0.0))


def narrowed(x: Array, y: Array) -> Array:
    bf16 = ml_dtypes.bfloat16
    product = (x.astype(bf16).astype(np.float32) * np.float32(1.5)).astype(bf16)
    return (product.astype(np.float32) + 0.25).astype(bf16).astype(np.float32) + y.astype(np.float16)


def integers(x: Array, _: Array) -> Array:
    i = (x * 10).astype(np.int32)
    quotient = np.trunc(i / 3).astype(np.int32)
    return quotient + np.fmod(i, 3) + (i & 7) + (i << 2) + (i >> 1) - (i ^ 5)


ERF = np.vectorize(erf)
ELEMENTWISE: dict[str, Callable[[Array, Array], Array]] = {
    "mixed": lambda x, y: x * 2 + LINE - np.where(LINE < 8, y, 1),
    "math": lambda x, y: (
        np.exp2(x) + np.log(np.abs(y) + 1) + np.sqrt(np.abs(x)) + 1 / (1 + np.exp(-y)) + np.floor(x) + ERF(y)
    ),
    "bounds": lambda x, y: np.clip(x * y + 1, -1, 1) + np.minimum(x, y) + np.maximum(x, 0) + 1 / np.sqrt(y * y + 1),
    "integers": integers,
    "masks": lambda x, y: (((x > 0) & (y > 0)) | (LINE == 3)) + np.maximum(x, y) + (x > 0),
    "narrow": narrowed,
}
X, Y = np.random.default_rng(0).standard_normal((2, N)).astype(np.float32)


@pytest.mark.parametrize("which", ELEMENTWISE)
def test_elementwise(which: str) -> None:
    np.testing.assert_allclose(run_on_machine(elementwise, X, Y, WHICH=which), ELEMENTWISE[which](X, Y), rtol=2e-6)


def test_zeros_of_both_signs_are_two_numbers() -> None:
    assert np.signbit(run_on_machine(zeros_of_both_signs)).tolist() == [False] * 8 + [True] * 8


@triton.jit
def shapes(x_ptr, out_ptr, WHICH: tl.constexpr):
    rows, columns = tl.arange(0, 4), tl.arange(0, 4)
    x = tl.load(x_ptr + rows[:, None] * 4 + columns[None, :])
    if WHICH == "dot":
        z = tl.dot(x, x.T) + tl.dot(tl.trans(x), x, acc=x)
    elif WHICH == "transposed":
        z = tl.trans(x) + 1
    elif WHICH == "permuted":
        z = tl.permute(tl.reshape(x, (2, 2, 4)), (2, 0, 1)).reshape(4, 4)
    elif WHICH == "broadcast":
        z = tl.sum(x, 1)[:, None] + tl.max(x, 0)[None, :] + tl.sum(x) - tl.min(x, 1, keep_dims=True)
    elif WHICH == "places":
        z = (tl.argmax(x, 1)[:, None] * 4 + tl.argmin(x, 0)[None, :]).to(tl.float32)
    elif WHICH == "running":
        z = tl.cumsum(x, 0) + tl.cumsum(x, 1)
    elif WHICH == "swapped":
        tl.store(out_ptr + rows[:, None] * 4 + columns[None, :], x.T)
        return
    tl.store(out_ptr + rows[:, None] * 4 + columns[None, :], z)


S = X.reshape(4, 4)
SHAPES = {
    "dot": S @ S.T + S.T @ S + S,
    "transposed": S.T + 1,
    "permuted": S.reshape(2, 2, 4).transpose(2, 0, 1),
    "broadcast": S.sum(1)[:, None] + S.max(0)[None, :] + S.sum() - S.min(1)[:, None],
    "places": S.argmax(1)[:, None] * 4 + S.argmin(0)[None, :],
    "running": S.cumsum(0) + S.cumsum(1),
    "swapped": S.T,
}


@pytest.mark.parametrize("which", SHAPES)
def test_shapes(which: str) -> None:
    np.testing.assert_allclose(run_on_machine(shapes, X, WHICH=which), SHAPES[which].reshape(-1), rtol=1e-5, atol=1e-6)


@triton.jit
def memory(x_ptr, out_ptr, n, WHICH: tl.constexpr):
    at = tl.arange(0, 16)
    if WHICH == "reversed":
        tl.store(out_ptr + at, tl.load(x_ptr + (15 - at)))
    elif WHICH == "holes":
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at % 3 == 1, other=-5.0), mask=at < n)
    elif WHICH == "other":
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n, other=at.to(tl.float32)))
    elif WHICH == "nothing":
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < 0, other=3.0))
        tl.store(out_ptr + at, 7.0, mask=at > 99)
    elif WHICH == "order":
        tl.store(out_ptr + at, tl.load(x_ptr + at))
        tl.store(out_ptr + at, tl.load(out_ptr + at) + 1)
        tl.store(out_ptr + 4 + at, 9.0, mask=at < 2)
    elif WHICH == "scattered":
        tl.store(out_ptr + (at * 7) % 16, tl.load(x_ptr + at) * 2)
    elif WHICH == "descriptor":
        block = tl.make_tensor_descriptor(x_ptr, shape=[3, 4], strides=[4, 1], block_shape=[4, 4])
        tl.make_tensor_descriptor(out_ptr, [4, 4], [4, 1], [4, 4]).store([0, 0], block.load([0, 0]))


def scattered() -> Array:
    out = np.zeros(N, np.float32)
    out[(LINE * 7) % 16] = X * 2
    return out


MEMORY = {
    "reversed": X[::-1],
    "holes": np.where(LINE < 10, np.where(LINE % 3 == 1, X, -5), 0),
    "other": np.where(LINE < 10, X, LINE),
    "nothing": np.full(N, 3.0),
    "order": np.where((LINE > 3) & (LINE < 6), 9, X + 1),
    "scattered": scattered(),
    "descriptor": np.where(LINE < 12, X, 0),
}


@pytest.mark.parametrize("which", MEMORY)
def test_memory(which: str) -> None:
    np.testing.assert_allclose(run_on_machine(memory, X, n=10, WHICH=which), MEMORY[which], rtol=1e-6)


@triton.jit
def by_value(x_ptr, out_ptr, WHICH: tl.constexpr):
    at = tl.arange(0, 16)
    first = tl.load(x_ptr).to(tl.int32)
    if WHICH == "address":
        tl.store(out_ptr + at, tl.load(x_ptr + (at + first) % 16))
    elif WHICH == "mask":
        x = tl.load(x_ptr + at)
        tl.store(out_ptr + at, x, mask=x > 4)
    elif WHICH == "bound":
        total = 0.0
        for i in range(first):
            total += i
        tl.store(out_ptr, total)
    elif WHICH == "condition":
        if first > 2:
            tl.store(out_ptr + at, 1.0)
    elif WHICH == "loop":
        i = 0
        while tl.load(x_ptr + i) < 8:
            i += 1
        tl.store(out_ptr, i.to(tl.float32))
    elif WHICH == "wide":
        tl.store(out_ptr, (first.to(tl.int64) * 3000000000 % 7).to(tl.float32))


COUNTED = (LINE + 3).astype(np.float32)
BY_VALUE = {
    "address": np.roll(COUNTED, -3),
    "mask": np.where(COUNTED > 4, COUNTED, 0),
    "bound": np.where(LINE == 0, 0 + 1 + 2, 0),
    "condition": np.ones(N),
    "loop": np.where(LINE == 0, 5, 0),
    "wide": np.where(LINE == 0, 3 * 3000000000 % 7, 0),
}


@pytest.mark.parametrize("which", BY_VALUE)
def test_loaded_values_as_addresses_masks_bounds_and_conditions(which: str) -> None:
    assert (run_on_machine(by_value, COUNTED, WHICH=which) == BY_VALUE[which]).all()


def test_a_value_needs_data() -> None:
    with pytest.raises(NoDataError, match="this run keeps no data"):
        run_on_machine(by_value, COUNTED, WHICH="bound", data=False)


@triton.jit
def atomics(x_ptr, out_ptr, WHICH: tl.constexpr):
    at = tl.arange(0, 16)
    x = tl.load(x_ptr + at)
    if WHICH == "add":
        tl.atomic_add(out_ptr + at, x)
        tl.atomic_add(out_ptr + at, x, mask=at % 2 == 0)
    elif WHICH == "same place":
        tl.atomic_add(out_ptr + at * 0, x)
    elif WHICH == "extremes":
        tl.atomic_max(out_ptr + at, x)
        tl.atomic_min(out_ptr + at, 0.5)
    elif WHICH == "old":
        before = tl.atomic_xchg(out_ptr + at, x)
        tl.store(out_ptr + at, before - tl.atomic_add(out_ptr + at, 1.0))
    elif WHICH == "ticket":
        i = tl.atomic_add(out_ptr, 1.0).to(tl.int32)
        tl.store(out_ptr + 1 + i, 10.0 + i)


ATOMICS = {
    "add": X * (2 - LINE % 2),
    "same place": np.where(LINE == 0, X.sum(), 0),
    "extremes": np.clip(X, 0, 0.5),
    "old": -X,
}


@pytest.mark.parametrize("which", ATOMICS)
def test_atomics(which: str) -> None:
    np.testing.assert_allclose(run_on_machine(atomics, X, WHICH=which), ATOMICS[which], rtol=1e-5)


def test_an_old_value_is_an_address() -> None:
    found = run_on_machine(atomics, X, WHICH="ticket", grid=(15,), pes=5)
    assert found.tolist() == [15, *range(10, 25)]


@triton.jit
def locked(x_ptr, lock_ptr, out_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr, tl.load(out_ptr) + tl.load(x_ptr + tl.program_id(0)))
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


def test_a_lock_keeps_programs_of_all_pes_apart() -> None:
    free = np.zeros(1, np.int32)
    found = run_on_machine(locked, LINE.astype(np.float32), free, grid=(16,), pes=8)
    assert found[0] == LINE.sum()


@triton.jit
def spinning(lock_ptr, out_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr, 1.0)


def test_a_spin_ends_at_the_limit_and_names_its_line() -> None:
    taken = np.ones(1, np.int32)
    with pytest.raises(LimitReached) as stopped:
        run_on_machine(spinning, taken, limits=Limits(sim_ns=50_000.0))
    where = str(stopped.value)
    assert "kernel 'spinning', launched at " in where
    line = int(re.search(r"line (\d+)", where).group(1))  # type: ignore[union-attr]
    assert "atomic_cas(lock_ptr, 0, 1)" in linecache.getline(__file__, line)


@triton.jit
def whose(x_ptr, out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = x + tl.num_programs(0) * (y + tl.num_programs(1) * z)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + 100 * z + 10 * y)


@pytest.mark.parametrize("pes", [1, 3, 8])
def test_every_program_of_the_grid_runs_once(pes: int) -> None:
    wanted = np.where(LINE < 12, X + 100 * (LINE // 6) + 10 * (LINE // 2 % 3), 0)
    np.testing.assert_allclose(run_on_machine(whose, X, grid=(2, 3, 2), pes=pes), wanted, rtol=1e-6)


@pytest.mark.parametrize("order", ["cyclic", "blocked"])
def test_programs_of_all_pes(order: Any) -> None:
    for total in range(9):
        for pes in range(1, 5):
            shares = [list(programs_of(order, total, pe, pes)) for pe in range(pes)]
            assert sorted(program for share in shares for program in share) == list(range(total))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert [list(programs_of("cyclic", 5, pe, 2)) for pe in range(2)] == [[0, 2, 4], [1, 3]]
    assert [list(programs_of("blocked", 5, pe, 2)) for pe in range(2)] == [[0, 1, 2], [3, 4]]


@triton.jit
def multiplies_each(x_ptr, y_ptr, out_ptr, ADDED: tl.constexpr):
    at = tl.arange(0, 4)[:, None, None] * 4 + tl.arange(0, 2)[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    if ADDED:
        z = y
        z += tl.dot(x, y.permute(0, 2, 1))
    else:
        z = tl.dot(x, y.permute(0, 2, 1))
    tl.store(out_ptr + at, z)


@pytest.mark.parametrize("added", [True, False])
def test_products_of_matrices_one_by_one(added: bool) -> None:
    x, y = X.reshape(4, 2, 2), Y.reshape(4, 2, 2)
    wanted = x @ y.transpose(0, 2, 1) + (y if added else 0)
    np.testing.assert_allclose(run_on_machine(multiplies_each, X, Y, ADDED=added), wanted.ravel(), rtol=1e-5)


@triton.jit
def refusing(x_ptr, out_ptr, WHICH: tl.constexpr):
    at = tl.arange(0, 16)
    x = tl.load(x_ptr + at)
    if WHICH == "double":
        z = x.to(tl.float64)
    elif WHICH == "assume":
        tl.assume(tl.program_id(0) > 0)
    tl.store(out_ptr + at, z)


REFUSED = {
    "double": "values of fp64",
    "assume": "tl.assume of a condition that is false",
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_is_refused(which: str) -> None:
    with pytest.raises(kernbench.triton.Refused, match=REFUSED[which]) as refused:
        run_on_machine(refusing, X, WHICH=which)
    assert str(refused.value).startswith(f"{__file__}:")
    assert "z = " in line_of(refused.value) or which == "assume"


def line_of(error: Exception) -> str:
    """The line that an error begins with."""
    file, line, _ = str(error).split(":", 2)
    return linecache.getline(file, int(line))


@triton.jit
def mistaken(x_ptr, out_ptr):
    x = tl.load(x_ptr + tl.arange(0, 16))
    tl.store(out_ptr, x + nothing)  # noqa: F821


def test_errors_of_a_kernel_are_at_its_lines() -> None:
    with pytest.raises(NameError) as error:
        run_on_machine(mistaken, X)
    place = place_of(error.value)
    assert place.line is not None
    assert (place.line.file, place.kernel, place.pe) == (__file__, "mistaken", (0, 0, 0))
    assert "+ nothing" in linecache.getline(__file__, place.line.line)


@triton.jit
def asserting(x_ptr, out_ptr, WHICH: tl.constexpr, B: tl.constexpr):
    if WHICH == "alone":
        tl.static_assert(B % 3 == 0)
    elif WHICH == "by name":
        tl.static_assert(cond=not B and B > 4)
    elif WHICH == "message":
        tl.static_assert(B % 3 == 0, "B is of threes")
    elif WHICH == "message by name":
        tl.static_assert(B % 3 == 0, msg="B is of threes")
    elif WHICH == "assert":
        assert B % 3 == 0
    elif WHICH == "assert with a message":
        assert B % 3 == 0, "B is of threes"
    tl.static_assert(B == 16)
    tl.store(out_ptr + tl.arange(0, B), tl.load(x_ptr + tl.arange(0, B)))


ASSERTED = {
    "alone": "tl.static_assert: B % 3 == 0 is false",
    "by name": "tl.static_assert: not B and B > 4 is false",
    "message": "B is of threes",
    "message by name": "B is of threes",
    "assert": "assert: B % 3 == 0 is false",
    "assert with a message": "B is of threes",
}


@pytest.mark.parametrize("which", ASSERTED)
def test_what_is_asserted_is_said(which: str) -> None:
    with pytest.raises(AssertionError) as error:
        run_on_machine(asserting, X, WHICH=which, B=16)
    assert str(error.value) == ASSERTED[which]
    place = place_of(error.value)
    assert place.line is not None
    assert "assert" in linecache.getline(__file__, place.line.line)
    run_on_machine(asserting, X, WHICH="none", B=16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"WHICH": "dot", "BLOCK": 3}, "kernel 'shapes' has no parameter BLOCK; it has x_ptr, out_ptr, WHICH"),
        ({}, "kernel 'shapes': .*missing 1 required positional argument: 'WHICH'"),
        ({"WHICH": "dot", "grid": (1, 2, 3, 4)}, "the grid is one to three numbers"),
        ({"WHICH": "dot", "grid": ("many",)}, "the grid is one to three whole numbers"),
    ],
)
def test_a_launch_that_does_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_on_machine(shapes, X, **arguments)


def test_data_of_the_host_is_no_argument() -> None:
    with (
        RuntimeContext(engine=GraphEngine(MACHINE)) as torch,
        pytest.raises(InputError, match="x_ptr is a ndarray; a kernel takes tensors of the machine"),
    ):
        shapes[(1,)](X, torch.zeros(N, dtype="f32"), WHICH="dot")


def test_a_launch_outside_a_run() -> None:
    with pytest.raises(InputError, match="shapes: there is no machine here"):
        shapes[(1,)](None, None, WHICH="dot")


def test_tensors_of_two_sips_are_named() -> None:
    machine = resolve_topology("default", ["system.sips.count=2", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
    with RuntimeContext(engine=GraphEngine(machine)) as torch:
        x = torch.zeros(N, dtype="f32")
        torch.ahbm.set_device(1)
        with pytest.raises(InputError, match=r"several SIPs \(x_ptr on sip0, out_ptr on sip1\)"):
            shapes[(1,)](x, torch.zeros(N, dtype="f32"), WHICH="dot")


def test_a_machine_without_order_of_memory_is_refused() -> None:
    small = ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "pe.dma.ordering=relaxed"]
    with RuntimeContext(engine=GraphEngine(resolve_topology("default", small))) as torch:
        x, out = (torch.zeros(N, dtype="f32") for _ in range(2))
        with pytest.raises(InputError, match="ordering=relaxed its loads and stores have no order"):
            shapes[(1,)](x, out, WHICH="dot")
