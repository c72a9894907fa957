"""``kernel[grid](...)``: the programs of the grid, one after another on each PE that stores a part of the tensors.

A grid with fewer programs than PEs runs on as many PEs as it has programs. An empty grid is not launched.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import field, replace
from functools import partial
from math import prod
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
import triton.language as tl
from triton.backends.amd.compiler import HIPOptions
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime import interpreter
from triton.runtime.jit import mangle_type
from triton.tools.tensor_descriptor import TensorDescriptor

from kernbench.common.dtypes import Array, DType
from kernbench.common.errors import InputError, NoMachineError, RunStopped
from kernbench.common.program_line import calling_line
from kernbench.common.values import state, value
from kernbench.engine.engine import GraphEngine
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.placed import Placed, pes_of_tensors
from kernbench.frontends.triton.memory import PointerHandle
from kernbench.frontends.triton.running import LaunchGrid, Running, begin, coordinates, programs_of
from kernbench.frontends.triton.values import POINTED_TO, TensorHandle, Type
from kernbench.frontends.triton.writes import written_parameters
from kernbench.messages.requests import KernelRef, PeCoord
from kernbench.runtime_api.context import AnyContext, current_context
from kernbench.runtime_api.launch import Alike
from kernbench.runtime_api.requests import Work
from kernbench.runtime_api.tensor import KnownValues, Tensor
from kernbench.topology.spec import TopologySpec
from kernbench.triton_emu.kernel_runner import check_host_calls
from kernbench.triton_emu.tl_context import TLContext

if TYPE_CHECKING:
    import torch

MEASURED = 0.1
"""Fraction of the wall-time limit for which a launch runs before its remaining time is predicted."""
_GPU_OPTIONS = frozenset(option.name for options in (CUDAOptions, HIPOptions) for option in dataclasses.fields(options))
"""Options of GPU back ends. Only ``num_stages`` has an effect here."""
_PLACED = Tensor | Placed | TensorDescriptor
"""Types of arguments that are stored in memory."""


@runtime_checkable
class Addressed(Protocol):
    """An object that stands for a tensor of a host library, such as the result of ``triton.reinterpret``."""

    dtype: torch.dtype | tl.dtype
    device: torch.device

    def data_ptr(self) -> int:
        """Return the address of the first element."""


Stored: TypeAlias = Tensor | Placed | TensorDescriptor | Addressed
"""An argument that is stored in memory: a kernel gets pointers to it."""


class Launchable(Protocol):
    """A kernel, as ``triton.jit`` makes it. ``fn`` is the program's function."""

    __name__: str
    fn: FunctionType
    arg_names: Sequence[str]
    pre_run_hooks: Sequence[Callable[..., object]]

    def rewrite(self) -> Callable[..., object]:
        """Return the function that the interpreter runs."""


@value
class Pointer:
    """A pointer argument on ``sip`` to elements of type ``ty``, ``offset`` bytes from the start of ``tensor``.

    If ``tensor`` is None, ``offset`` is the address. If ``descriptor`` is set, the argument is this tensor descriptor
    of the host, and the pointer is the base of the descriptor.
    """

    tensor: Tensor | None
    offset: int
    ty: Type
    sip: int
    descriptor: TensorDescriptor | None = None

    def at(self, address: int) -> tl.tensor | tl.tensor_descriptor:
        """Return the kernel's argument for a tensor that starts at ``address``."""
        to = tl.pointer_type(self.ty)
        pointer = tl.tensor(PointerHandle(address + self.offset, to), to)
        if self.descriptor is None:
            return pointer
        shape, strides = self.descriptor.shape, self.descriptor.strides[:-1]
        return interpreter.interpreter_semantic.make_tensor_descriptor(
            base=pointer,
            shape=[interpreter._implicit_cvt(int(extent)) for extent in shape],  # noqa: SLF001
            strides=[*(interpreter._implicit_cvt(int(stride)) for stride in strides), tl.constexpr(1)],  # noqa: SLF001
            block_shape=[tl.constexpr(extent) for extent in self.descriptor.block_shape],
            padding_option=self.descriptor.padding,
        )


@value
class LaunchOrigin:
    """The origin of a kernel that a compiler has generated: the title of its launch, and the line of the program.

    ``call`` runs the launch's program from that line, so that reports attribute its commands to the line. None: reports
    name the line of the generated kernel.
    """

    title: str
    file: str
    line: str
    call: Callable[[Callable[..., object], Sequence[int], TLContext], None] | None


@value
class LaunchArguments:
    """The arguments of a launch by name, divided into pointers and values."""

    pointers: Mapping[str, Pointer]
    values: Mapping[str, object]


def context_of(name: str) -> AnyContext:
    """Return the context of the host program. Raises NoMachineError outside of one, KernelError in a kernel."""
    check_host_calls()
    context = current_context()
    if context is None:
        raise NoMachineError(
            f"{name}: there is no machine here; kernbench run --script FILE, or --bench FILE, gives one"
        )
    return context


def launch(
    kernel: Launchable,
    grid: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, Any],
    origin: LaunchOrigin | None = None,
) -> None:
    """Run ``kernel``, which ``triton.jit`` made, for every program of ``grid``, with the arguments of the call.

    ``origin``: the calls of the program that a generated kernel carries out. Its neighbouring programs run on one PE,
    which stores their elements.
    """
    name = kernel.__name__
    context = context_of(name)
    function = kernel.rewrite()
    bound = _bind(name, kernel.fn, args, kwargs)
    for hook in kernel.pre_run_hooks:
        hook(*args, **{key: value for key, value in kwargs.items() if key in bound})
    extents = _grid(name, grid(bound) if callable(grid) else grid)
    arguments = _split(name, kernel.fn, bound)
    stages = kwargs.get("num_stages")
    window = None if stages is None else 2 * int(stages)
    pointers = arguments.pointers.values()
    tensors = tuple(dict.fromkeys(pointer.tensor for pointer in pointers if pointer.tensor is not None))
    _check_placement(name, arguments, context.topology)
    if not arguments.pointers:
        raise InputError(f"kernel {name!r}: no argument is a tensor, and a kernel runs on the PEs that own its tensors")
    programs = prod(extents)
    if not programs:
        return
    pes = _find_pes(context, bound, arguments, tensors)[:programs]
    order = context.frontends.triton.order if origin is None else "blocked"
    shares = {pe: programs_of(order, programs, i, len(pes)) for i, pe in enumerate(pes)}
    pace = LaunchPace(name, extents, context.engine)
    on_write = None if context.has_data else _WrittenRanges(context.known_values)
    expect = None if context.has_data else _KnownIntegers(context.known_values, tensors, origin is not None)
    program = _program(function, arguments, tensors, extents, shares, window, pace, on_write, expect)
    context.operators.count_from_begin()
    values = {key: bound[key] for key in arguments.values}
    alike = None
    if context.needs_kinds:
        alike = _describe(kernel, (values, extents, window, order), arguments.pointers, context.known_values)
    kernel_ref = _kernel_ref(name, program, kernel.fn, origin)
    written = written_parameters(kernel.fn)

    def note_start(_: Work) -> None:
        if on_write is None or expect is None:
            return
        expect.note()
        on_write.n_writes = context.known_values.n_writes
        for key, pointer in arguments.pointers.items():
            if pointer.tensor is not None and key in written:
                context.known_values.forget(pointer.tensor)

    title, line = (name, str(calling_line() or "")) if origin is None else (origin.title, origin.line)
    context.launch_on(
        title,
        pes,
        kernel_ref,
        *tensors,
        in_order=True,
        alike=alike,
        called_at=line,
        on_start=note_start,
        written=[p.tensor for key, p in arguments.pointers.items() if p.tensor is not None and key in written],
    )


def _kernel_ref(
    name: str, program: Callable[..., None], function: FunctionType, origin: LaunchOrigin | None
) -> KernelRef:
    """Return the kernel of a launch, whose lines are those of its source, or of the program that it comes from."""
    if origin is None or origin.call is None:
        return KernelRef(name=name, function=program, file=function.__code__.co_filename)
    call = origin.call

    def run(*addresses: int, tl: TLContext) -> None:
        call(program, addresses, tl)

    return KernelRef(name=name, function=run, file=origin.file)


def _describe(
    kernel: Launchable, settings: object, pointers: Mapping[str, Pointer], known_values: KnownValues
) -> Alike | None:
    """Return what decides the work of a launch; None for a launch that is like no other.

    A kernel may depend on values that a run without data knows, or on absolute addresses.
    """
    tensors = [pointer.tensor for pointer in pointers.values()]
    if any(tensor is None or known_values.of(tensor) is not None for tensor in tensors):
        return None
    described = []
    for key, pointer in pointers.items():
        block = pointer.descriptor
        extents = None if block is None else (block.shape, block.strides, block.block_shape, block.padding)
        described.append((key, pointer.tensor, pointer.offset, pointer.ty, extents))
    program = (kernel.fn, settings, described)
    return Alike(program, tuple(dict.fromkeys(tensors)))


def _find_pes(
    context: AnyContext, bound: Mapping[str, object], arguments: LaunchArguments, tensors: Sequence[Tensor]
) -> list[PeCoord]:
    """Return the PEs that store the tensors; with a host-library tensor, all PEs that store such tensors."""
    if any(isinstance(x, Placed) or _is_address(x) or _is_placed_descriptor(x) for x in bound.values()):
        return list(pes_of_tensors(context, next(iter(arguments.pointers.values())).sip))
    return sorted({owner for tensor in tensors for owner in tensor.layout.owners})


def _is_placed_descriptor(x: object) -> bool:
    return isinstance(x, TensorDescriptor) and isinstance(x.base, Placed)


def _check_placement(name: str, arguments: LaunchArguments, spec: TopologySpec) -> None:
    """Raise InputError for tensors on several SIPs, or relaxed memory ordering: Triton relies on program order."""
    if spec.pe.dma.ordering == "relaxed":
        raise InputError(
            f"kernel {name!r}: with pe.dma.ordering=relaxed its loads and stores have no order; use program"
        )
    if len({pointer.sip for pointer in arguments.pointers.values()}) > 1:
        where = ", ".join(f"{key} on sip{pointer.sip}" for key, pointer in arguments.pointers.items())
        raise InputError(f"kernel {name!r}: its tensors are on several SIPs ({where}); launch once on each, by spawn")


def _program(
    function: Callable[..., object],
    arguments: LaunchArguments,
    tensors: tuple[Tensor, ...],
    grid: LaunchGrid,
    shares: Mapping[PeCoord, Iterable[int]],
    window: int | None,
    pace: LaunchPace,
    on_write: Callable[[int, int, int], None] | None,
    expect: _KnownIntegers | None,
) -> Callable[..., None]:
    """Return the function that each PE runs: its share of the programs, one after another."""

    def kernel(*addresses: int, tl: TLContext) -> None:
        site = tl.site
        starts = dict(zip(tensors, addresses, strict=True))
        here = Running(tl, grid, window, on_write, None if expect is None else partial(expect.at, starts))
        begin(here)
        pace.begin()
        pointers = {
            name: pointer.at(0 if pointer.tensor is None else starts[pointer.tensor])
            for name, pointer in arguments.pointers.items()
        }
        with np.errstate(all="ignore"):
            for here.program in coordinates(shares[site.sip, site.cube, site.pe], grid):
                function(**arguments.values, **pointers)
                pace.count_program()

    return kernel


def _bind(
    name: str, function: FunctionType, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Return all arguments by name, with defaults. Raises InputError for an argument that no parameter accepts."""
    parameters = inspect.signature(function).parameters
    unknown = [key for key in kwargs if key not in parameters and key not in _GPU_OPTIONS]
    if unknown:
        raise InputError(f"kernel {name!r} has no parameter {', '.join(unknown)}; it has {', '.join(parameters)}")
    try:
        return inspect.getcallargs(function, *args, **{key: kwargs[key] for key in kwargs if key in parameters})
    except TypeError as error:
        raise InputError(f"kernel {name!r}: {error}") from None


def _grid(name: str, grid: object) -> LaunchGrid:
    """Return the three extents of the grid, each at least 0."""
    extents = tuple(grid) if isinstance(grid, Sequence) else (grid,)
    try:
        x, y, z = (*map(int, extents), 1, 1)[:3]
    except (TypeError, ValueError):
        raise InputError(f"kernel {name!r}: the grid is one to three whole numbers, not {grid!r}") from None
    if len(extents) > 3 or min(x, y, z) < 0:
        raise InputError(f"kernel {name!r}: the grid is one to three numbers that are not negative, not {grid!r}")
    return x, y, z


def _split(name: str, function: Callable[..., object], bound: Mapping[str, object]) -> LaunchArguments:
    """Divide the arguments into pointers and values; a value that is no ``constexpr`` becomes a scalar tensor."""
    annotations = inspect.get_annotations(function)
    pointers = {
        key: _pointer(value) for key, value in bound.items() if isinstance(value, _PLACED) or _is_address(value)
    }
    values = {
        key: value if _is_constexpr(annotations.get(key)) else _value(name, key, value)
        for key, value in bound.items()
        if key not in pointers
    }
    return LaunchArguments(pointers, values)


def _is_address(x: object) -> TypeGuard[Addressed]:
    """Return whether an argument stands for a tensor of the machine, not of the host."""
    return isinstance(x, Addressed) and str(x.device).startswith((DEVICE, "cuda"))


def _pointer(x: Stored) -> Pointer:
    if isinstance(x, TensorDescriptor):
        if not isinstance(x.base, Tensor | Placed):
            raise InputError(f"a tensor descriptor of a {type(x.base).__name__}, which is no tensor of the machine")
        if x.round_f32_to_tf32:
            raise InputError("a tensor descriptor with round_f32_to_tf32: the machine has no tf32")
        return replace(_pointer(x.base), descriptor=copy(x))  # a hook may change the blocks for the next launch
    if isinstance(x, Tensor):
        return Pointer(x, 0, POINTED_TO[x.dtype], x.sip)
    ty = tl.str_to_ty(mangle_type(x), None).element_ty
    if not isinstance(x, Placed):
        return Pointer(None, x.data_ptr(), ty, x.device.index or 0)
    tensor, offset = x.place()
    return Pointer(tensor, offset, ty, tensor.sip)


def _is_constexpr(annotation: object) -> bool:
    return annotation is tl.constexpr or (isinstance(annotation, str) and annotation.endswith("constexpr"))


def _value(name: str, key: str, value: object) -> object:
    if isinstance(value, float | np.floating):
        return tl.tensor(TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)
    if isinstance(value, np.integer):
        value = value.item()
    if value is None or isinstance(value, int | str | tuple | tl.constexpr | tl.dtype):
        return interpreter._implicit_cvt(value)  # noqa: SLF001
    if isinstance(value, Addressed):
        return _null(name, key, value)
    raise InputError(
        f"kernel {name!r}: {key} is a {type(value).__name__}; a kernel takes tensors of the machine, numbers, strings, "
        f"types, tuples and None"
    )


def _null(name: str, key: str, value: Addressed) -> object:
    """Return a null pointer, as on a GPU, for an empty host tensor: programs pass one in place of no tensor."""
    if value.data_ptr():
        raise InputError(
            f"kernel {name!r}: {key} is a tensor on {value.device}; a kernel takes tensors of the machine: "
            f"{key}.to({DEVICE!r}) is one"
        )
    to = tl.pointer_type(tl.str_to_ty(mangle_type(value), None).element_ty)
    return tl.tensor(PointerHandle(0, to), to)


@state
class _WrittenRanges:
    """Forgets known values in the ranges that a kernel writes, but those that the host has written since its launch."""

    known: KnownValues
    n_writes: int = 0

    def __call__(self, sip: int, first: int, end: int) -> None:
        """Forget the values between two addresses of a SIP."""
        self.known.forget_range(sip, first, end, self.n_writes)


@state
class _KnownIntegers:
    """The integers in the tensors of a launch that a run without data knows when the launch starts.

    ``assumes_zeros``: integers that it does not know count as zeros, so that they are indices of any tensor.
    """

    known: KnownValues
    tensors: tuple[Tensor, ...]
    assumes_zeros: bool
    _elements: dict[Tensor, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Note the known elements: the program may change them while the launch waits."""
        known = {tensor: self.known.of(tensor) for tensor in self.tensors if tensor.dtype.numpy.kind in "iu"}
        self._elements = {tensor: elements.copy() for tensor, elements in known.items() if elements is not None}

    def at(self, starts: Mapping[Tensor, int], addresses: Array, item: DType) -> Array | None:
        """Return the elements of type ``item`` at addresses; None if some are not known. ``starts``: of the tensors."""
        first, last = (int(addresses.min()), int(addresses.max())) if addresses.size else (0, 0)
        for tensor, elements in self._elements.items():
            start = starts[tensor]
            if start <= first and last < start + tensor.nbytes and elements.dtype.itemsize == item.itemsize:
                return elements.reshape(-1)[(addresses.astype(np.int64) - start) // item.itemsize]
        return np.zeros(addresses.shape, item.numpy) if self.assumes_zeros else None


@state
class LaunchPace:
    """The wall time of the programs of a launch that have run so far, over all PEs.

    It begins with the first program: the launch may wait in a queue before.
    """

    kernel: str
    grid: LaunchGrid
    engine: GraphEngine
    _begin_s: float | None = None
    _done: int = 0

    def begin(self) -> None:
        """Note that a PE begins its programs."""
        if self._begin_s is None:
            self._begin_s = time.monotonic()

    def count_program(self) -> None:
        """Count a program that has run. Raises RunStopped if the remaining ones would exceed the wall-time limit.

        The prediction assumes that programs take equally long. It excludes phase 2.
        """
        self._done += 1
        limit_s = self.engine.limits.wall_s
        assert self._begin_s is not None, "a program that has run has begun"
        spent_s = time.monotonic() - self._begin_s
        if limit_s is None or spent_s < MEASURED * limit_s:
            return
        programs, left_s = prod(self.grid), max(self.engine.seconds_left(), 0.0)
        needed_s = spent_s / self._done * (programs - self._done)
        if needed_s > left_s:
            why = (
                f"kernel {self.kernel!r} has run {self._done:,} of the {programs:,} programs of grid {self.grid} in "
                f"{spent_s:.3g} s, {spent_s / self._done:.2g} s each; the others would take {needed_s:,.0f} s, and "
                f"{left_s:,.0f} s are left. Make the problem smaller (of a benchmark: --points N) or the "
                f"limit larger (--max-wall-s inf: none)"
            )
            raise RunStopped(self.engine.out_of_time(why))
