"""Names of parts within their cube or SIP; ``common.ids`` puts the cube or SIP before them."""

from __future__ import annotations

from kernbench.common.ids import cube_part, pe_part, sip_part


def router_id(sip: int, cube: int, x: int, y: int) -> str:
    """``sip0.cube3.r1_2``: the router in column 1 of row 2."""
    return cube_part(sip, cube, f"r{x}_{y}")


def xbar_id(sip: int, cube: int, corner: str) -> str:
    """``sip0.cube3.xbar_NW``."""
    return cube_part(sip, cube, f"xbar_{corner}")


def hbm_id(sip: int, cube: int, index: int) -> str:
    """``sip0.cube3.hbm5``."""
    return cube_part(sip, cube, f"hbm{index}")


def ucie_id(sip: int, cube: int, side: str) -> str:
    """``sip0.cube3.ucie_N``."""
    return cube_part(sip, cube, f"ucie_{side}")


def io_ucie_id(sip: int, index: int) -> str:
    """``sip0.io_ucie_2``: the IO chiplet's link to the third column or row of cubes."""
    return sip_part(sip, f"io_ucie_{index}")


def sip_port_id(sip: int, index: int) -> str:
    """``sip0.sip_port_1``."""
    return sip_part(sip, f"sip_port_{index}")


def pe_dma_id(sip: int, cube: int, pe: int) -> str:
    """``sip0.cube3.pe5.pe_dma``."""
    return pe_part(sip, cube, pe, "pe_dma")
