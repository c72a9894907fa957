"""Launches of generated Triton kernels: the blocks, the grid, and the calls of the program that each carries out.

A kernel has a program for each PE that stores a part of its largest tensor: the memories of few PEs serve more PEs
later, not faster. A program computes whole rows if scratch has room for them. If all PEs have work, it is divided
further where loads of the next program overlap with the computation of this one, and the kernel ends earlier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, GridExpr

from kernbench.common.values import state, value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.placed import grid_for, whole_grid
from kernbench.frontends.torch.launches import measure
from kernbench.frontends.torch.modules import call_from, traced_call
from kernbench.frontends.torch.storage import current
from kernbench.frontends.triton.launch import Launchable, LaunchOrigin, launch
from kernbench.runtime_api.context import AnyContext
from kernbench.topology.spec import TopologySpec

_MOST_PROGRAMS = 4
"""Maximum number of programs of a PE whose scratch has room for their work in one"""
_WIDE_BYTES = 4
"""Bytes of an element while it is computed"""
_LEAST_COLUMNS = 16
"""Minimum width of a block of a reduction along columns. Narrower blocks of several PEs read the same bursts of HBM"""
_LIVE_RESULTS = 4
"""Intermediate results of a kernel that are in use at one time"""


@value
class PeSizes:
    """The scratch of a PE in bytes, its rates in bytes per ns, and the start of a command of MATH."""

    scratch_bytes: int
    read_bytes_per_ns: float
    math_bytes_per_ns: float
    math_start_ns: float

    @staticmethod
    def of(spec: TopologySpec) -> PeSizes:
        """Return the sizes of a machine's PEs."""
        math, cpu = spec.pe.math, spec.pe.components.pe_cpu.attrs
        rate = spec.cube.links.pe_to_xbar.bw_gbs
        return PeSizes(spec.pe.tcm.scratch_bytes, rate, math.bytes_per_ns, math.startup_ns + cpu.issue_ns)


@value
class KernelPes:
    """The number of PEs that share a kernel's work, and their sizes. ``has_all``: no PE is left without work."""

    count: int
    has_all: bool
    sizes: PeSizes


@value
class KernelWork:
    """The work of a generated kernel: its ``extents`` by axis (x, y, r0_), and its commands and arrays of a block.

    ``arrays``: blocks that are loaded or stored; ``commands``: operations of MATH on a block. ``item_bytes``: the mean
    size of an element in memory. ``least_x``: minimum extent of a block along x.
    """

    extents: Mapping[str, int]
    arrays: int
    commands: int
    item_bytes: float
    least_x: int = 1

    def most_elements(self, pe: PeSizes) -> int:
        """Return the largest power of two such that blocks of so many elements fit in scratch, two programs at once."""
        live = self.arrays + _LIVE_RESULTS
        return 1 << max(0, (pe.scratch_bytes // (2 * _WIDE_BYTES * live)).bit_length() - 1)

    def ns(self, elements: int, programs: int, pes: KernelPes) -> float:
        """Return an estimate of the time of ``programs`` programs of ``elements`` elements."""
        rounds, pe = -(-programs // pes.count), pes.sizes
        read_ns = self.arrays * self.item_bytes * elements / pe.read_bytes_per_ns
        math_ns = self.commands * (pe.math_start_ns + _WIDE_BYTES * elements / pe.math_bytes_per_ns)
        return read_ns + (rounds - 1) * max(read_ns, math_ns) + math_ns


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << max(0, n - 1).bit_length()


def choose_blocks(blocks: Mapping[str, int], work: KernelWork, pes: KernelPes) -> dict[str, int]:
    """Return the block of each axis of a kernel. ``blocks``: Inductor's sizes, by parameter.

    Parameters other than blocks of axes keep their values.
    """
    most, extents = work.most_elements(pes.sizes), work.extents
    chosen = dict(blocks)
    if "R0_BLOCK" in blocks:
        chosen["R0_BLOCK"] = min(power_of_two(extents["r0_"]), most)
    row = chosen.get("R0_BLOCK", power_of_two(extents.get("r0_", 1)))
    if "XBLOCK" not in blocks:
        return chosen
    x, y = extents.get("x", 1), extents.get("y", 1)
    widest = max(1, most // row)
    least = min(widest, power_of_two(x), work.least_x)
    share = max(least, min(widest, power_of_two(-(-(x * y) // pes.count))))
    if "YBLOCK" not in blocks:
        chosen["XBLOCK"] = max(least, _divide(share, row, x, work, pes))
        return chosen
    chosen["XBLOCK"] = min(power_of_two(x), share)
    columns = -(-x // chosen["XBLOCK"])
    tallest = max(1, min(power_of_two(y), share // chosen["XBLOCK"]))
    chosen["YBLOCK"] = _divide(tallest, row * chosen["XBLOCK"], y, work, pes, columns)
    return chosen


def _divide(largest: int, inner: int, extent: int, work: KernelWork, pes: KernelPes, columns: int = 1) -> int:
    """Return the block of an axis of ``extent``, at most ``largest``, that ends first.

    Each index has ``inner`` elements. ``columns``: the number of blocks along the other axis.
    """
    most = _MOST_PROGRAMS if pes.has_all else 1
    sizes = [largest >> shift for shift in range(most.bit_length()) if largest >> shift]
    return min(sizes, key=lambda size: work.ns(size * inner, columns * -(-extent // size), pes))


_COMMAND = re.compile(r"^\s+tmp\d+ = (?!tl\.load|tl\.full|tl\.broadcast_to)", re.MULTILINE)
_GENERATED = re.compile(r"^triton_[a-z]+_fused_|_\d+$")
_NUMEL = "numel"


@state
class _Chosen:
    """The grid and blocks of a kernel for each list of extents, on the machine ``context``."""

    context: AnyContext
    by_extents: dict[tuple[object, ...], tuple[tuple[int, int, int], Mapping[str, int]]]


class GeneratedKernel:
    """A kernel of Inductor on the machine. The names of its arguments are those of its signature, without blocks."""

    def __init__(self, tuner: CachingAutotuner) -> None:
        meta, config = tuner.inductor_meta, tuner.configs[0]
        self.names = [name for name in tuner.triton_meta["signature"] if name not in config.kwargs]
        self.meta, self.blocks, self.size_hints = meta, dict(config.kwargs), dict(tuner.size_hints or {})
        self.least_x = 1 if meta.get("reduction_hint") in (None, ReductionHint.INNER) else _LEAST_COLUMNS
        self.kernel: Launchable = tuner.fn
        self.arrays = meta.get("num_load", 1) + meta.get("num_store", 1)
        self.commands = max(1, len(_COMMAND.findall(tuner.fn.src)))
        self.title = _GENERATED.sub("", tuner.fn.__name__)
        self._chosen: _Chosen | None = None

    def run(self, args: tuple[Any, ...]) -> None:
        """Launch the kernel once."""
        context, call = current(), traced_call()
        context.compiled.generated += 1
        grid, blocks = self._choose(args, context)
        operators = self.title if call is None or not call.operators else call.operators
        with measure(operators):
            launch(self.kernel, grid, args, blocks, _origin(operators))

    def _choose(self, args: tuple[Any, ...], context: AnyContext) -> tuple[tuple[int, int, int], Mapping[str, int]]:
        if self._chosen is None or self._chosen.context is not context:
            self._chosen = _Chosen(context, {})
        key = tuple([x if isinstance(x, int) else (x.numel(), x.dtype) for x in args if isinstance(x, int | Tensor)])
        chosen = self._chosen.by_extents.get(key)
        if chosen is None:
            chosen = self._chosen.by_extents[key] = self._size(args, context)
        return chosen

    def _size(self, args: tuple[Any, ...], context: AnyContext) -> tuple[tuple[int, int, int], Mapping[str, int]]:
        named = dict(zip([*self.names, *self.meta.get("extra_launcher_args", ())], args, strict=False))
        extents = {
            name.removesuffix(_NUMEL).rstrip("_") if name != f"r0_{_NUMEL}" else "r0_": int(extent)
            for name, extent in named.items()
            if name.endswith(_NUMEL)
        }
        tensors = [x for x in args if isinstance(x, Tensor)]
        nbytes = max((x.numel() * x.element_size() for x in tensors), default=1)
        cubes, pes = grid_for(context, nbytes)
        item_bytes = sum(x.element_size() for x in tensors) / max(1, len(tensors))
        work = KernelWork(extents, self.arrays, self.commands, item_bytes, self.least_x)
        usable = KernelPes(cubes * pes, (cubes, pes) == whole_grid(context), PeSizes.of(context.topology))
        blocks = choose_blocks(self.blocks, work, usable)
        grid = GridExpr.from_meta(self.meta, blocks).eval_slow(named)
        return grid, blocks


def _origin(operators: str) -> LaunchOrigin:
    """Return the origin of a launch that carries out ``operators``."""
    call = traced_call()
    if call is None or call.place is None:
        return LaunchOrigin(" ".join(filter(None, (call.module if call else "", operators))), "", "", None)
    title = " ".join(filter(None, (call.module, operators, str(call.place))))
    return LaunchOrigin(title, call.place.file, str(call.place), call_from(call.place))


def run_on_machine(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that runs Inductor's kernels, changed to launch those for the machine there."""

    @wraps(run)
    def run_here(tuner: CachingAutotuner, *args: Any, stream: object, **options: Any) -> Any:
        if tuner.device_props.type != DEVICE:
            return run(tuner, *args, stream=stream, **options)
        kernel = _KERNELS.get(tuner)
        if kernel is None:
            kernel = _KERNELS[tuner] = GeneratedKernel(tuner)
        kernel.run(args)
        return None

    return run_here


_KERNELS: WeakKeyDictionary[CachingAutotuner, GeneratedKernel] = WeakKeyDictionary()
