"""Where the bursts of a slice lie: from an address to a bank and a row.

A *block* is what lies in one row of one bank side by side (the lowest columns of the mapping); a *sweep* is all columns
of all banks of all pseudo-channels, after which the same places come again in the next row. Folds are XORs, so the bank
of a block is that of its place in the sweep XOR what is folded of its row.

A plan takes an access to its quanta, and a quantum to the runs its banks serve. A *run* is what a quantum has in one
row of one bank, side by side or not: ``(bank, row, bursts)``. A *part* is the runs of a quantum that some channels have
alike. The *label* of a bank is its number in the channel XOR that of another bank: channels that do the same, but in
other banks, have the same runs by labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kernbench.messages.fabric import Access
from kernbench.topology.hbm_places import Numbers, Places
from kernbench.topology.hbm_spec import AddressMapping, HbmTiming


class Layout:
    """The places of a slice of ``num_pcs`` pseudo-channels. Banks are numbered by PC, stack, group, bank."""

    __slots__ = (
        "_folds",
        "_places",
        "_strides",
        "banks",
        "banks_per_channel",
        "block_bytes",
        "burst_bytes",
        "folds_rows",
        "labels",
        "order",
        "sweep_bytes",
    )

    def __init__(self, timing: HbmTiming, num_pcs: int, mapping: AddressMapping) -> None:
        self.burst_bytes = timing.burst_bytes
        self.banks_per_channel = timing.pcs_per_channel * timing.banks_per_pc
        self._places = Places(timing, num_pcs, mapping)
        self._strides = {
            "pc": timing.banks_per_pc,
            "stack": timing.groups * timing.banks,
            "group": timing.banks,
            "bank": 1,
        }
        in_block = 1
        if mapping[0].field == "column" and not any(entry.fold == "column" for entry in mapping):
            in_block = self._places.lowest_size
        self.block_bytes = in_block * timing.burst_bytes
        self.sweep_bytes = num_pcs * timing.banks_per_pc * timing.row_bytes
        blocks = np.arange(self.sweep_bytes // self.block_bytes, dtype=np.int64)
        self.banks: list[int] = self._banks(blocks * in_block).tolist()
        self.folds_rows = any(entry.fold in ("above", "row") for entry in mapping)
        self._folds = {0: 0}
        # Labels need powers of two. They are in the order of banks, stacks, groups, then PCs.
        shape = timing.pcs_per_channel, timing.stacks, timing.groups, timing.banks
        self.labels = not num_pcs % timing.pcs_per_channel and all(not n & n - 1 for n in shape)
        by_bank = np.arange(self.banks_per_channel).reshape(shape).transpose(3, 1, 2, 0).ravel()
        self.order: list[int] = by_bank.argsort().tolist()

    def fold_of(self, row: int) -> int:
        """What is XORed into the bank of every block of ``row``."""
        if not self.folds_rows:
            return 0
        found = self._folds.get(row)
        if found is None:
            burst = np.array([row * (self.sweep_bytes // self.burst_bytes)], dtype=np.int64)
            found = self._folds[row] = int(self._banks(burst)[0])
        return found

    def _banks(self, bursts: Numbers) -> Numbers:
        """The bank of each burst, by its number in the slice."""
        places = self._places.of(bursts)
        banks = np.zeros_like(bursts)
        for name, stride in self._strides.items():
            banks += places[name] * stride
        return banks


RowRun = tuple[int, int, int]
RUN_BURSTS = 8
"""Bursts of a run: those in a row beyond it are another, as they enter queues when places become free"""
Parts = tuple[tuple[tuple[tuple[int, int], ...], tuple[RowRun, ...]], ...]
"""Channels with the label of their bank 0, and the runs that each of them has, by labels"""
MOST_KEPT = 1 << 15
"""Quanta whose runs are kept: a sweep of small ones, with every fold of its rows."""


class Planner:
    """The runs of the quanta of one kind of slice. They are kept by place in the sweep, fold of the row, and shape."""

    __slots__ = ("_kept", "_relabelled", "layout")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._kept: dict[tuple[int, int, int, int, int], Parts] = {}
        self._relabelled: dict[tuple[int, int], tuple[tuple[RowRun, ...], tuple[RowRun, ...]]] = {}

    def parts(self, access: Access, first: int, nbytes: int) -> tuple[int, Parts]:
        """The row that the runs of bytes ``first`` … ``first + nbytes - 1`` of an access count from, and the runs."""
        pa, rows, stride = access.pa + first, 1, 0
        if access.rows > 1:
            row, column = divmod(first, access.row_bytes)
            whole = not column and not nbytes % access.row_bytes
            if not whole:
                return 0, self._merged(_pieces(access, first, nbytes), 0)
            pa, rows, stride = access.pa + row * access.stride, nbytes // access.row_bytes, access.stride
            nbytes = access.row_bytes
        sweep = self.layout.sweep_bytes
        base, place = divmod(pa, sweep)
        last = place + (rows - 1) * stride
        if self.layout.folds_rows and (min(place, last) < 0 or max(place, last) + nbytes > sweep):
            key = (pa, 0, nbytes, rows, stride)
            base, place = 0, pa
        else:
            key = (place, self.layout.fold_of(base), nbytes, rows, stride)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) == MOST_KEPT:
                self._kept.clear()
            found = self._merged(((place + i * stride, nbytes) for i in range(rows)), base)
            self._kept[key] = found
        return base, found

    def _merged(self, pieces: Iterator[tuple[int, int]], base: int) -> Parts:
        """The runs of some pieces of memory; rows count from ``base``. A burst that pieces share is read once."""
        layout = self.layout
        block, burst, sweep, banks = layout.block_bytes, layout.burst_bytes, layout.sweep_bytes, layout.banks
        counts: dict[tuple[int, int], int] = {}
        previous = done = -1
        for start, nbytes in pieces:
            at = start - start % burst
            if start >= previous and at < done:
                at = done
            end = start + nbytes
            end += -end % burst
            previous, done = start, end
            while at < end:
                stop = min(at - at % block + block, end)
                row, place = divmod(at, sweep)
                key = (banks[place // block] ^ layout.fold_of(base + row), row)
                counts[key] = counts.get(key, 0) + (stop - at) // burst
                at = stop
        runs: dict[int, list[RowRun]] = {}
        for (bank, row), n in counts.items():
            channel, place = divmod(bank, layout.banks_per_channel)
            own = runs.setdefault(channel, [])
            own += [(place, row, min(n - before, RUN_BURSTS)) for before in range(0, n, RUN_BURSTS)]
        channels: dict[tuple[RowRun, ...], list[tuple[int, int]]] = {}
        for channel, each in runs.items():
            label = each[0][0] if layout.labels else 0
            channels.setdefault(self._labelled(each, label), []).append((channel, label))
        return tuple((tuple(alike), each) for each, alike in channels.items())

    def relabelled(self, runs: tuple[RowRun, ...], label: int) -> tuple[RowRun, ...]:
        """Return runs with other labels of their banks: the same object for the same runs."""
        found = self._relabelled.get((id(runs), label))
        if found is None:
            if len(self._relabelled) == MOST_KEPT:
                self._relabelled.clear()
            found = self._relabelled[id(runs), label] = runs, self._labelled(runs, label)
        return found[1]

    def _labelled(self, runs: Iterable[RowRun], label: int) -> tuple[RowRun, ...]:
        """Return runs with other labels, in the order of these."""
        order = self.layout.order
        return tuple(sorted([(bank ^ label, row, n) for bank, row, n in runs], key=lambda run: (order[run[0]], run[1])))


def _pieces(access: Access, first: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """The pieces of memory of some bytes of an access of many rows: where and how long."""
    end = first + nbytes
    while first < end:
        row, column = divmod(first, access.row_bytes)
        n = min(access.row_bytes - column, end - first)
        yield access.pa + row * access.stride + column, n
        first += n
