"""Kernels that ship with the package, by the names that launches may give."""

from collections.abc import Callable
from types import MappingProxyType

from kernbench.common.errors import UnknownNameError
from kernbench.kernels.copy import offset_copy
from kernbench.kernels.gemm import gemm_columns, gemm_simple
from kernbench.kernels.qkv import qkv_projection

__all__ = ["BUILTIN_KERNELS", "builtin_kernel"]

BUILTIN_KERNELS: MappingProxyType[str, Callable[..., None]] = MappingProxyType(
    {
        "builtin.gemm": gemm_simple,
        "builtin.gemm_columns": gemm_columns,
        "builtin.offset_copy": offset_copy,
        "builtin.qkv": qkv_projection,
    }
)


def builtin_kernel(name: str) -> Callable[..., None]:
    """The kernel called ``name``, with or without ``builtin.``; UnknownNameError lists the names."""
    found = BUILTIN_KERNELS.get(name) or BUILTIN_KERNELS.get(f"builtin.{name}")
    if found is None:
        raise UnknownNameError("kernel", name, tuple(BUILTIN_KERNELS))
    return found
