"""Launches of generated Triton kernels: the blocks, the grid, and the calls of the program that each carries out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, GridExpr

from kernbench.common.values import state
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.placed import grid_for, whole_grid
from kernbench.frontends.torch.inductor.blocks import KernelPes, KernelWork, PeSizes, choose_blocks
from kernbench.frontends.torch.launches import measure
from kernbench.frontends.torch.modules import call_from, traced_call
from kernbench.frontends.torch.storage import current
from kernbench.frontends.triton.launch import Launchable, LaunchOrigin, launch
from kernbench.runtime_api.context import AnyContext

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
        work = KernelWork(extents, self.arrays, self.commands, item_bytes)
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
