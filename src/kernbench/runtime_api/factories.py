"""Make tensors, by ``torch.zeros`` and the like, and the random numbers of programs."""

from __future__ import annotations

from collections import deque
from dataclasses import field

import numpy as np

from kernbench.common.dtypes import F32, Array, DType, Shape
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import InputError
from kernbench.common.values import state
from kernbench.messages.requests import PeCoord
from kernbench.policy.placement.dp import SINGLE_PE, DPPolicy
from kernbench.runtime_api.arrays import SizeArg, machine_dtype, numeric, shape_of, whole_number
from kernbench.runtime_api.memory import StorageSlab, TensorMemory
from kernbench.runtime_api.ranks import Workers
from kernbench.runtime_api.tensor import HostTensor, Tensor
from kernbench.runtime_api.transfers import LaterArray, check_fits
from kernbench.runtime_api.types import Devices
from kernbench.triton_emu.kernel_runner import check_host_calls

# PyTorch's default seed.
DEFAULT_SEED = 67280421310721


@state
class Draw:
    """Normally distributed f32 numbers of ``shape``; None until they are drawn."""

    shape: tuple[int, ...]
    numbers: Array | None = None


@state
class RandomStream:
    """A stream of numbers determined by its seed. Numbers are drawn on first use, in the order of the draws."""

    seed: int
    _stream: np.random.Generator = field(init=False)
    _waiting: deque[Draw] = field(default_factory=deque)

    def __post_init__(self) -> None:
        # PyTorch's seeds may be negative, NumPy's not.
        self._stream = np.random.Generator(np.random.PCG64(self.seed % 2**64))

    def normal(self, shape: tuple[int, ...]) -> LaterArray:
        """Return the next numbers, with mean 0 and variance 1, as f32."""
        draw = Draw(shape)
        self._waiting.append(draw)
        return LaterArray(shape, lambda: self._draw(draw))

    def _draw(self, draw: Draw) -> Array:
        while draw.numbers is None:
            first = self._waiting.popleft()
            first.numbers = self._stream.standard_normal(first.shape, np.float32)
            first.numbers.flags.writeable = False
        return draw.numbers


class Generators:
    """The random generators of the ranks. Each rank has its own, like a process: its draws affect no other rank.

    A rank begins with the seed that the program set last.
    """

    __slots__ = ("_workers",)

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def seed(self, seed: int) -> None:
        """Restart the generator of the running rank. Raises InputError unless ``seed`` is a whole number."""
        number = whole_number(seed)
        if number is None:
            raise InputError(f"manual_seed({seed!r}): a seed is a whole number")
        self._workers.current.local.put(RandomStream(number))

    def normal(self, shape: tuple[int, ...]) -> LaterArray:
        """Return normally distributed numbers, with mean 0 and variance 1, as f32."""
        return self._current().normal(shape)

    def _current(self) -> RandomStream:
        local = self._workers.current.local
        generator = local.get(RandomStream)
        if generator is None:
            program = self._workers.main.local.get(RandomStream)
            generator = RandomStream(DEFAULT_SEED if program is None else program.seed)
            local.put(generator)
        return generator


class TensorFactories:
    """The tensor factories of one context.

    Parameters of all factories: ``dtype`` is the element type, by default f32. ``dp`` is the placement over the cubes
    and PEs of the SIP, by default on PE 0 of cube 0. ``name`` is the name in reports. The device itself fills a tensor
    with zeros, ones or another single value; all other data is copied from the host.
    """

    def __init__(self, memory: TensorMemory, devices: Devices, generators: Generators) -> None:
        self._memory, self._devices, self._generators = memory, devices, generators
        self._named = 0

    def empty(
        self,
        *size: SizeArg,
        dtype: object = None,
        dp: DPPolicy | None = None,
        name: str | None = None,
        is_mapped: bool = True,
    ) -> Tensor:
        """Make an uninitialised tensor on the current SIP; its values are the previous content of its memory.

        ``is_mapped=False``: the first launch with the tensor maps it, in the time that its other tensors need anyway.
        This launch must run on all PEs that own the tensor.
        """
        return self._create(shape_of(size), _resolve_dtype(dtype), dp, name, None, is_mapped=is_mapped)

    def slab(self, n: int, dtype: DType, dp: DPPolicy, sip: int, pes: tuple[PeCoord, ...]) -> StorageSlab:
        """Allocate several tensors of ``n`` elements at once, for `take`; the next launch maps all on ``pes``."""
        return self._memory.create_slab(n, dtype, dp, sip, pes)

    def take(self, slab: StorageSlab, name: str) -> Tensor:
        """Return the next tensor of a slab, uninitialised. The slab must have more."""
        return Tensor(self._memory.take(slab, name), self._memory)

    def workspace(self, *size: SizeArg, dtype: object = None, dp: DPPolicy | None = None) -> Tensor:
        """Return memory on the current SIP for intermediate values of kernels: the same for the same arguments.

        The context frees the memory at its end. Launches in flight together must not share a workspace.
        """
        place = self._devices.current
        layout = self._memory.workspace(shape_of(size), _resolve_dtype(dtype), dp or SINGLE_PE, place)
        return Tensor(layout, self._memory)

    def zeros(
        self, *size: SizeArg, dtype: object = None, dp: DPPolicy | None = None, name: str | None = None
    ) -> Tensor:
        """Make a tensor of zeros on the current SIP."""
        return self._create(shape_of(size), _resolve_dtype(dtype), dp, name, 0)

    def ones(self, *size: SizeArg, dtype: object = None, dp: DPPolicy | None = None, name: str | None = None) -> Tensor:
        """Make a tensor of ones on the current SIP."""
        return self._create(shape_of(size), _resolve_dtype(dtype), dp, name, 1)

    def full(
        self,
        size: SizeArg,
        fill_value: float,
        *,
        dtype: object = None,
        dp: DPPolicy | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Make a tensor on the current SIP with every element ``fill_value``.

        Raises InputError if an integer type cannot hold the value.
        """
        return self._create(shape_of((size,)), _resolve_dtype(dtype), dp, name, _check_fill(fill_value))

    def empty_like(
        self, like: Tensor, /, *, dtype: object = None, dp: DPPolicy | None = None, name: str | None = None
    ) -> Tensor:
        """Make an uninitialised tensor of the shape of ``like``, on its SIP, by default with its dtype and layout."""
        return self._create_like(like, dtype, dp, name, None)

    def zeros_like(
        self, like: Tensor, /, *, dtype: object = None, dp: DPPolicy | None = None, name: str | None = None
    ) -> Tensor:
        """Make a tensor like ``like``, of zeros."""
        return self._create_like(like, dtype, dp, name, 0)

    def ones_like(
        self, like: Tensor, /, *, dtype: object = None, dp: DPPolicy | None = None, name: str | None = None
    ) -> Tensor:
        """Make a tensor like ``like``, of ones."""
        return self._create_like(like, dtype, dp, name, 1)

    def full_like(
        self,
        like: Tensor,
        /,
        fill_value: float,
        *,
        dtype: object = None,
        dp: DPPolicy | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Make a tensor like ``like``, with every element ``fill_value``."""
        return self._create_like(like, dtype, dp, name, _check_fill(fill_value))

    def randn_like(
        self, like: Tensor, /, *, dtype: object = None, dp: DPPolicy | None = None, name: str | None = None
    ) -> Tensor:
        """Make a tensor like ``like`` of normally distributed numbers, as ``randn`` does."""
        tensor = self._create_like(like, _check_float(_resolve_dtype(dtype, like.dtype)), dp, name, None)
        return tensor.copy_(self._generators.normal(tensor.shape))

    def tensor(
        self, data: object, *, dtype: object = None, dp: DPPolicy | None = None, name: str | None = None
    ) -> Tensor:
        """Make a tensor on the current SIP and copy ``data`` (an array, nested lists or a tensor) into it.

        Without ``dtype``, data of an element type of the machine retains that type; other floats become f32, other
        integers i32.
        """
        check_host_calls()
        if isinstance(data, Tensor):
            passed = data.pass_on()
            tensor = self._create(data.shape, _resolve_dtype(dtype, data.dtype), dp, name, None)
            self._memory.copy(tensor.layout, passed)
            return tensor
        array = numeric(data, "torch.tensor")
        return self._create(array.shape, _resolve_dtype(dtype, machine_dtype(array)), dp, name, None).copy_(array)

    def arange(
        self,
        start: float = 0,
        end: float | None = None,
        step: float = 1,
        *,
        dtype: object = None,
        dp: DPPolicy | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Make a tensor of ``start``, ``start + step``, … below ``end`` on the current SIP; a single number is the end.

        Without a dtype, whole numbers become i32 and floats f32. Raises InputError if the range is empty or infinite,
        and if an integer type cannot hold a number.
        """
        first, last = (0, start) if end is None else (start, end)
        if not step or not np.isfinite(numeric((first, last, step), "torch.arange")).all():
            raise InputError(f"torch.arange({first}, {last}, {step}): finite numbers, and a step that is not 0")
        numbers: Array = np.arange(first, last, step)
        kind = _resolve_dtype(dtype, machine_dtype(numbers))
        for number in (*numbers[:2], *numbers[-1:]):
            check_fits(np.asarray(number), kind)
        return self._create(numbers.shape, kind, dp, name, None).copy_(numbers)

    def manual_seed(self, seed: int) -> None:
        """Set the seed of this rank's random numbers; a rank without a seed of its own uses the program's seed."""
        self._generators.seed(seed)

    def randn(
        self, *size: SizeArg, dtype: object = None, dp: DPPolicy | None = None, name: str | None = None
    ) -> Tensor:
        """Make a tensor of normally distributed numbers on the current SIP.

        The numbers are the same in every run and for every layout; ``manual_seed`` selects them. Raises InputError for
        an integer type.
        """
        tensor = self._create(shape_of(size), _check_float(_resolve_dtype(dtype)), dp, name, None)
        return tensor.copy_(self._generators.normal(tensor.shape))

    def from_numpy(self, array: Array) -> HostTensor:
        """Return a host tensor that shares the memory of ``array``; ``copy_`` transfers it to the machine."""
        return HostTensor(numeric(array, "from_numpy"))

    def _create_like(
        self, like: Tensor, dtype: object, dp: DPPolicy | None, name: str | None, fill: float | None
    ) -> Tensor:
        if not isinstance(like, Tensor):
            raise InputError(
                f"a {type(like).__name__} is no tensor of the machine, so no tensor can be made like it; give the "
                f"shape: torch.zeros(x.shape, dtype=…)"
            )
        kind = _resolve_dtype(dtype, like.dtype)
        if dp is not None:
            return self._create(like.shape, kind, dp, name, fill, like.sip)
        return Tensor(self._memory.create_like(like.layout, self._choose_label(name), kind, fill), self._memory)

    def _create(
        self,
        shape: Shape,
        dtype: DType,
        dp: DPPolicy | None,
        name: str | None,
        fill: float | None,
        sip: int | None = None,
        *,
        is_mapped: bool = True,
    ) -> Tensor:
        label = self._choose_label(name)
        if not np.all(np.array(shape) > 0):
            raise InputError(f"tensor {label!r}: shape {shape}; every axis of a tensor needs at least one element")
        place = self._devices.current if sip is None else sip
        layout = self._memory.create(label, shape, dtype, dp or SINGLE_PE, place, fill, is_mapped=is_mapped)
        return Tensor(layout, self._memory)

    def _choose_label(self, name: str | None) -> str:
        label = name or f"tensor{self._named}"
        self._named += name is None
        return label


def _resolve_dtype(dtype: object, default: DType = F32) -> DType:
    return default if dtype is None else dtype_of(dtype)


def _check_fill(fill_value: float | None) -> float:
    """Return the fill value. Raises InputError for None, which would leave the memory uninitialised."""
    if fill_value is None:
        raise InputError("a fill value: None is no number; torch.empty makes an uninitialised tensor")
    return fill_value


def _check_float(dtype: DType) -> DType:
    if not dtype.is_float:
        raise InputError(f"torch.randn: {dtype} holds whole numbers only; use a float type")
    return dtype
