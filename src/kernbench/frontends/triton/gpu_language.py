"""``triton.language.extra.cuda``: what a kernel asks of a GPU alone. It means nothing here, or is refused by name."""

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
        raise refused(f"tl.extra.cuda.{name}: {why}")

    return refuse


_IN_ORDER = "launches that touch the same PEs run one after another"
_NO_WARPS = "a program of a PE has no warps"
FUNCTIONS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {name: _ignoring(name, _IN_ORDER) for name in ("gdc_wait", "gdc_launch_dependents")}
    | {name: _refusing(name, _NO_WARPS) for name in ("num_threads", "num_warps")}
    | {"smid": _refusing("smid", "tl.program_id says which program it is")}
    | {"globaltimer": _refusing("globaltimer", "a kernel has no clock; --explain and --trace say when it does what")}
)


def names_in(module: ModuleType) -> list[str]:
    """Return the names of a module of Triton that these take the place of."""
    return [name for name in FUNCTIONS if name in vars(module)]
