"""Kernels of the package, by the names that a launch accepts."""

from collections.abc import Callable
from types import MappingProxyType

from kernbench.common.errors import UnknownNameError
from kernbench.kernels.attention import attention
from kernbench.kernels.elementwise import (
    add,
    elementwise,
    elementwise_composite,
    mul,
    offset_copy,
    shards_to_rows,
    silu_mul,
    strided_copy,
)
from kernbench.kernels.gemm import (
    gemm_columns,
    gemm_composite,
    gemm_simple,
    qkv_composite,
    qkv_projection,
)
from kernbench.kernels.indexing import embedding_one_hot, embedding_rows
from kernbench.kernels.linear import add_bias, linear, mlp
from kernbench.kernels.norms import layernorm, rmsnorm, softmax

__all__ = ["BUILTIN_KERNELS", "builtin_kernel"]

BUILTIN_KERNELS: MappingProxyType[str, Callable[..., None]] = MappingProxyType(
    {
        "builtin.add": add,
        "builtin.add_bias": add_bias,
        "builtin.attention": attention,
        "builtin.elementwise": elementwise,
        "builtin.elementwise_composite": elementwise_composite,
        "builtin.embedding_one_hot": embedding_one_hot,
        "builtin.embedding_rows": embedding_rows,
        "builtin.gemm": gemm_simple,
        "builtin.gemm_columns": gemm_columns,
        "builtin.gemm_composite": gemm_composite,
        "builtin.layernorm": layernorm,
        "builtin.linear": linear,
        "builtin.mlp": mlp,
        "builtin.mul": mul,
        "builtin.offset_copy": offset_copy,
        "builtin.qkv": qkv_projection,
        "builtin.qkv_composite": qkv_composite,
        "builtin.rmsnorm": rmsnorm,
        "builtin.shards_to_rows": shards_to_rows,
        "builtin.silu_mul": silu_mul,
        "builtin.softmax": softmax,
        "builtin.strided_copy": strided_copy,
    }
)


def builtin_kernel(name: str) -> Callable[..., None]:
    """Return the kernel called ``name``, with or without ``builtin.``. Raises UnknownNameError with all names."""
    found = BUILTIN_KERNELS.get(name) or BUILTIN_KERNELS.get(f"builtin.{name}")
    if found is None:
        raise UnknownNameError("kernel", name, tuple(BUILTIN_KERNELS))
    return found
