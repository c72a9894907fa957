"""Which pseudo-channels of an HBM slice an access falls on, and how long the busiest one needs.

Burst b = address / burst_bytes lies on channel b mod n (``mod``) or on the XOR of b's digits to base n (``xor``). In an
aligned group of n bursts the higher digits are the same, so either way every channel has exactly one burst of it: full
groups load all channels alike and only the two ends of a run have to be looked at.
"""

from __future__ import annotations

from kernbench.messages.fabric import Access
from kernbench.topology.spec import TopologySpec


class HbmChannels:
    """The channels of one kind of slice. ``time_ps`` is the memory time M of an access alone."""

    def __init__(self, spec: TopologySpec) -> None:
        hbm = spec.cube.hbm
        self._n = hbm.num_pcs
        self._burst = hbm.interleave_bytes
        self._piece = hbm.piece_bytes
        # One channel has no digits to fold.
        self._xor = hbm.folds_channels and hbm.num_pcs > 1
        self._ps_per_byte = spec.cube.pc_ps_per_byte
        self._cache: dict[tuple[int, int, int, int], int] = {}

    def time_ps(self, access: Access) -> int:
        """M in ps: bytes on the busiest channel over its usable bandwidth. Cached for accesses of many rows."""
        if access.rows == 1:
            return round(self.busiest_bytes(access) * self._ps_per_byte)
        key = (access.pa, access.row_bytes, access.rows, access.stride)
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = round(self.busiest_bytes(access) * self._ps_per_byte)
        return found

    def busiest_bytes(self, access: Access) -> int:
        """Bytes of the pieces touched on the channel that has most of them; a piece counts once."""
        loads = [0] * self._n
        starts = [access.pa + i * access.stride for i in range(access.rows)]
        if access.stride < 0:
            starts.reverse()
        done = 0
        for start in starts:
            first = max(start - start % self._piece, done)
            end = start + access.row_bytes
            end += -end % self._piece
            if first < end:
                self._add_run(loads, first, end)
                done = end
        return max(loads)

    def channel(self, burst: int) -> int:
        """The channel of a burst."""
        digit = burst % self._n
        if self._xor:
            burst //= self._n
            while burst:
                digit ^= burst % self._n
                burst //= self._n
        return digit

    def _add_run(self, loads: list[int], first: int, end: int) -> None:
        """Add the bytes ``first`` … ``end - 1`` to the channels' loads."""
        group = self._n * self._burst
        head_end = min(first - first % group + group, end) if first % group else first
        tail_start = max(end - end % group, head_end)
        full = tail_start - head_end
        if full:
            share = full // self._n
            for i in range(self._n):
                loads[i] += share
        self._add_end(loads, first, head_end)
        self._add_end(loads, tail_start, end)

    def _add_end(self, loads: list[int], first: int, end: int) -> None:
        while first < end:
            burst = first // self._burst
            stop = min((burst + 1) * self._burst, end)
            loads[self.channel(burst)] += stop - first
            first = stop
