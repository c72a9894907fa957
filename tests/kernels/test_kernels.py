"""The kernels of the package against NumPy: any size, all types, whatever the order of completion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_pe import FakePe, Memory, random_array, site_of

from kernbench.common.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, I8, I32, DType, dtype
from kernbench.common.errors import UnknownNameError
from kernbench.kernels import BUILTIN_KERNELS, builtin_kernel
from kernbench.kernels.elementwise import offset_copy
from kernbench.kernels.gemm import gemm_columns, gemm_simple, qkv_projection
from kernbench.policy.placement.dp import DPPolicy, place_windows

TYPES = (F32, F16, BF16, I8, F8E4M3, F8E5M2)
COLUMNS = DPPolicy(cube="column_wise", pe="column_wise")


def product(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], out: DType) -> np.ndarray[Any, Any]:
    wide = np.int64 if a.dtype.kind == "i" else np.float32
    return (a.astype(wide) @ b.astype(wide)).astype(out.numpy)


def cube_and_pes(cubes: int, pes: int) -> list[tuple[int, int]]:
    return [(cube, pe) for cube in range(cubes) for pe in range(pes)]


@pytest.mark.parametrize("item", [*TYPES, I32], ids=str)
@pytest.mark.parametrize("order", [None, 1])
def test_every_program_copies_its_own_stretch(item: DType, order: int | None) -> None:
    memory, n, stride = Memory(1 << 14), 37, 64 * item.itemsize
    source = random_array(np.random.default_rng(0), (4 * 64,), item)
    memory.put(0, source)
    for cube, pe in cube_and_pes(2, 2):
        site = site_of(offset_copy, (pe, cube, 0), (2, 2, 1))
        FakePe(memory, order=order).run(offset_copy, 0, 8192, n, stride, item, 16, site=site)
    wanted = np.where(np.arange(64) < n, source.reshape(4, 64).astype(np.float32), 0).astype(item.numpy)
    assert np.array_equal(memory.view(8192, (4, 64), item), wanted)


@pytest.mark.parametrize("item", TYPES, ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1), (33, 70, 17), (64, 64, 64)], ids=str)
@pytest.mark.parametrize("order", [None, 2])
def test_gemm_is_numpys(item: DType, size: tuple[int, int, int], order: int | None) -> None:
    m, k, n = size
    rng, memory, out = np.random.default_rng(m), Memory(1 << 16), I32 if item is I8 else item
    a, b = random_array(rng, (m, k), item), random_array(rng, (k, n), item)
    memory.put(0, a)
    memory.put(20000, b)
    FakePe(memory, order=order).run(gemm_simple, 0, 20000, 40000, m, k, n, item, 16, 32, 16, acc_dtype="f32")
    assert np.array_equal(memory.view(40000, (m, n), out), product(a, b, out))


def test_gemm_by_the_names_of_numpy_and_torch() -> None:
    for name, item in (("float16", F16), ("torch.int8", I8)):
        memory = Memory(4096)
        memory.put(0, np.full((4, 4), 2, item.numpy))
        FakePe(memory).run(gemm_simple, 0, 0, 1024, 4, 4, 4, name)
        out = I32 if item is I8 else item
        assert (memory.view(1024, (4, 4), out) == 16).all()


def test_gemm_makes_the_type_that_is_asked_for() -> None:
    memory = Memory(1 << 16)
    memory.put(0, np.full((2, 512), 7, np.float16))
    memory.put(8192, np.full((512, 2), 17, np.float16))
    FakePe(memory).run(gemm_simple, 0, 8192, 32768, 2, 512, 2, "f16", block_k=64, out_dtype="f32")
    assert (memory.view(32768, (2, 2), F32) == 512 * 7 * 17).all()


def test_gemm_narrows_when_asked() -> None:
    memory = Memory(4096)
    memory.put(0, np.full((4, 4), 2, np.int8))
    FakePe(memory).run(gemm_simple, 0, 0, 1024, 4, 4, 4, "i8", out_dtype="i8")
    assert (memory.view(1024, (4, 4), I8) == 16).all()


def test_gemm_runs_in_little_scratch_by_waiting() -> None:
    m = k = n = 64
    rng, memory = np.random.default_rng(3), Memory(1 << 17)
    a, b = random_array(rng, (m, k), F32), random_array(rng, (k, n), F32)
    memory.put(0, a)
    memory.put(20000, b)
    pe = FakePe(memory, scratch_bytes=8 * 16 * 16 * 4, order=5)
    pe.run(gemm_simple, 0, 20000, 40000, m, k, n, "f32", 16, 16, 16)
    assert any(type(r).__name__ == "AwaitSpace" for r in pe.requests)
    assert np.array_equal(memory.view(40000, (m, n), F32), a @ b)


@pytest.mark.parametrize("item", [F16, I8], ids=str)
@pytest.mark.parametrize(("cubes", "pes", "n"), [(1, 1, 5), (2, 3, 24), (2, 4, 10), (3, 2, 23)])
def test_column_shards_are_where_the_placement_puts_them(item: DType, cubes: int, pes: int, n: int) -> None:
    m, k = 9, 40
    rng, memory, out = np.random.default_rng(n), Memory(1 << 16), I32 if item is I8 else item
    x = random_array(rng, (m, k), item)
    weights = [random_array(rng, (k, n), item) for _ in range(3)]
    memory.put(0, x)
    at_w, at_y = (4096, 8192, 12288), (20480, 28672, 36864)
    for weight, base in zip(weights, at_w, strict=True):
        deploy(memory, base, weight, cubes, pes)
    for cube, pe in cube_and_pes(cubes, pes):
        site = site_of(qkv_projection, (pe, cube, 0), (pes, cubes, 1))
        args = (0, *at_w, *at_y, m, k, n, item, 8, 16, 2)
        FakePe(memory, order=cube + pe).run(qkv_projection, *args, site=site, acc_dtype="f32")
    for weight, base in zip(weights, at_y, strict=True):
        assert np.array_equal(gathered(memory, base, (m, n), out, cubes, pes), product(x, weight, out))


def placed(shape: tuple[int, ...], item: DType, cubes: int, pes: int) -> list[tuple[int, Any]]:
    """Offset and window of every shard."""
    windows = place_windows(COLUMNS, shape=shape, itemsize=item.itemsize, num_pe=pes, num_cubes=cubes, target_sip=0)
    return [(spec.offset_bytes, window) for spec, window in windows]


def deploy(memory: Memory, base: int, array: np.ndarray[Any, Any], cubes: int, pes: int) -> None:
    for offset, window in placed(array.shape, dtype(array.dtype), cubes, pes):
        memory.put(base + offset, array[window.index])


def gathered(
    memory: Memory, base: int, shape: tuple[int, int], item: DType, cubes: int, pes: int
) -> np.ndarray[Any, Any]:
    whole = np.zeros(shape, item.numpy)
    for offset, window in placed(shape, item, cubes, pes):
        whole[window.index] = memory.view(base + offset, window.shape, item)
    return whole


def test_a_program_without_columns_does_nothing() -> None:
    memory = Memory(4096)
    pe = FakePe(memory)
    pe.run(gemm_columns, 0, 0, 0, 4, 4, 1, "f16", site=site_of(gemm_columns, (1, 0, 0), (2, 1, 1)))
    assert pe.commands == []


def test_kernels_have_names() -> None:
    assert builtin_kernel("builtin.gemm") is builtin_kernel("gemm") is gemm_simple
    with pytest.raises(UnknownNameError, match=r"'gem'; there are: builtin\.add, .*builtin\.gemm,"):
        builtin_kernel("gem")
    assert all(name.startswith("builtin.") for name in BUILTIN_KERNELS)


def test_every_builtin_kernel_is_a_function():
    """A module of the package with the name of a function would hide it."""
    assert all(callable(kernel) for kernel in BUILTIN_KERNELS.values())
