"""Which pseudo-channels (PCs) of a slice without banks an access falls on, and how many bytes each moves for it.

Burst b = address / burst_bytes lies on channel b mod n (``mod``) or on the XOR of b's digits to base n (``xor``). In an
aligned group of n bursts the higher digits are the same, so either way every channel has exactly one burst of it: full
groups load all channels alike and only the two ends of a run have to be looked at.
"""

from __future__ import annotations

from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HbmSpec

MOST_KEPT = 1 << 15


class Channels:
    """The PCs of one kind of slice."""

    __slots__ = ("_burst", "_kept", "_n", "_piece", "_xor")

    def __init__(self, hbm: HbmSpec) -> None:
        self._n = hbm.num_pcs
        self._burst = hbm.interleave_bytes
        self._piece = hbm.piece_bytes
        # One channel has no digits to fold.
        self._xor = hbm.folds_channels and hbm.num_pcs > 1
        self._kept: dict[Access, list[int]] = {}

    @property
    def count(self) -> int:
        """How many PCs a slice has."""
        return self._n

    def loads(self, access: Access, end: int) -> list[int]:
        """Bytes of the pieces that the first ``end`` bytes of an access touch, by PC; a piece counts once.

        They are kept for whole accesses of many rows.
        """
        if access.rows == 1 or end < access.nbytes:
            return self._count(access, end)
        found = self._kept.get(access)
        if found is None:
            if len(self._kept) == MOST_KEPT:
                self._kept.clear()
            found = self._kept[access] = self._count(access, end)
        return found

    def _count(self, access: Access, end: int) -> list[int]:
        loads = [0] * self._n
        rows, rest = divmod(end, access.row_bytes)
        runs = [(access.pa + i * access.stride, access.row_bytes) for i in range(rows)]
        if rest:
            runs.append((access.pa + rows * access.stride, rest))
        if access.stride < 0:
            runs.reverse()
        done = 0
        for start, nbytes in runs:
            first = max(start - start % self._piece, done)
            stop = start + nbytes
            stop += -stop % self._piece
            if first < stop:
                self._add_run(loads, first, stop)
                done = stop
        return loads

    def channel(self, burst: int) -> int:
        """The PC of a burst."""
        digit = burst % self._n
        if self._xor:
            burst //= self._n
            while burst:
                digit ^= burst % self._n
                burst //= self._n
        return digit

    def _add_run(self, loads: list[int], first: int, end: int) -> None:
        """Add the bytes ``first`` … ``end - 1`` to the loads."""
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
