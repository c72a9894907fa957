"""A class of links: every link of the machine belongs to one."""

from __future__ import annotations

from typing import Literal

from kernbench.common.config import ConfigModel
from kernbench.topology.fields import Bandwidth, Duration, Length, Size


class LinkSpec(ConfigModel):
    """One direction of a link. Without ``length_mm`` the length follows from positions; without ``fifo_bytes`` the
    FIFO at its far end is sized by ``transport``. ``overhead_ns`` is the link's own, beside the nodes'.
    """

    bw_gbs: Bandwidth
    length_mm: Length | None = None
    overhead_ns: Duration = 0.0
    fifo: Literal["bounded", "unbounded"] = "bounded"
    fifo_bytes: Size | None = None

    @property
    def unbounded(self) -> bool:
        """True when nothing limits what may wait at its far end."""
        return self.fifo == "unbounded"
