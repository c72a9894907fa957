"""The ``attrs`` of the builtin kinds of part.

What is left out costs nothing: times are 0. Counts, and the efficiency of HBM, default to the packaged machine's.
A user's class for one of these kinds declares ``Attrs`` as a subclass of the kind's model, with its own keys beside.
"""

from __future__ import annotations

from pydantic import Field

from kernbench.common.config import Bandwidth, Duration, Share
from kernbench.common.units import ns_to_ps
from kernbench.di.part import InnerAttrs, PartAttrs
from kernbench.topology.fields import Count


class HbmCtrlAttrs(PartAttrs):
    """An HBM slice: the part of a channel's bandwidth that is usable without banks, time before the first byte."""

    efficiency: Share | None = None
    access_ns: Duration = 0.0

    @property
    def usable(self) -> float:
        """``efficiency``, or 0.8."""
        return 0.8 if self.efficiency is None else self.efficiency

    @property
    def access_ps(self) -> int:
        """``access_ns`` in ps."""
        return ns_to_ps(self.access_ns)


class SramAttrs(PartAttrs):
    """The SRAM of a cube: the time before the first byte. Without ``bw_gbs`` it is as fast as the link to it."""

    access_ns: Duration = 0.0
    bw_gbs: Bandwidth | None = None

    @property
    def access_ps(self) -> int:
        """``access_ns`` in ps."""
        return ns_to_ps(self.access_ns)


class MCpuAttrs(PartAttrs):
    """The management CPU of a cube: how many fills its DMA does at once."""

    dma_channels: int = Field(default=2, ge=1, le=1024)


class PeCpuAttrs(PartAttrs):
    """The CPU of a PE: the time to start a kernel, to issue a command, and to read what a handle holds."""

    launch_ns: Duration = 0.0
    issue_ns: Duration = 0.0
    value_ns: Duration = 0.0

    @property
    def launch_ps(self) -> int:
        """``launch_ns`` in ps."""
        return ns_to_ps(self.launch_ns)

    @property
    def issue_ps(self) -> int:
        """``issue_ns`` in ps."""
        return ns_to_ps(self.issue_ns)

    @property
    def value_ps(self) -> int:
        """``value_ns`` in ps."""
        return ns_to_ps(self.value_ns)

    @property
    def first_issue_ps(self) -> int:
        """From the common start of a kernel to the end of the issue of its first command."""
        return self.launch_ps + self.issue_ps


class PeSchedulerAttrs(InnerAttrs):
    """The tile scheduler of a PE: time per tile injected, tiles in the pipeline, slots before a stage."""

    issue_ns: Duration = 0.0
    tiles_in_flight: Count = 4
    stage_slots: Count = 2

    @property
    def issue_ps(self) -> int:
        """``issue_ns`` in ps."""
        return ns_to_ps(self.issue_ns)
