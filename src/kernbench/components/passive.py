"""Parts that only pass packets on: their overhead is on the links that enter them."""

from __future__ import annotations

from kernbench.di.registry import register
from kernbench.engine.transit import TransitPart


@register("builtin.switch", kind="switch")
class Switch(TransitPart):
    """The switch between the host and the SIPs."""


@register("builtin.pcie_ep", kind="pcie_ep")
class PcieEp(TransitPart):
    """A SIP's PCIe endpoint."""


@register("builtin.noc_router", kind=("noc_router", "io_noc"))
class NocRouter(TransitPart):
    """A router of a cube's mesh, or the crossbar of an IO chiplet. Derive from it to model another one."""


@register("builtin.ucie", kind=("ucie", "sip_port"))
class Ucie(TransitPart):
    """One side of a die-to-die link."""


@register("builtin.xbar", kind="xbar")
class Xbar(TransitPart):
    """The crossbar of a corner: PEs, HBM slices and the corner's router."""
