"""Calls of a kernel that make sense only on a GPU (``triton.language.extra.cuda``), or only in an older Triton.

Each call is ignored with a warning, or refused with its name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import MappingProxyType, ModuleType
from typing import Any

from kernbench.frontends.triton.running import refused
from kernbench.triton_emu.source import call_place


def _ignoring(name: str, why: str) -> Callable[..., None]:
    def ignore(*_: object, **__: object) -> None:
        warnings.warn(f"{call_place()}: {name} does nothing: {why}", RuntimeWarning, stacklevel=2)

    return ignore


def _refusing(name: str, why: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise refused(f"{name}: {why}")

    return refuse


_IN_ORDER = "launches that touch the same PEs run one after another"
_NO_WARPS = "a program of a PE has no warps"
_GPU_ALONE = MappingProxyType(
    {
        "num_threads": _NO_WARPS,
        "num_warps": _NO_WARPS,
        "smid": "tl.program_id identifies the program",
        "globaltimer": "a kernel has no clock; --explain and --trace show when it does what",
    }
)
_NO_BLOCK_POINTERS = (
    "Triton has no block pointers any more; take tl.make_tensor_descriptor(base, shape, strides, block_shape), "
    "with the place of a block in its load and store, or pointers and a mask"
)
FUNCTIONS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {name: _ignoring(name, _IN_ORDER) for name in ("gdc_wait", "gdc_launch_dependents")}
    | {name: _refusing(f"tl.extra.cuda.{name}", why) for name, why in _GPU_ALONE.items()}
    | {name: _refusing(f"tl.{name}", _NO_BLOCK_POINTERS) for name in ("make_block_ptr", "advance")}
)


def names_in(module: ModuleType) -> list[str]:
    """Return the names in a module of Triton that FUNCTIONS replaces."""
    return [name for name in FUNCTIONS if name in vars(module)]
