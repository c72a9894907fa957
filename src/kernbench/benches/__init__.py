"""The benches that ship with the package; importing it registers all of them."""

from kernbench.benches import (
    attention,
    gemm_single_pe,
    matmul_composite,
    milestone_1h_gemm,
    qkv_gemm,
    qkv_gemm_multi_pe,
    va_offset_verify,
)

__all__ = [
    "attention",
    "gemm_single_pe",
    "matmul_composite",
    "milestone_1h_gemm",
    "qkv_gemm",
    "qkv_gemm_multi_pe",
    "va_offset_verify",
]
