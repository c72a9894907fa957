"""The base of component implementations for the registry and the topology, and the kinds of part.

A kind is a place in the machine. An implementation is a class for that place. A user's class may override the methods
that its place calls.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import SerializerFunctionWrapHandler, model_serializer

from kernbench.common.config import Bandwidth, ConfigModel, Duration
from kernbench.common.values import value

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


COMPONENT = "kernbench.sim_engine.component.Component"
"""The base class of parts, by the name that users import"""
THINKING_PART = "kernbench.sim_engine.component.ThinkingPart"
"""The base class of parts with a SimPy process, by the name that users import"""


class InnerAttrs(ConfigModel):
    """The ``attrs`` of a part that no packet enters, such as an engine of a PE: no key."""


class PartAttrs(InnerAttrs):
    """The ``attrs`` of a part in YAML. A class with more keys declares a subclass of its kind's model.

    An unset ``rate_gbs`` is left out of the serialised form.
    """

    overhead_ns: Duration = 0.0
    """Latency to enter the part."""
    rate_gbs: Bandwidth | None = None
    """Bandwidth of each link out of the part, if lower than the link's; null: no limit."""

    @model_serializer(mode="wrap")
    def _without_no_rate(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        attributes: dict[str, Any] = plain(self)
        return {name: value for name, value in attributes.items() if name != "rate_gbs" or value is not None}


@value
class PartUse:
    """The work of a part in a run: bytes over its links, accesses or messages that it received, and its busy time."""

    bytes_in: int
    bytes_out: int
    accesses: int
    busy_ns: float


class Part:
    """Base of every component class. Users derive from the class that ``COMPONENT`` names.

    ``Attrs`` is the model that checks the ``attrs`` of the class in YAML. By default the kind's model checks them.
    ``stands_alone``: a class of a builtin kind may also stand at ``cube.extra`` and ``pe.extra``, such as a memory.
    ``static_w``, ``area_mm2``: the static power in W and the area in mm² of each part of the class. None: those of the
    builtin kind at its place, or 0.
    """

    Attrs: ClassVar[type[InnerAttrs]] = PartAttrs
    stands_alone: ClassVar[bool] = False
    static_w: ClassVar[float | None] = None
    area_mm2: ClassVar[float | None] = None

    @property
    def states_energy(self) -> bool:
        """True if the class defines ``energy_pj``."""
        return type(self).energy_pj is not Part.energy_pj

    def energy_pj(self, use: PartUse) -> float:
        """Return the dynamic energy of a run in pJ. By default, the keys of the kind at the part's place decide it."""
        raise NotImplementedError(f"{type(self).__name__} defines no energy of {use}")


def is_builtin(cls: type) -> bool:
    """Return True for a class that ships with kernbench, False for a user's class."""
    return cls.__module__.startswith("kernbench.")


_ANY_PART = ("abandon", "blocked", "failures", "reset")  # on every part, once it is made
_PASSED = ("overhead_ns", "rate_gbs")  # when a link into the part, or out of the part, is made
_TRANSIT = (*_PASSED, "forward", "hold_ns", "hold_packet_ns")  # when the head of a transfer, or a packet, enters
_ENTERED = (*_PASSED, "handles_serially")  # on parts where messages end: also as ``_PASSED``
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
    "pe_scheduler": ("block_sizes", "product_of", "submit"),
    "pe_dma": (*_ENTERED, "accept", "receive", "start", "write"),
    "pe_fetch_store": ("fetch_ps", "store_ps"),
    "pe_gemm": ("tile_ps",),
    "pe_math": ("operation_ps", "submit"),
    "pe_tcm": ("read_ps", "write_ps"),
    "pe_mmu": (),
    "pe_ipcq": ("overhead_ns", "overhead_ps", "arrived"),
}
"""By kind, the methods that the machine calls on a part; they do not include ``_ANY_PART``."""

EXTRA = (*_ENTERED, "overhead_ps", "receive")
"""The methods that the machine calls on an extra part. The part's own classes may call more."""

COMPONENT_CALLS = frozenset((*_ANY_PART, *_ENTERED, "overhead_ps", "receive", "accept"))
"""The methods that the base class defines."""
CALLED_BY_BASE = frozenset(("forward", "hold_ns", "hold_packet_ns", "serve"))
"""The methods that only the builtin class of a kind calls, so that a user's class must derive from it."""
LOOK_ALIKES = ("hold", "hold_packet", "time_ps")
"""Names that nothing calls, similar to the called ``hold_ns``, ``hold_packet_ns`` and a memory's ``serve``."""
OTHER_CALLS = frozenset((*LOOK_ALIKES, *(name for names in CALLED.values() for name in names))) - COMPONENT_CALLS
"""The methods that the machine calls on some kinds only, beyond the base class, and the look-alikes."""


def called_at(kind: str) -> tuple[str, ...]:
    """Return the methods that the machine calls on a part of this kind, sorted; an unknown kind is an extra part."""
    return tuple(sorted((*_ANY_PART, *CALLED.get(kind, EXTRA))))
