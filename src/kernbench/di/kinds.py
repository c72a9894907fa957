"""The kinds of part that a machine has. A kind is a place in the machine; an implementation is a class for it."""

from __future__ import annotations

SYSTEM_KINDS = ("host", "switch")
SIP_KINDS = ("pcie_ep", "io_cpu", "io_noc", "ucie", "sip_port")
CUBE_KINDS = ("noc_router", "xbar", "hbm_ctrl", "m_cpu", "sram")  # and ucie
PE_KINDS = (
    "pe_cpu",
    "pe_scheduler",
    "pe_dma",
    "pe_fetch_store",
    "pe_gemm",
    "pe_math",
    "pe_tcm",
    "pe_mmu",
    "pe_ipcq",
)
KINDS = SYSTEM_KINDS + SIP_KINDS + CUBE_KINDS + PE_KINDS
