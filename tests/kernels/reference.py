"""What kernels are compared with: NumPy in f64 on the operands as they are stored, and how far off a result may be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from fake_pe import FakePe, Memory, site_of

from kernbench.common.dtypes import DType, dtype

Array = np.ndarray[Any, Any]


def normal(rng: np.random.Generator, shape: tuple[int, ...], item: DType, scale: float = 1.0) -> Array:
    return (rng.standard_normal(shape) * scale).astype(np.float32).astype(item.numpy)


def wide(x: Array) -> Array:
    return x.astype(np.float32).astype(np.float64)


def assert_near(found: Array, wanted: Array, *, roundings: float = 1.0, magnitude: Array | float = 0.0) -> None:
    """Off by at most ``roundings`` times the type's spacing at 1, relative to the element plus ``magnitude``.

    ``magnitude``: where sums cancel, the sum of what they add up without signs. The spacing is 2**-23 for f32, 2**-10
    for f16, 2**-7 for bf16, 2**-3 for f8e4m3, 2**-2 for f8e5m2. One rounding is half a spacing: 1 leaves as much again
    for what comes before. f32 gets 64 spacings, for sums in another order.
    """
    limits = ml_dtypes.finfo(found.dtype)
    spacing = float(limits.eps) * roundings * (64 if found.dtype == np.float32 else 1)
    allowed = spacing * (np.abs(wanted) + magnitude) + float(limits.smallest_subnormal)
    off = np.abs(wide(found) - wanted)
    assert found.shape == wanted.shape
    assert (off <= allowed).all(), f"off by up to {np.max(off / allowed)} times what is allowed"


class Machine:
    """A memory to put arrays in, and PEs that run a kernel on it."""

    def __init__(self, nbytes: int = 1 << 20) -> None:
        self.memory = Memory(nbytes)
        self.end = 64
        self.last = FakePe(self.memory)

    def room(self, shape: tuple[int, ...], item: DType) -> int:
        """Address of room for an array; what is around it must stay 0xA5."""
        at = self.end
        self.end += int(np.prod(shape)) * item.itemsize + 64
        self.end += -self.end % 64
        assert self.end <= self.memory.nbytes
        return at

    def put(self, array: Array) -> int:
        at = self.room(array.shape, dtype(array.dtype))
        self.memory.put(at, array)
        return at

    def get(self, at: int, shape: tuple[int, ...], item: DType) -> Array:
        return self.memory.view(at, shape, item).copy()

    def run(
        self,
        kernel: Any,
        *args: Any,
        grid: tuple[int, int] = (1, 1),
        order: int | None = None,
        scratch_bytes: int = 1 << 20,
        **kwargs: Any,
    ) -> None:
        """On (cubes, PEs) ``grid``, one after the other."""
        before = self.memory.raw.copy()
        for cube in range(grid[0]):
            for pe in range(grid[1]):
                self.last = FakePe(self.memory, scratch_bytes, order)
                site = site_of(kernel, (pe, cube, 0), (grid[1], grid[0], 1))
                self.last.run(kernel, *args, site=site, **kwargs)
        self._changed = np.flatnonzero(before != self.memory.raw)

    def assert_only_wrote(self, *rooms: tuple[int, int]) -> None:
        """Whatever changed lies in one of ``rooms``: address and bytes."""
        inside = np.zeros(self.memory.nbytes, bool)
        for at, nbytes in rooms:
            inside[at : at + nbytes] = True
        assert inside[self._changed].all()
