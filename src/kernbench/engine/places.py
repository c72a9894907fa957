"""What each place of the machine calls of the part that stands there. A class of a user's may override that."""

from __future__ import annotations

_MADE = ("abandon", "blocked", "failures", "reset")  # of every part, once it has been made
_PASSED = ("overhead_ns",)  # when a link into the part is made
_TRANSIT = (*_PASSED, "forward", "hold_ns")  # when the head of a transfer enters it
_ENTERED = (*_PASSED, "handles_serially")  # the same, where messages end
_MEMORY = (*_ENTERED, "receive", "run", "serve")
_CPU = (*_ENTERED, "overhead_ps", "receive", "handle")
_CONTROL_CPU = (*_CPU, "run", "handling_ns")

CALLED: dict[str, tuple[str, ...]] = {
    "host": (*_ENTERED, "accept", "receive", "run", "handle"),
    "switch": _TRANSIT,
    "pcie_ep": _TRANSIT,
    "io_cpu": _CONTROL_CPU,
    "io_noc": _TRANSIT,
    "ucie": _TRANSIT,
    "sip_port": _TRANSIT,
    "noc_router": _TRANSIT,
    "xbar": _TRANSIT,
    "hbm_ctrl": _MEMORY,
    "m_cpu": _CONTROL_CPU,
    "sram": _MEMORY,
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

EXTRA = (*_ENTERED, "overhead_ps", "receive")
"""Of an extra part; beside it, what its own classes call of themselves"""

COMPONENT_CALLS = frozenset((*_MADE, *_ENTERED, "overhead_ps", "receive", "accept"))
"""What the base class has."""
CALLED_BY_BASE = frozenset(("forward", "hold_ns", "serve"))
"""What the builtin class of a kind calls of itself: a class that is not derived from it has to go without."""
LOOK_ALIKES = ("hold", "time_ps")
"""What is not called, but looks like it: ``hold_ns`` and a memory's ``serve`` are."""
OTHER_CALLS = frozenset((*LOOK_ALIKES, *(name for names in CALLED.values() for name in names))) - COMPONENT_CALLS
"""What the builtin classes of some kinds have beside it, or users may take for that."""


def called_at(kind: str) -> tuple[str, ...]:
    """What is called of a part of this kind, sorted; of another kind than these, which is an extra part's."""
    return tuple(sorted((*_MADE, *CALLED.get(kind, EXTRA))))
