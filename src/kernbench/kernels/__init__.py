"""Kernels of the package, by the names that a launch accepts. The module of a kernel is imported on first use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from kernbench.common.errors import UnknownNameError
from kernbench.common.late import late

Kernel: TypeAlias = Callable[..., None]
__all__ = ["BUILTIN_KERNELS", "PartialWork", "builtin_kernel"]

_PREFIX = "builtin."
_MODULES = {
    "attention": ("attention",),
    "elementwise": (
        *("add", "elementwise", "elementwise_composite", "mul", "offset_copy", "shards_to_rows", "silu_mul"),
        "strided_copy",
    ),
    "gemm": ("gemm_columns", "gemm_composite", "gemm_simple", "qkv_composite", "qkv_projection"),
    "indexing": ("embedding_one_hot", "embedding_rows"),
    "linear": ("add_bias", "linear", "mlp"),
    "norms": ("layernorm", "rmsnorm", "softmax"),
}
"""The functions of each module that a launch accepts by name"""
_NAMES = {"gemm_simple": "gemm", "qkv_projection": "qkv"}
"""The names of functions that have another name in a launch"""


class PartialWork(ABC):
    """A value of a kernel of which a part, ``work_key``, decides the work: launches that differ elsewhere are alike."""

    __slots__ = ()

    @property
    @abstractmethod
    def work_key(self) -> object:
        """The content that decides the work."""


class _KernelsByName(Mapping[str, Kernel]):
    """The kernels by their names, sorted."""

    def __init__(self) -> None:
        places = {_PREFIX + _NAMES.get(name, name): (module, name) for module in _MODULES for name in _MODULES[module]}
        self._places = dict(sorted(places.items()))

    def __getitem__(self, name: str) -> Kernel:
        module, function = self._places[name]
        kernel: Kernel = late(f"{__name__}.{module}", function)
        return kernel

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


BUILTIN_KERNELS: Mapping[str, Kernel] = _KernelsByName()


def builtin_kernel(name: str) -> Kernel:
    """Return the kernel called ``name``, with or without ``builtin.``. Raises UnknownNameError with all names."""
    full_name = name if name in BUILTIN_KERNELS else _PREFIX + name
    if full_name not in BUILTIN_KERNELS:
        raise UnknownNameError("kernel", name, tuple(BUILTIN_KERNELS))
    return BUILTIN_KERNELS[full_name]
