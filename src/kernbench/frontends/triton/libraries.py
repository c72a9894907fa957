"""GPU libraries that host programs of Triton call: the profiler proton, and cuBLAS."""

from __future__ import annotations

import sys
from types import MappingProxyType, ModuleType
from typing import Any

from kernbench.common.errors import InputError

_ADVICE = "--explain and --trace say where the time went"


def _start(name: object = None, **_: object) -> None:  # noqa: ARG001
    """Print that the machine does not record profiles. Replaces ``triton.profiler.start``."""
    print(f"triton.profiler: proton reads counters of a GPU, and records nothing here; {_ADVICE}")


def _nothing(*_: object, **__: object) -> None:
    """Do nothing. Replaces the functions that continue or end a recording."""


def _refuse(*_: object, **__: object) -> Any:
    raise InputError(f"triton.profiler.viewer: proton has recorded nothing here that could be shown; {_ADVICE}")


PROTON = MappingProxyType({"start": _start, "activate": _nothing, "deactivate": _nothing, "finalize": _nothing})


class BlasLt:
    """``CublasLt`` and ``HipblasLt``: products of PyTorch tensors, computed as in PyTorch itself."""

    def __init__(self, workspace: object) -> None: ...

    def matmul(self, a: Any, b: Any, c: Any) -> None:
        """Store the product of ``a`` and the transpose of ``b`` in ``c``."""
        c.copy_(_wide(a) @ _wide(b).T)

    def gemm(self, a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float) -> None:
        """Store ``alpha`` times the product of ``a`` and the transpose of ``b``, plus ``beta * c``, in ``d``."""
        d.copy_(alpha * (_wide(a) @ _wide(b).T) + beta * c)

    def block_scaled_matmul_mxfp8(self, *_: object) -> None:
        """Refuse: the machine has no scaled factors."""
        raise InputError("block_scaled_matmul_mxfp8: the machine multiplies no block-scaled matrices")

    def block_scaled_matmul_nvfp4(self, *_: object) -> None:
        """Refuse: the machine has no scaled factors."""
        raise InputError("block_scaled_matmul_nvfp4: the machine multiplies no block-scaled matrices")


def _wide(x: Any) -> Any:
    return x.float() if x.element_size() == 1 else x


def install(profiler: ModuleType, nvidia: ModuleType, amd: ModuleType) -> None:
    """Replace the functions in ``triton.profiler`` and the classes in Triton's modules of GPU vendors."""
    for module in (profiler, sys.modules[profiler.start.__module__]):
        for name, function in PROTON.items():
            setattr(module, name, function)
    viewer = ModuleType(f"{profiler.__name__}.viewer")
    viewer.parse = viewer.read = viewer.print_tree = _refuse  # type: ignore[attr-defined]
    sys.modules[viewer.__name__] = profiler.viewer = viewer  # type: ignore[attr-defined]
    nvidia.cublas.CublasLt = amd.hipblas.HipblasLt = BlasLt
