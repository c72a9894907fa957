"""Colours and pens of the drawing: the Okabe-Ito palette, which colour-blind readers can tell apart."""

from __future__ import annotations

from kernbench.common.values import value

INK, MUTED, PAPER = "#222222", "#777777", "#ffffff"
BLACK, ORANGE, SKY, GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILLION, PURPLE = "#0072b2", "#d55e00", "#cc79a7"


@value
class Paint:
    """The colours of a block: its fill and its outline."""

    fill: str
    line: str


SIP = Paint("#f6f6f4", "#b5b5b0")
CUBE = Paint("#ffffff", "#8c8c88")
CHIPLET = Paint("#efe4ee", "#a2709b")
HOST = Paint("#e9e9e9", "#555555")
PE = Paint("#f7e6ef", PURPLE)
PE_PART = Paint("#fdf7fa", "#dcaec7")
HBM = Paint("#d3efe6", GREEN)
SRAM = Paint("#e6f5ee", "#4fb191")
CPU = Paint("#f9dfcc", VERMILLION)
XBAR = Paint("#cfe4f2", BLUE)
ROUTER = Paint("#dcf0fb", "#2b94cf")
UCIE = Paint("#fbe3b3", "#c98a00")
EXTRA = Paint("#faf6c9", "#a89b1c")

LINK_COLOURS = {
    "host_to_switch": "#666666",
    "switch_to_sip": "#666666",
    "sip_to_sip": VERMILLION,
    "io_internal": "#a2709b",
    "io_to_cube": ORANGE,
    "cube_to_cube": ORANGE,
    "noc": SKY,
    "router_to_ucie": ORANGE,
    "xbar_to_router": BLUE,
    "xbar_to_hbm": GREEN,
    "pe_to_xbar": PURPLE,
    "router_to_m_cpu": VERMILLION,
    "router_to_sram": "#4fb191",
}


def link_colour(link_class: str) -> str:
    """Return the colour of a class of links; all classes of extra parts share one colour."""
    return LINK_COLOURS.get(link_class, EXTRA.line)
