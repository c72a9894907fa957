"""What the loader warns of: machines that are allowed, and slower than their owners may think."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from kernbench.common.config import Complaint, path_of
from kernbench.common.units import format_size
from kernbench.topology.hbm_places import Places
from kernbench.topology.hbm_spec import HBM3, HbmSpec
from kernbench.topology.spec import TopologySpec

STRIDES = tuple(512 << i for i in range(8))
"""512 B to 64 KiB: the rows of most matrices"""
ROWS = 32
ROW_BYTES = 128
"""Rows of a tile, and what it has of each: 64 values of two bytes"""
MOST_ROWS = 1024


def advise(spec: TopologySpec) -> Iterator[Complaint]:
    """Yield what to warn of, by path."""
    yield from _rows_spread_over_channels(spec.cube.hbm)
    yield from _queues_cover_opening_rows(spec.cube.hbm)


def channels_of_rows(hbm: HbmSpec, stride: int) -> tuple[int, int]:
    """Return how many pseudo-channels rows use that lie ``stride`` bytes apart, and how many they could."""
    unit = hbm.interleave_bytes
    # Without banks what lies on one channel is one burst of one row.
    banks = hbm.banks or HBM3.model_copy(update={"row_bytes": unit, "burst_bytes": unit})
    rows = max(ROWS, min(MOST_ROWS, hbm.round_bytes // stride))
    bytes_ = np.arange(rows)[:, None] * stride + np.arange(0, ROW_BYTES, min(ROW_BYTES, banks.burst_bytes))
    places = Places(banks, hbm.num_pcs, hbm.fields(banks)).of(np.unique(bytes_ // banks.burst_bytes))
    return len(np.unique(places["pc"])), min(hbm.num_pcs, rows)


def _rows_spread_over_channels(hbm: HbmSpec) -> Iterator[Complaint]:
    """Warn of a mapping that puts the rows of a tile on half of the pseudo-channels, or fewer, for some strides."""
    found = {stride: channels_of_rows(hbm, stride) for stride in STRIDES}
    piled = {stride: used for stride, (used, most) in found.items() if 2 * used <= most}
    if not piled:
        return
    worst = min(piled, key=piled.__getitem__)
    where = f"rows {format_size(worst)} apart ({ROW_BYTES} B of each) lie on {piled[worst]} of {hbm.num_pcs}"
    slow = f"{where} pseudo-channels, so tiles of such matrices stream at a part of the bandwidth"
    if not hbm.interleaves:
        key, better = "mapping", "mapping: interleave and hash spread them"
    elif hbm.folds_channels:
        key, better = "burst_bytes", "burst_bytes: 256 spreads them"
    else:
        key, better = "channel_hash", "channel_hash: xor spreads them"
    if hbm.num_pcs.bit_count() != 1:
        better = "with a power of two of them channel_hash: xor spreads them"
    yield Complaint(path_of(f"cube.hbm.{key}"), f"{slow}; {better}")


def _queues_cover_opening_rows(hbm: HbmSpec) -> Iterator[Complaint]:
    """Warn of queues that are full before a row is open (Little's law): a channel's buses idle meanwhile."""
    banks = hbm.banks
    if banks is None:
        return
    channel_gbs = min(banks.pcs_per_channel, hbm.num_pcs) * banks.pc_gbs * (1 - banks.refresh_share)
    opening_ns = banks.rp_ns + banks.rcd_ns
    enough = ceil(channel_gbs * opening_ns / banks.burst_bytes)
    if hbm.queue >= enough:
        return
    held_gbs = hbm.queue * banks.burst_bytes / opening_ns
    found = f"a channel queues {hbm.queue} bursts of {banks.burst_bytes} B"
    wait = f"if all wait for rows (tRP + tRCD, {opening_ns:g} ns) it moves {held_gbs:.1f} GB/s of {channel_gbs:.1f}"
    yield Complaint(path_of("cube.hbm.queue_entries"), f"{found}; {wait}; {enough} are enough")
