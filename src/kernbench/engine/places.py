"""What each place of the machine calls of the part that stands there. A class of a user's may override that."""

from __future__ import annotations

_MADE = ("abandon", "blocked", "failures", "reset")  # of every part, once it has been made
_PASSED = ("overhead_ns",)  # when a link into the part is made
_ENTERED = (*_PASSED, "handles_serially")  # the same, where messages end
_CPU = (*_ENTERED, "overhead_ps", "receive", "handle")
_CONTROL_CPU = (*_CPU, "run", "handling_ns")

CALLED: dict[str, tuple[str, ...]] = {
    "host": (*_ENTERED, "accept", "receive", "run", "handle"),
    "switch": _PASSED,
    "pcie_ep": _PASSED,
    "io_cpu": _CONTROL_CPU,
    "io_noc": _PASSED,
    "ucie": _PASSED,
    "sip_port": _PASSED,
    "noc_router": _PASSED,
    "xbar": _PASSED,
    "hbm_ctrl": (*_ENTERED, "receive"),
    "m_cpu": _CONTROL_CPU,
    "sram": (*_ENTERED, "receive", "time_ps"),
    "pe_cpu": _CPU,
    "pe_scheduler": ("submit",),
    "pe_dma": (*_ENTERED, "accept", "receive", "start", "write"),
    "pe_fetch_store": ("fetch_ps", "store_ps"),
    "pe_gemm": ("tile_ps",),
    "pe_math": ("operation_ps", "submit"),
    "pe_tcm": ("read_ps", "write_ps"),
    "pe_mmu": (),
    "pe_ipcq": ("overhead_ns", "overhead_ps", "arrived"),
}
"""By kind, beside what is called of every part."""

COMPONENT_CALLS = frozenset((*_MADE, *_ENTERED, "overhead_ps", "receive", "accept"))
"""What the base class has."""
OTHER_CALLS = frozenset(name for names in CALLED.values() for name in names) - COMPONENT_CALLS
"""What the builtin classes of some kinds have beside it."""


def called_at(kind: str) -> tuple[str, ...]:
    """What is called of a part of this kind, sorted."""
    return tuple(sorted((*_MADE, *CALLED[kind])))
