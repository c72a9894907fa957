"""The builtin component models. Importing the package registers all of them."""

from kernbench.components import (
    hbm_ctrl,
    host,
    io_cpu,
    m_cpu,
    passive,
    pe_cpu,
    pe_dma,
    pe_fetch_store,
    pe_gemm,
    pe_ipcq,
    pe_math,
    pe_mmu,
    pe_scheduler,
    pe_tcm,
    sram,
)

__all__ = [
    "hbm_ctrl",
    "host",
    "io_cpu",
    "m_cpu",
    "passive",
    "pe_cpu",
    "pe_dma",
    "pe_fetch_store",
    "pe_gemm",
    "pe_ipcq",
    "pe_math",
    "pe_mmu",
    "pe_scheduler",
    "pe_tcm",
    "sram",
]
