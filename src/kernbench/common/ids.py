"""Ids of the machine's components.

This file writes them and no code parses them: a node carries its coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence

HOST = "host"
SWITCH = "switch"


def sip_part(sip: int, part: str) -> str:
    """Return the id of a component of a SIP: ``sip0.io_cpu``, ``sip0.io_ucie_2``, ``sip0.sip_port_1``."""
    return f"sip{sip}.{part}"


def cube_part(sip: int, cube: int, part: str) -> str:
    """Return the id of a component of a cube: ``sip0.cube3.m_cpu``, ``sip0.cube3.hbm5``, ``sip0.cube3.r1_2``."""
    return f"sip{sip}.cube{cube}.{part}"


def pe_part(sip: int, cube: int, pe: int, part: str) -> str:
    """Return the id of a component of a PE: ``sip0.cube3.pe5.pe_dma``."""
    return f"sip{sip}.cube{cube}.pe{pe}.{part}"


def pe_name(pe: tuple[int, int, int]) -> str:
    """Return the name of the PE at (sip, cube, pe): ``sip0.cube3.pe5``."""
    return f"sip{pe[0]}.cube{pe[1]}.pe{pe[2]}"


def pe_names(pes: Sequence[tuple[int, int, int]], most: int = 4) -> str:
    """Return the names of the first ``most`` PEs, and the number of those left out."""
    more = f" and {len(pes) - most} more" if len(pes) > most else ""
    return ", ".join(map(pe_name, pes[:most])) + more


def router_id(sip: int, cube: int, x: int, y: int) -> str:
    """Return the id of a router: ``sip0.cube3.r1_2`` is in column 1 of row 2."""
    return cube_part(sip, cube, f"r{x}_{y}")


def xbar_id(sip: int, cube: int, corner: str) -> str:
    """Return the id of a crossbar: ``sip0.cube3.xbar_NW``."""
    return cube_part(sip, cube, f"xbar_{corner}")


def hbm_id(sip: int, cube: int, index: int) -> str:
    """Return the id of an HBM controller: ``sip0.cube3.hbm5``."""
    return cube_part(sip, cube, f"hbm{index}")


def ucie_id(sip: int, cube: int, side: str) -> str:
    """Return the id of a cube's UCIe port: ``sip0.cube3.ucie_N``."""
    return cube_part(sip, cube, f"ucie_{side}")


def io_ucie_id(sip: int, index: int) -> str:
    """Return the id of a UCIe port of the IO chiplet: ``sip0.io_ucie_2`` links the third column or row of cubes."""
    return sip_part(sip, f"io_ucie_{index}")


def sip_port_id(sip: int, index: int) -> str:
    """Return the id of a port between SIPs: ``sip0.sip_port_1``."""
    return sip_part(sip, f"sip_port_{index}")


def pe_dma_id(sip: int, cube: int, pe: int) -> str:
    """Return the id of a PE's DMA engine: ``sip0.cube3.pe5.pe_dma``."""
    return pe_part(sip, cube, pe, "pe_dma")
