"""Names of the machine's parts. Written here and nowhere parsed: a node carries its coordinates."""

from __future__ import annotations

HOST = "host"
SWITCH = "switch"


def sip_part(sip: int, part: str) -> str:
    """``sip0.io_cpu``, ``sip0.io_ucie_2``, ``sip0.sip_port_1``."""
    return f"sip{sip}.{part}"


def cube_part(sip: int, cube: int, part: str) -> str:
    """``sip0.cube3.m_cpu``, ``sip0.cube3.hbm5``, ``sip0.cube3.r1_2``."""
    return f"sip{sip}.cube{cube}.{part}"


def pe_part(sip: int, cube: int, pe: int, part: str) -> str:
    """``sip0.cube3.pe5.pe_dma``."""
    return f"sip{sip}.cube{cube}.pe{pe}.{part}"


def pe_name(pe: tuple[int, int, int]) -> str:
    """``sip0.cube3.pe5``, of coordinates (sip, cube, pe)."""
    return f"sip{pe[0]}.cube{pe[1]}.pe{pe[2]}"
