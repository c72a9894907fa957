"""No slice moves more than its peak, whatever the pattern: its buses are busy with one burst at a time."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from kernbench.probe.memory_case import PATTERNS, REQUESTERS, saturate, slices_of
from kernbench.topology.hbm_spec import HbmSpec, Refresh, TimingName

MAPPINGS = ("interleave", "hash", "MOP4CLXOR", "RoBaRaCoCh")
PRESETS: tuple[TimingName, ...] = get_args(TimingName)
BURSTS = 500
TURNING = ("random_1KB_5050", "stride_1024B_64B_5050", "seq_copy_1KB_alt_bankoff", "streams_4_1KB_16781568B_2write")
"""Patterns that turn the buses often, with many bursts under way"""


def share_of_peak(timing: TimingName, mapping: str, refresh: Refresh, pattern: str, requesters: int) -> float:
    """What a slice that begins idle moves until its buses are free again, of what is left of its peak by refresh."""
    hbm = HbmSpec.model_validate(
        {
            "slices": 8,
            "bytes_per_slice": 6 << 30,
            "num_pcs": 2,
            "timing": timing,
            "mapping": mapping,
            "refresh": refresh,
            "quantum_bytes": 2048,
        }
    )
    slice_ = slices_of(hbm)[0]
    share = slice_.banks.refresh_share if refresh == "spread" else 0.0
    return saturate(slice_, pattern, requesters, BURSTS).figures.efficiency_pct / 100 / (1 - share)


@pytest.mark.parametrize("timing", PRESETS)
@pytest.mark.parametrize("pattern", TURNING)
def test_reads_and_writes_in_turn_stay_below_the_peak(pattern: str, timing: TimingName) -> None:
    at = PRESETS.index(timing) + TURNING.index(pattern)
    mapping, requesters = MAPPINGS[-at % 4], REQUESTERS[at // 2 % 4]
    refresh: Refresh = "spread" if at % 3 == 1 else "none"
    assert share_of_peak(timing, mapping, refresh, pattern, requesters) <= 1.0001


@pytest.mark.slow
@pytest.mark.parametrize(("timing", "mapping"), list(product(PRESETS, MAPPINGS)))
def test_every_pattern_stays_below_the_peak(timing: TimingName, mapping: str) -> None:
    shares = {
        (pattern, refresh, requesters): share_of_peak(timing, mapping, refresh, pattern, requesters)
        for pattern in PATTERNS
        for refresh in ("none", "spread")
        for requesters in REQUESTERS
    }
    assert {case: share for case, share in shares.items() if share > 1.0001} == {}
