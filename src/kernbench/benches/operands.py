"""Data for benches, made cheaply, and what comes of it on the host."""

from __future__ import annotations

from math import prod
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from kernbench.common.dtypes import dtype as dtype_of
from kernbench.runtime_api.arrays import Array
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.transfers import HostSource, LaterArray

FloatName: TypeAlias = Literal["f32", "f16", "bf16"]
# A prime, so that no row length makes rows repeat: data that is read at a wrong offset is wrong.
_PERIOD = 1_048_573
_COLUMNS_AT_ONCE = 2048


def later_data(shape: tuple[int, ...], dtype: str, *, seed: int, scale: float = 1.0) -> LaterArray:
    """Normally distributed numbers, repeated with a long period, made when somebody reads a value."""

    def make() -> Array:
        count = min(_PERIOD, prod(shape))
        block = np.random.Generator(np.random.PCG64(seed)).standard_normal(count, np.float32) * np.float32(scale)
        return np.resize(block.astype(dtype_of(dtype).numpy), shape)

    return LaterArray(shape, make)


def normal_data(
    torch: RuntimeContext[Any], shape: tuple[int, ...], dtype: str, *, seed: int, scale: float = 1.0
) -> Array:
    """The same for programs that take them apart: made now; memory-less zeros when the run has no data."""
    if not torch.has_data:
        return np.broadcast_to(np.zeros((), dtype_of(dtype).numpy), shape)
    return np.asarray(later_data(shape, dtype, seed=seed, scale=scale))


def matmul_f32(left: HostSource, right: HostSource) -> Array:
    """``left @ right`` in f32, some columns at a time so that large weights are never held in f32."""
    wide, b = np.asarray(left, np.float32), np.asarray(right)
    columns = range(0, b.shape[1], _COLUMNS_AT_ONCE)
    return np.concatenate([wide @ b[:, at : at + _COLUMNS_AT_ONCE].astype(np.float32) for at in columns], axis=1)


def product_atol(dtype: str) -> float:
    """Absolute tolerance for sums of many products that are about 1: a unit in the last place, and f32's noise."""
    unit = ml_dtypes.finfo(dtype_of(dtype).numpy).eps  # type: ignore[no-untyped-call]
    return max(float(unit), 1e-4)
