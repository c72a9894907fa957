"""Find the tensor at a physical address: by what the host told the MMUs, and when."""

from __future__ import annotations

from kernbench.common.values import state
from kernbench.messages.requests import HostMsg, MmuMapMsg, MmuUnmapMsg, TensorMapping

_FOREVER = 1 << 62


@state
class _Mapped:
    """A tensor as one SIP knows it, from when to when."""

    sip: int
    mapping: TensorMapping
    from_ps: int
    until_ps: int = _FOREVER

    def holds(self, pa: int) -> bool:
        return any(shard.pa <= pa < shard.pa + shard.nbytes for shard in self.mapping.shards)

    def away(self, time_ps: int) -> int:
        """Return the distance in time from when it is mapped: a host may fill a tensor before it maps it."""
        return max(self.from_ps - time_ps, time_ps - self.until_ps, 0)


class TensorNames:
    """Names of tensors by address and time; it is shown every request of the host."""

    def __init__(self) -> None:
        self._mapped: list[_Mapped] = []

    def submitted(self, msg: HostMsg, time_ps: int) -> None:
        """The host has submitted ``msg``."""
        if isinstance(msg, MmuMapMsg):
            self._mapped.append(_Mapped(msg.sip, msg.mapping, time_ps))
        elif isinstance(msg, MmuUnmapMsg):
            for each in self._mapped:
                if each.sip == msg.sip and each.mapping.va_base == msg.va_base and each.until_ps == _FOREVER:
                    each.until_ps = time_ps

    def name_at(self, pa: int, time_ps: int) -> str:
        """The tensor that has the byte at ``pa`` at a time, or nearest to it; empty when none ever had."""
        here = [each for each in self._mapped if each.holds(pa)]
        return min(here, key=lambda each: each.away(time_ps)).mapping.name if here else ""
