"""The base of component implementations for the registry and the topology, and the kinds of part.

A kind is a place in the machine. An implementation is a class for that place.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import SerializerFunctionWrapHandler, model_serializer

from kernbench.common.config import Bandwidth, ConfigModel, Duration

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


class Part:
    """Base of every component class. Users derive from the class that ``COMPONENT`` names.

    ``Attrs`` is the model that checks the ``attrs`` of the class in YAML. By default the kind's model checks them.
    ``stands_alone``: a class of a builtin kind may also stand at ``cube.extra`` and ``pe.extra``, such as a memory.
    """

    Attrs: ClassVar[type[InnerAttrs]] = PartAttrs
    stands_alone: ClassVar[bool] = False
