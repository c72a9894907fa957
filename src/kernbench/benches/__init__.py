"""The benches that ship with the package; importing it registers all of them."""

from kernbench.benches import gemm_single_pe, qkv_gemm, qkv_gemm_multi_pe, va_offset_verify

__all__ = ["gemm_single_pe", "qkv_gemm", "qkv_gemm_multi_pe", "va_offset_verify"]
