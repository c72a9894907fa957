"""The builtin benches. Importing the package registers all of them."""

from kernbench.benches import (
    attention,
    ccl_allreduce,
    gemm_single_pe,
    hello_send,
    ipcq_allreduce,
    matmul_composite,
    milestone_1h_ccl,
    milestone_1h_gemm,
    qkv_gemm,
    qkv_gemm_multi_pe,
    tp_block,
    tp_mlp,
    va_offset_verify,
)

__all__ = [
    "attention",
    "ccl_allreduce",
    "gemm_single_pe",
    "hello_send",
    "ipcq_allreduce",
    "matmul_composite",
    "milestone_1h_ccl",
    "milestone_1h_gemm",
    "qkv_gemm",
    "qkv_gemm_multi_pe",
    "tp_block",
    "tp_mlp",
    "va_offset_verify",
]
