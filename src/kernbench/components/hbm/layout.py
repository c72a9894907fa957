"""The layout of a slice: it maps an address to a bank and a row.

A *block* is the contiguous bytes in one row of one bank, which are the lowest columns of the mapping. A *sweep* is all
columns of all banks of all pseudo-channels. After a sweep the same banks and columns recur in the next row. A fold is
an XOR of address bits. If all sizes are powers of two, the bank of an address is therefore the bank of its high bits
XOR the bank of its low bits.

The planner maps an access to its quanta, and a quantum to the runs that its banks serve. A *run* ``(bank, row,
bursts)`` is the part of a quantum in one row of one bank, contiguous or not. A *part* is a set of runs that several
channels have in common. The *label* of a bank is its number in the channel XOR a number of the channel. Labels are such
that channels which do the same in different banks have the same runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from kernbench.messages.fabric import Access
from kernbench.topology.hbm_places import BurstArray, BurstPlaces
from kernbench.topology.hbm_spec import AddressMapping, HbmTiming

MOST_KEPT = 1 << 15
"""Cache size: quanta with their runs, and folds of rows"""


class Layout:
    """The places of a slice of ``num_pcs`` pseudo-channels. Banks are numbered by PC, stack, group and bank."""

    def __init__(self, timing: HbmTiming, num_pcs: int, mapping: AddressMapping) -> None:
        self.burst_bytes = timing.burst_bytes
        self.banks_per_channel = timing.pcs_per_channel * timing.banks_per_pc
        self._places = BurstPlaces(timing, num_pcs, mapping)
        in_block = 1
        if mapping[0].field == "column" and not any(entry.fold == "column" for entry in mapping):
            in_block = self._places.lowest_size
        self.block_bytes = in_block * timing.burst_bytes
        self.sweep_bytes = num_pcs * timing.banks_per_pc * timing.row_bytes
        blocks = np.arange(self.sweep_bytes // self.block_bytes, dtype=np.int64)
        self.banks: list[int] = self._banks(blocks * in_block).tolist()
        self.folds_rows = any(entry.fold in ("above", "row") for entry in mapping)
        self.fold_of = lru_cache(MOST_KEPT)(self._fold_of)
        # Labels need powers of two. They are ordered by bank, stack, group, then PC.
        shape = timing.pcs_per_channel, timing.stacks, timing.groups, timing.banks
        self.labels = not num_pcs % timing.pcs_per_channel and all(not n & n - 1 for n in shape)
        self.is_binary = self.labels and not self.sweep_bytes & self.sweep_bytes - 1
        by_bank = np.arange(self.banks_per_channel).reshape(shape).transpose(3, 1, 2, 0).ravel()
        self.order: list[int] = by_bank.argsort().tolist()

    def bank_of(self, pa: int) -> int:
        """Return the bank of a byte."""
        row, place = divmod(pa, self.sweep_bytes)
        return self.banks[place // self.block_bytes] ^ self.fold_of(row)

    def _fold_of(self, row: int) -> int:
        """Return the value that is XORed into the bank of every block of ``row``."""
        if not self.folds_rows:
            return 0
        return int(self._banks(np.array([row * (self.sweep_bytes // self.burst_bytes)], dtype=np.int64))[0])

    def _banks(self, bursts: BurstArray) -> BurstArray:
        """Return the bank of each burst, which is given by its number in the slice."""
        places, sizes = self._places.of(bursts), self._places.sizes
        banks = places["pc"]
        for name in ("stack", "group", "bank"):
            banks = banks * sizes[name] + places[name]
        return banks


RowRun = tuple[int, int, int]
RUN_BURSTS = 8
"""Largest number of bursts of a run; further bursts of the row form another run, which enters the queues later"""
Parts = tuple[tuple[tuple[tuple[int, int], ...], tuple[RowRun, ...]], ...]
"""Channels with the label of their bank 0, and the runs by label that all of them have"""


class Planner:
    """The runs of the quanta of one type of slice, cached by place in a region, and by shape."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._kept = lru_cache(MOST_KEPT)(self._merge)
        self.relabelled = lru_cache(MOST_KEPT)(self._label)

    def parts(self, access: Access, first: int, nbytes: int) -> tuple[int, int, Parts]:
        """Return the base and the runs of bytes ``first`` … ``first + nbytes - 1`` of an access.

        The base is the row to add to the rows of the runs, and the bank to XOR into their banks.
        """
        pa, row_bytes, stride, column = access.pa + first, nbytes, 0, 0
        if access.rows > 1:
            row_bytes, stride = access.row_bytes, access.stride
            row, column = divmod(first, row_bytes)
            pa = access.pa + row * stride
        last = pa + (column + nbytes - 1) // row_bytes * stride
        lowest, highest = (pa, last) if pa < last else (last, pa)
        # Equal regions have the same runs, except for the value XORed into all banks and the value added to all rows.
        layout = self.layout
        if layout.is_binary:
            size = 1 << (lowest ^ (highest + row_bytes - 1)).bit_length()
            base = lowest - lowest % (size if size > layout.block_bytes else layout.block_bytes)
        else:
            base = 0 if layout.folds_rows else lowest - lowest % layout.sweep_bytes
        runs = self._kept(pa - base, row_bytes, stride, column, nbytes)
        return base // layout.sweep_bytes, layout.bank_of(base), runs

    def _merge(self, pa: int, row_bytes: int, stride: int, column: int, nbytes: int) -> Parts:
        """Return the runs of bytes of rows, from ``column`` of the first row on. A burst shared by rows counts once."""
        layout = self.layout
        block, burst, sweep, end = layout.block_bytes, layout.burst_bytes, layout.sweep_bytes, column + nbytes
        counts: dict[tuple[int, int], int] = {}
        previous = done = -1
        for begin in range(0, end, row_bytes):
            start, stop = pa + max(column - begin, 0), pa + min(end - begin, row_bytes)
            pa += stride
            at = start - start % burst
            if start >= previous and at < done:
                at = done
            stop += -stop % burst
            previous, done = start, stop
            while at < stop:
                next_block = min(at - at % block + block, stop)
                key = layout.bank_of(at), at // sweep
                counts[key] = counts.get(key, 0) + (next_block - at) // burst
                at = next_block
        runs: dict[int, list[RowRun]] = {}
        for (bank, row), n in counts.items():
            channel, place = divmod(bank, layout.banks_per_channel)
            channel_runs = runs.setdefault(channel, [])
            channel_runs += [(place, row, min(n - before, RUN_BURSTS)) for before in range(0, n, RUN_BURSTS)]
        channels: dict[tuple[RowRun, ...], list[tuple[int, int]]] = {}
        for channel, quantum_runs in runs.items():
            label = quantum_runs[0][0] if layout.labels else 0
            channels.setdefault(self._label(quantum_runs, label), []).append((channel, label))
        return tuple((tuple(alike), quantum_runs) for quantum_runs, alike in channels.items())

    def _label(self, runs: Iterable[RowRun], label: int) -> tuple[RowRun, ...]:
        """Return runs with other labels, sorted by label."""
        order = self.layout.order
        return tuple(sorted([(bank ^ label, row, n) for bank, row, n in runs], key=lambda run: (order[run[0]], run[1])))
